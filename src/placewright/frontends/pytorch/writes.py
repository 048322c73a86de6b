"""Describes the needed nodes of a captured PyTorch graph and restores in-place writes.

A captured graph is functional: writing a row of a cache became an op that makes a new cache. This
module finds such writes again, so that they cost only the written bytes and need no new memory.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from operator import getitem
from typing import TYPE_CHECKING

from placewright.frontends.pytorch.errors import at_op
from placewright.frontends.pytorch.op_rules import (
    IDENTITY,
    NodeDescription,
    describe_node,
)
from placewright.frontends.pytorch.shapes import op_name
from placewright.graph import VIEW

if TYPE_CHECKING:
    from placewright.frontends.pytorch.capture import Capture, Port
    from placewright.frontends.pytorch.shapes import Node

GETITEM = "part"
"""The kind of a node that selects one output of another node."""


def describe_nodes(capture: Capture) -> dict[Node, NodeDescription]:
    """The description of each node that an output depends on, in the graph's order.

    And of those that draw random numbers, if nothing reads them either.
    """
    descriptions: dict[Node, NodeDescription] = {}
    pending = [*(port.node for port in capture.outputs), *capture.draws]
    while pending:
        node = pending.pop()
        if node in descriptions or node.op != "call_function":
            continue
        is_getitem = node.target is getitem
        with at_op(op_name(node)):
            descriptions[node] = (
                NodeDescription(GETITEM, node.all_input_nodes)
                if is_getitem
                else describe_node(node)
            )
        pending.extend(descriptions[node].reads)
    ordered = {node: descriptions[node] for node in capture.graph.nodes if node in descriptions}
    return _mark_in_place(capture, ordered)


def changed_states(capture: Capture) -> set[str]:
    """The names of the buffers and inputs that the step changes."""
    return {port.target for port in capture.outputs if port.role == "change"}


def schedule_writes(
    capture: Capture, descriptions: dict[Node, NodeDescription]
) -> dict[Node | None, list[Port]]:
    """The states to write after each node, when the new value exists and the old is read.

    Those under None can be written at once.
    """
    last_reader: dict[Node, Node] = {}  # a state's placeholder → the last node that reads it
    input_nodes = {port.target: port.node for port in capture.inputs}
    state_of = {node: node for node in input_nodes.values()}
    for node, description in descriptions.items():
        for read_node in description.reads:
            if read_node in state_of:
                last_reader[state_of[read_node]] = node
                if description.kind in (VIEW, IDENTITY):
                    state_of[node] = state_of[read_node]
    position: dict[Node | None, int] = {node: at for at, node in enumerate(descriptions)}
    writes_due: dict[Node | None, list[Port]] = {}
    for port in capture.outputs:
        if port.role == "change":
            reader = last_reader.get(input_nodes[port.target])
            last_node = max((port.node, reader), key=lambda node: position.get(node, -1))
            writes_due.setdefault(last_node if last_node in position else None, []).append(port)
    return writes_due


def _mark_in_place(
    capture: Capture, descriptions: dict[Node, NodeDescription]
) -> dict[Node, NodeDescription]:
    """Let scatters write into their first input where that changes no result.

    That is so if the input is a state that the step changes, or if nothing else reads it.
    """

    def root(node: Node) -> Node:
        while node in descriptions and descriptions[node].kind == IDENTITY:
            node = descriptions[node].reads[0]
        return node

    uses = Counter(
        root(source) for description in descriptions.values() for source in description.reads
    )
    uses.update(root(port.node) for port in capture.outputs)
    names = changed_states(capture)
    state_nodes = {
        port.node for port in capture.inputs if port.target in names
    }  # share the memory of a state
    written_nodes: set[Node] = set()
    result = dict(descriptions)
    for node, description in descriptions.items():
        if description.kind in (VIEW, IDENTITY) and root(description.reads[0]) in state_nodes:
            state_nodes.add(node)
        if description.kind != "scatter" or len(description.reads) < 2:
            continue
        base, rows = root(description.reads[0]), root(description.reads[-1])
        is_unshared = (
            uses[base] == 1
            and base in descriptions
            and descriptions[base].kind not in (VIEW, GETITEM)
        )
        if base not in state_nodes and not is_unshared:
            continue
        if base in state_nodes:
            state_nodes.add(node)
        if rows in written_nodes and rows in state_nodes and uses[rows] == 1:  # in place already
            result[node] = NodeDescription(
                VIEW, [description.reads[0], description.reads[-1]], aliases=((0, 0),)
            )
        else:
            attributes = {**description.attributes, "in_place": True}
            result[node] = replace(description, attributes=attributes, aliases=((0, 0),))
        written_nodes.add(node)
    return result
