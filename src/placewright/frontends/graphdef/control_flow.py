"""A `While`, `If` or `Case` of TensorFlow in, one op with the cost of its functions out."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from placewright.errors import GraphError
from placewright.frontends.graph_builder import Draft, Value
from placewright.frontends.graphdef.protos import constant
from placewright.graph import INPUT

if TYPE_CHECKING:
    from placewright.frontends.graphdef.nodes import Reader
    from placewright.frontends.graphdef.scope import Scope
    from placewright.frontends.op_costs import Tensor

Inputs = Sequence[Value | None]


def _body(
    reader: Reader, scope: Scope, label: str, function: str, inputs: Inputs
) -> tuple[Draft, list[Tensor | None]]:
    """A function as a draft of its own, and what it makes."""
    child = scope.draft.child(label)
    given: list[Value | None] = []
    for value in inputs:
        if value is None or (value.source is None and value.constant is not None):
            given.append(value)
        else:
            [held] = child.add("given", INPUT, (), [value.tensor])
            given.append(held._replace(constant=value.constant))
    made = reader.call(scope.inner(child, ""), label, function, given)
    return child, [None if value is None else value.tensor for value in made]


def _finish(
    reader: Reader,
    scope: Scope,
    node: Any,
    bodies: Sequence[tuple[Draft, int]],
    inputs: Inputs,
    made: Sequence[Tensor | None],
    after: Sequence[Value],
) -> None:
    known = [value for value in inputs if value is not None]
    tensors = [tensor for tensor in made if tensor is not None]
    if len(known) < len(inputs) or len(tensors) < len(made):
        scope.values[node.name] = None
        return
    name = scope.name(node)
    values = scope.draft.enclose(
        name,
        bodies,
        [*known, *after],
        tensors,
        module=name.rpartition("/")[0].replace("/", "."),
        phase=reader.phase(scope, node, known),
    )
    scope.values[node.name] = list(values)
    reader.note(scope, node, len(scope.draft.ops) - 1, ())
    reader.finish(scope, node, after)


def _while(reader: Reader, scope: Scope, node: Any, inputs: Inputs, after: Sequence[Value]) -> None:
    condition, body = node.attr["cond"].func.name, node.attr["body"].func.name
    states = [None if v is None else v._replace(constant=None) for v in inputs]  # they change
    asked, _ = _body(reader, scope, "condition", condition, states)
    child, made = _body(reader, scope, "body", body, states)
    if len(made) != len(inputs):
        raise GraphError(f"its body makes {len(made)} values: expected {len(inputs)}")
    trips = _trips(reader, condition, body, inputs)
    if trips is None:
        scope.draft.untimed.append(scope.name(node))
    count = 1 if trips is None else trips
    _finish(reader, scope, node, [(child, count), (asked, count + 1)], inputs, made, after)


def _branches(
    reader: Reader, scope: Scope, node: Any, inputs: Inputs, after: Sequence[Value]
) -> None:
    if node.op in ("Case", "StatelessCase"):
        names = [entry.name for entry in node.attr["branches"].list.func]
    else:
        names = [node.attr[key].func.name for key in ("else_branch", "then_branch")]
    picked = inputs[0].constant if inputs and inputs[0] is not None else None
    if picked is not None and picked.size == 1 and names:
        at = int(picked.reshape(-1)[0])
        chosen = names[at if 0 <= at < len(names) else -1]
        scope.values[node.name] = list(reader.call(scope, node.name, chosen, inputs[1:]))
        reader.finish(scope, node, after)
        return
    drafts = [
        _body(reader, scope, f"branch_{at}", name, inputs[1:]) for at, name in enumerate(names)
    ]
    if not drafts:
        raise GraphError("it has no branches")
    drafts.sort(key=lambda pair: (pair[0].flops, pair[0].moved), reverse=True)
    bodies = [(draft, 1 if at == 0 else 0) for at, (draft, _) in enumerate(drafts)]
    _finish(reader, scope, node, bodies, inputs, drafts[0][1], after)


def _trips(reader: Reader, condition: str, body: str, inputs: Inputs) -> int | None:
    """How often a loop runs that counts up from a constant to a constant; None otherwise."""
    asks, does = reader.functions[condition], reader.functions[body]
    nodes = {node.name: node for node in asks.node_def}
    places = {entry.name: at for at, entry in enumerate(asks.signature.input_arg)}
    counts: list[int] = []
    waiting = list(asks.ret.values())
    for reference in waiting:  # grows: both sides of an AND must hold
        node = nodes.get(reference.partition(":")[0])
        if node is None or len(waiting) > 16:
            continue
        if node.op in ("Identity", "LogicalAnd"):
            waiting += [entry for entry in node.input if not entry.startswith("^")]
        elif node.op in ("Less", "LessEqual") and len(node.input) >= 2:
            at = places.get(node.input[0].partition(":")[0])
            start = _known(inputs, at)
            end = _known(inputs, places.get(node.input[1].partition(":")[0]))
            if end is None:
                end = _constant(nodes, node.input[1])
            step = None if at is None else _step(does, at)
            if start is not None and end is not None and step:
                reach = end - start + (node.op == "LessEqual")
                counts.append(max(0, math.ceil(reach / step)))
    return min(counts, default=None)


def _known(inputs: Inputs, at: int | None) -> float | None:
    value = None if at is None or at >= len(inputs) else inputs[at]
    if value is None or value.constant is None or value.constant.size != 1:
        return None
    number = float(value.constant.reshape(-1)[0])
    return number if math.isfinite(number) else None


def _constant(nodes: Mapping[str, Any], reference: str) -> float | None:
    node = nodes.get(reference.partition(":")[0])
    while node is not None and node.op == "Identity" and node.input:
        node = nodes.get(node.input[0].partition(":")[0])
    if node is None or node.op != "Const":
        return None
    tensor, array = constant(node.attr["value"].tensor)
    return _known([Value(None, tensor, array)], 0)


def _step(function: Any, at: int) -> float | None:
    """What a trip adds to its counter, if that is more than nothing."""
    nodes = {node.name: node for node in function.node_def}
    arguments = [entry.name for entry in function.signature.input_arg]
    outputs = [function.ret[entry.name] for entry in function.signature.output_arg]
    if at >= len(outputs) or at >= len(arguments):
        return None
    node = nodes.get(outputs[at].partition(":")[0])
    for _ in range(len(nodes)):
        if node is None or node.op != "Identity" or not node.input:
            break
        node = nodes.get(node.input[0].partition(":")[0])
    if node is None or node.op not in ("Add", "AddV2") or len(node.input) < 2:
        return None
    first, second = node.input[0], node.input[1]
    if first.partition(":")[0] != arguments[at]:
        first, second = second, first
    if first.partition(":")[0] != arguments[at]:
        return None
    step = _constant(nodes, second)
    return step if step is not None and step > 0 else None


FLOW: Mapping[str, Callable[[Reader, Scope, Any, Inputs, Sequence[Value]], None]] = {
    **dict.fromkeys(("While", "StatelessWhile"), _while),
    **dict.fromkeys(("If", "StatelessIf", "Case", "StatelessCase"), _branches),
}
"""How to read each op that calls functions, but for plain calls."""
