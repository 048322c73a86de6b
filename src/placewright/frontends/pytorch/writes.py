"""A captured PyTorch graph in, the meaning of each node that matters out.

A captured graph changes nothing in place: writing a row of a cache became making a new cache. Here
such writes are found again, so that they cost what they write, and take no memory of their own.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from operator import getitem
from typing import TYPE_CHECKING

from placewright.frontends.pytorch.errors import at_op
from placewright.frontends.pytorch.kinds import (
    SAME,
    Meaning,
    meaning,
)
from placewright.frontends.pytorch.shapes import op_name
from placewright.graph import VIEW

if TYPE_CHECKING:
    from placewright.frontends.pytorch.capture import Capture, Port
    from placewright.frontends.pytorch.shapes import Node

PART = "part"
"""The kind of a node that is one output of the node it reads."""


def meanings(captured: Capture) -> dict[Node, Meaning]:
    """What each node is that something needs in the end, in the graph's order."""
    found: dict[Node, Meaning] = {}
    waiting = [port.node for port in captured.leaves]
    while waiting:
        node = waiting.pop()
        if node in found or node.op != "call_function":
            continue
        part = node.target is getitem
        with at_op(op_name(node)):
            found[node] = Meaning(PART, node.all_input_nodes) if part else meaning(node)
        waiting.extend(found[node].reads)
    ordered = {node: found[node] for node in captured.graph.nodes if node in found}
    return _in_place(captured, ordered)


def changed(captured: Capture) -> set[str]:
    """The names of the buffers and inputs that the step changes."""
    return {port.target for port in captured.leaves if port.role == "change"}


def writes(captured: Capture, given: dict[Node, Meaning]) -> dict[Node | None, list[Port]]:
    """The changed states to be written after each node: new value made, old value read by all.

    Under None stand those that can be written at once.
    """
    last: dict[Node, Node] = {}  # what brings a state in, and the last node that reads it
    brings = {port.target: port.node for port in captured.enters}
    source = {node: node for node in brings.values()}
    for node, what in given.items():
        for read in what.reads:
            if read in source:
                last[source[read]] = node
                if what.kind in (VIEW, SAME):
                    source[node] = source[read]
    place: dict[Node | None, int] = {node: at for at, node in enumerate(given)}
    due: dict[Node | None, list[Port]] = {}
    for port in captured.leaves:
        if port.role == "change":
            reader = last.get(brings[port.target])
            after = max((port.node, reader), key=lambda node: place.get(node, -1))
            due.setdefault(after if after in place else None, []).append(port)
    return due


def _in_place(captured: Capture, given: dict[Node, Meaning]) -> dict[Node, Meaning]:
    """Let scatters write into what they read, where nothing can tell the difference.

    That is so if it is a state that the step changes anyway, or if nothing else reads it.
    """

    def root(node: Node) -> Node:
        while node in given and given[node].kind == SAME:
            node = given[node].reads[0]
        return node

    uses = Counter(root(source) for what in given.values() for source in what.reads)
    uses.update(root(port.node) for port in captured.leaves)
    names = changed(captured)
    state = {port.node for port in captured.enters if port.target in names}  # a state's own memory
    written: set[Node] = set()
    settled = dict(given)
    for node, what in given.items():
        if what.kind in (VIEW, SAME) and root(what.reads[0]) in state:
            state.add(node)
        if what.kind != "scatter" or len(what.reads) < 2:
            continue
        base, rows = root(what.reads[0]), root(what.reads[-1])
        alone = uses[base] == 1 and base in given and given[base].kind not in (VIEW, PART)
        if base not in state and not alone:
            continue
        if base in state:
            state.add(node)
        if rows in written and rows in state and uses[rows] == 1:  # already there
            settled[node] = Meaning(VIEW, [what.reads[0], what.reads[-1]], aliases=((0, 0),))
        else:
            attributes = {**what.attributes, "in_place": True}
            settled[node] = replace(what, attributes=attributes, aliases=((0, 0),))
        written.add(node)
    return settled
