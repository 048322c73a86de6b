"""Reads a `While`, `If` or `Case` of TensorFlow as one op with the cost of its functions."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from placewright.errors import GraphError
from placewright.frontends.graph_builder import GraphBuilder, TensorValue
from placewright.frontends.graphdef.protos import read_constant
from placewright.frontends.graphdef.scope import CALL_OPS
from placewright.graph import INPUT

if TYPE_CHECKING:
    from placewright.frontends.graphdef.nodes import GraphDefReader
    from placewright.frontends.graphdef.scope import GraphDefScope
    from placewright.frontends.op_costs import TensorSpec

Inputs = Sequence[TensorValue | None]
_FUNCTION_ATTRIBUTES = ("cond", "body", "then_branch", "else_branch")


def called_functions(node: Any, functions: Mapping[str, Any]) -> list[str]:
    """The functions that a node calls, of these."""
    if node.op in functions:
        return [node.op]
    if node.op in CALL_OPS:
        return [node.attr["f"].func.name]
    if node.op in ("Case", "StatelessCase"):
        return [entry.name for entry in node.attr["branches"].list.func]
    if node.op in CONTROL_FLOW:
        return [node.attr[key].func.name for key in _FUNCTION_ATTRIBUTES if key in node.attr]
    return []


def _build_body(
    reader: GraphDefReader, scope: GraphDefScope, label: str, function: str, inputs: Inputs
) -> tuple[GraphBuilder, list[TensorSpec | None]]:
    """A child builder with the ops of a function, and its outputs."""
    child = scope.builder.child(label)
    arguments: list[TensorValue | None] = []
    for value in inputs:
        if value is None or (value.source is None and value.constant is not None):
            arguments.append(value)
        else:
            [argument] = child.add("given", INPUT, (), [value.tensor])
            arguments.append(argument._replace(constant=value.constant))
    outputs = reader.inline_call(scope.child(child, ""), label, function, arguments)
    return child, [None if value is None else value.tensor for value in outputs]


def _add_op(
    reader: GraphDefReader,
    scope: GraphDefScope,
    node: Any,
    bodies: Sequence[tuple[GraphBuilder, int]],
    inputs: Inputs,
    output_specs: Sequence[TensorSpec | None],
    control_inputs: Sequence[TensorValue],
) -> None:
    known_inputs = [value for value in inputs if value is not None]
    tensors = [tensor for tensor in output_specs if tensor is not None]
    if len(known_inputs) < len(inputs) or len(tensors) < len(output_specs):
        scope.values[node.name] = None
        return
    name = scope.name(node)
    values = scope.builder.add_subgraph(
        name,
        bodies,
        [*known_inputs, *control_inputs],
        tensors,
        module=name.rpartition("/")[0].replace("/", "."),
        phase=reader.phase(scope, node, known_inputs),
    )
    scope.values[node.name] = list(values)
    reader.record_op(scope, node, len(scope.builder.ops) - 1, ())
    reader.add_control_value(scope, node, control_inputs)


def _while(
    reader: GraphDefReader,
    scope: GraphDefScope,
    node: Any,
    inputs: Inputs,
    control_inputs: Sequence[TensorValue],
) -> None:
    condition, body = node.attr["cond"].func.name, node.attr["body"].func.name
    states = [
        None if v is None else v._replace(constant=None) for v in inputs
    ]  # they change from trip to trip
    condition_graph, _ = _build_body(reader, scope, "condition", condition, states)
    child, outputs = _build_body(reader, scope, "body", body, states)
    if len(outputs) != len(inputs):
        raise GraphError(f"its body makes {len(outputs)} values: expected {len(inputs)}")
    trips = _trip_count(reader, condition, body, inputs)
    if trips is None:
        scope.builder.unbounded_loops.append(scope.name(node))
    count = 1 if trips is None else trips
    _add_op(
        reader,
        scope,
        node,
        [(child, count), (condition_graph, count + 1)],
        inputs,
        outputs,
        control_inputs,
    )


def _branches(
    reader: GraphDefReader,
    scope: GraphDefScope,
    node: Any,
    inputs: Inputs,
    control_inputs: Sequence[TensorValue],
) -> None:
    if node.op in ("Case", "StatelessCase"):
        names = [entry.name for entry in node.attr["branches"].list.func]
    else:
        names = [node.attr[key].func.name for key in ("else_branch", "then_branch")]
    branch_index = inputs[0].constant if inputs and inputs[0] is not None else None
    if branch_index is not None and branch_index.size == 1 and names:
        at = int(branch_index.reshape(-1)[0])
        branch = names[at if 0 <= at < len(names) else -1]
        scope.values[node.name] = list(reader.inline_call(scope, node.name, branch, inputs[1:]))
        reader.add_control_value(scope, node, control_inputs)
        return
    candidates = [
        _build_body(reader, scope, f"branch_{at}", name, inputs[1:])
        for at, name in enumerate(names)
    ]
    if not candidates:
        raise GraphError("it has no branches")
    candidates.sort(key=lambda pair: (pair[0].flops, pair[0].bytes_moved), reverse=True)
    bodies = [(builder, 1 if at == 0 else 0) for at, (builder, _) in enumerate(candidates)]
    _add_op(reader, scope, node, bodies, inputs, candidates[0][1], control_inputs)


def _trip_count(reader: GraphDefReader, condition: str, body: str, inputs: Inputs) -> int | None:
    """The trip count of a loop that counts up from a constant to a constant, or None."""
    condition_function, body_function = reader.functions[condition], reader.functions[body]
    nodes = {node.name: node for node in condition_function.node_def}
    argument_positions = {
        entry.name: at for at, entry in enumerate(condition_function.signature.input_arg)
    }
    counts: list[int] = []
    pending = list(condition_function.ret.values())
    for reference in pending:  # grows: both sides of an AND must hold
        node = nodes.get(reference.partition(":")[0])
        if node is None or len(pending) > 16:
            continue
        if node.op in ("Identity", "LogicalAnd"):
            pending += [entry for entry in node.input if not entry.startswith("^")]
        elif node.op in ("Less", "LessEqual") and len(node.input) >= 2:
            at = argument_positions.get(node.input[0].partition(":")[0])
            start = _scalar_input(inputs, at)
            end = _scalar_input(inputs, argument_positions.get(node.input[1].partition(":")[0]))
            if end is None:
                end = _scalar_constant(nodes, node.input[1])
            step = None if at is None else _counter_step(body_function, at)
            if start is not None and end is not None and step:
                distance = end - start + (node.op == "LessEqual")
                counts.append(max(0, math.ceil(distance / step)))
    return min(counts, default=None)


def _scalar_input(inputs: Inputs, at: int | None) -> float | None:
    value = None if at is None or at >= len(inputs) else inputs[at]
    if value is None or value.constant is None or value.constant.size != 1:
        return None
    number = float(value.constant.reshape(-1)[0])
    return number if math.isfinite(number) else None


def _scalar_constant(nodes: Mapping[str, Any], reference: str) -> float | None:
    node = nodes.get(reference.partition(":")[0])
    while node is not None and node.op == "Identity" and node.input:
        node = nodes.get(node.input[0].partition(":")[0])
    if node is None or node.op != "Const":
        return None
    tensor, array = read_constant(node.attr["value"].tensor)
    return _scalar_input([TensorValue(None, tensor, array)], 0)


def _counter_step(function: Any, at: int) -> float | None:
    """The increment of the counter per trip, if it is positive."""
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
    counter, increment = node.input[0], node.input[1]
    if counter.partition(":")[0] != arguments[at]:
        counter, increment = increment, counter
    if counter.partition(":")[0] != arguments[at]:
        return None
    step = _scalar_constant(nodes, increment)
    return step if step is not None and step > 0 else None


CONTROL_FLOW: Mapping[
    str, Callable[[GraphDefReader, GraphDefScope, Any, Inputs, Sequence[TensorValue]], None]
] = {
    **dict.fromkeys(("While", "StatelessWhile"), _while),
    **dict.fromkeys(("If", "StatelessIf", "Case", "StatelessCase"), _branches),
}
"""How to read each op that calls functions, other than plain calls."""
