"""Reads the calls and control flow of a jaxpr: inlines them, or adds one op with their cost."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from placewright.frontends.graph_builder import GraphBuilder, TensorValue
from placewright.frontends.jaxpr.op_rules import tensor_of
from placewright.frontends.op_costs import TensorSpec
from placewright.graph import INPUT, WEIGHT, Op

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from placewright.frontends.jaxpr.frontend import JaxprReader

STEPWISE_KINDS = ("elementwise", "cast")  # kinds that can be applied to each step of a stack
MAX_UNROLLED = 20_000  # equations of one unrolled scan


def inlined_jaxpr(equation: Any) -> Any:
    """The jaxpr that a call can be replaced by, or None if an equation is not a call."""
    for key in ("jaxpr", "call_jaxpr", "fun_jaxpr"):
        candidate = equation.params.get(key)
        jaxpr = getattr(candidate, "jaxpr", candidate)
        if hasattr(jaxpr, "eqns") and len(jaxpr.invars) == len(equation.invars):
            outputs_match = len(jaxpr.outvars) == len(equation.outvars)
            return (
                candidate
                if outputs_match and _shapes_agree(equation.invars, jaxpr.invars)
                else None
            )
    return None


def _shapes_agree(atoms: Sequence[Any], variables: Sequence[Any]) -> bool:
    """Whether arguments and inner jaxpr have the same shapes; under a mesh they do not."""
    pairs = zip(atoms, variables, strict=True)
    return all(getattr(a.aval, "shape", 0) == getattr(v.aval, "shape", 0) for a, v in pairs)


def _equation_count(jaxpr: Any) -> int:
    """The number of equations of a jaxpr with its calls inlined."""
    count = 0
    for equation in jaxpr.eqns:
        jaxprs = [
            getattr(nested, "jaxpr", nested)
            for value in equation.params.values()
            for nested in (value if isinstance(value, tuple | list) else (value,))
        ]
        count += max(
            1, sum(_equation_count(nested) for nested in jaxprs if hasattr(nested, "eqns"))
        )
    return count


def _build_body(
    reader: JaxprReader,
    name: str,
    closed_jaxpr: Any,
    tensors: Sequence[TensorSpec],
    name_stack: str,
) -> tuple[GraphBuilder, list[TensorSpec]]:
    """A child builder with the ops of a jaxpr, and its outputs."""
    child = reader.builder.child(name)
    child_reader = reader.child_reader(child)
    arguments = [child.add("given", INPUT, (), [tensor])[0] for tensor in tensors]
    jaxpr = getattr(closed_jaxpr, "jaxpr", closed_jaxpr)
    constants = child_reader.add_constants(closed_jaxpr) if hasattr(closed_jaxpr, "consts") else []
    results = child_reader.add_jaxpr(jaxpr, constants, arguments, name_stack)
    return child, [value.tensor for value in results]


def _scan(
    reader: JaxprReader, equation: Any, inputs: Sequence[TensorValue], name_stack: str
) -> list[TensorValue]:
    parameters = equation.params
    closed_jaxpr, length = parameters["jaxpr"], parameters["length"]
    constant_count, carry_count = parameters["num_consts"], parameters["num_carry"]
    if 0 < length <= reader.unroll and length * _equation_count(closed_jaxpr.jaxpr) <= MAX_UNROLLED:
        return _unroll_scan(reader, equation, inputs, name_stack)
    rows = [
        TensorSpec(v.tensor.shape[1:], v.tensor.dtype)
        for v in inputs[constant_count + carry_count :]
    ]
    states = [value.tensor for value in inputs[: constant_count + carry_count]]
    child, outputs = _build_body(reader, "body", closed_jaxpr, [*states, *rows], name_stack)
    stacked_outputs = [TensorSpec((length, *row.shape), row.dtype) for row in outputs[carry_count:]]
    return _add_subgraph(
        reader,
        "scan",
        [(child, length)],
        inputs,
        [*outputs[:carry_count], *stacked_outputs],
        name_stack,
    )


def _unroll_scan(
    reader: JaxprReader, equation: Any, inputs: Sequence[TensorValue], name_stack: str
) -> list[TensorValue]:
    """Add the steps of a scan one after the other."""
    parameters = equation.params
    closed_jaxpr, length = parameters["jaxpr"], parameters["length"]
    constant_count, carry_count = parameters["num_consts"], parameters["num_carry"]
    constants = reader.add_constants(closed_jaxpr)
    shared, state = (
        list(inputs[:constant_count]),
        list(inputs[constant_count : constant_count + carry_count]),
    )
    scanned = inputs[constant_count + carry_count :]
    rows: list[list[TensorValue]] = []
    steps = range(length)
    for step in reversed(steps) if parameters["reverse"] else steps:
        slices = [
            _step_slice(reader, value, step, f"{name_stack}/step_{step}") for value in scanned
        ]
        arguments = [*shared, *state, *slices]
        results = reader.add_jaxpr(
            closed_jaxpr.jaxpr, constants, arguments, f"{name_stack}/step_{step}"
        )
        state = results[:carry_count]
        rows.append(results[carry_count:])
    if parameters["reverse"]:
        rows.reverse()
    stacked_outputs = [reader.add_stack(parts, name_stack) for parts in zip(*rows, strict=True)]
    return [*state, *stacked_outputs]


def _step_slice(reader: JaxprReader, value: TensorValue, step: int, name_stack: str) -> TensorValue:
    """One step of a scanned value."""
    parts = reader.parts_of(value)
    if len(parts) > 1:
        return parts[step]
    tensor = TensorSpec(value.tensor.shape[1:], value.tensor.dtype)
    if value.source is None:
        return TensorValue(None, tensor)
    name = f"{reader.builder.ops[value.source[0]].name}[{step}]"
    view = reader.add_view(value, tensor, name, name_stack)
    if view.source is not None:
        reader.step_slices[view.source[0]] = (value.source[0], step)
    return view


def apply_stepwise(
    reader: JaxprReader,
    name: str,
    kind: str,
    inputs: Sequence[TensorValue],
    outputs: Sequence[TensorSpec],
    name_stack: str,
) -> TensorValue | None:
    """An element-wise op on stacks, step by step; None if it reads no stack or other shapes.

    The update of stacked weights by stacked gradients then needs no stacked tensor.
    """
    [tensor] = outputs
    if not any(len(reader.parts_of(v)) > 1 for v in inputs):
        return None
    if any(v.tensor.shape != tensor.shape and v.tensor.elements != 1 for v in inputs):
        return None
    part_spec = TensorSpec(tensor.shape[1:], tensor.dtype)
    step_outputs = []
    for step in range(tensor.shape[0]):
        inner_stack = f"{name_stack}/step_{step}"
        stack_flags = [v.tensor.shape == tensor.shape for v in inputs]
        step_inputs = [
            _step_slice(reader, v, step, inner_stack) if stacked else v
            for v, stacked in zip(inputs, stack_flags, strict=True)
        ]
        step_outputs += reader.builder.add(
            name, kind, step_inputs, [part_spec], **reader.op_context(step_inputs, inner_stack)
        )
    return reader.add_stack(step_outputs, name_stack)


def split_stacked_weights(builder: GraphBuilder, slices: Mapping[int, tuple[int, int]]) -> set[int]:
    """Split weights that are only read step by step into one per step; return those split."""
    readers: dict[int, list[int]] = {}
    for position, op in enumerate(builder.ops):
        for source, _ in op.inputs:
            readers.setdefault(source, []).append(position)
    split_weights = set()
    for position, op in enumerate(builder.ops):
        op_readers = readers.get(position, [])
        if (
            op.kind != WEIGHT
            or not op_readers
            or any(reader not in slices for reader in op_readers)
        ):
            continue
        split_weights.add(position)
        first_readers: dict[int, int] = {}
        for reader in op_readers:
            step = slices[reader][1]
            slice_op = builder.ops[reader]
            if step in first_readers:
                builder.ops[reader] = replace(slice_op, inputs=((first_readers[step], 0),))
                continue
            first_readers[step] = reader
            builder.ops[reader] = Op(
                slice_op.name, WEIGHT, outputs=slice_op.outputs, dtype=op.dtype, module=op.module
            )
    return split_weights


def _while(
    reader: JaxprReader, equation: Any, inputs: Sequence[TensorValue], name_stack: str
) -> list[TensorValue]:
    parameters = equation.params
    condition_count, body_count = parameters["cond_nconsts"], parameters["body_nconsts"]
    tensors = [value.tensor for value in inputs]
    states = tensors[condition_count + body_count :]
    condition, _ = _build_body(
        reader,
        "condition",
        parameters["cond_jaxpr"],
        [*tensors[:condition_count], *states],
        name_stack,
    )
    body, outputs = _build_body(
        reader, "body", parameters["body_jaxpr"], tensors[condition_count:], name_stack
    )
    trips = _trip_count(parameters, inputs)
    bodies = [(body, 1 if trips is None else trips), (condition, 1 if trips is None else trips + 1)]
    values = _add_subgraph(reader, "while", bodies, inputs, outputs, name_stack)
    if trips is None:
        reader.builder.unbounded_loops.append(reader.builder.ops[-1].name)
    return values


def _trip_count(loop_params: Mapping[str, Any], inputs: Sequence[TensorValue]) -> int | None:
    """The trip count of a loop that counts up from a constant to a constant, or None."""
    condition_count, body_count = loop_params["cond_nconsts"], loop_params["body_nconsts"]
    condition, body = loop_params["cond_jaxpr"].jaxpr, loop_params["body_jaxpr"].jaxpr
    state = inputs[condition_count + body_count :]
    if len(condition.eqns) != 1 or condition.eqns[0].primitive.name not in ("lt", "le"):
        return None
    [test] = condition.eqns
    if test.outvars[0] is not condition.outvars[0]:
        return None
    counter, limit = test.invars

    def carry(variable: Any) -> int | None:
        """The index of a variable of the condition in the loop's state."""
        positions = {id(v): at for at, v in enumerate(condition.invars[condition_count:])}
        return positions.get(id(variable))

    counter_index = carry(counter)
    start = None if counter_index is None else _finite_number(state[counter_index].constant)
    if counter_index is None or start is None:
        return None
    limit_value: Any = None
    if hasattr(limit, "val"):
        limit_value = limit.val
    elif (limit_index := carry(limit)) is not None:
        if (
            body.outvars[limit_index] is body.invars[body_count + limit_index]
        ):  # the body does not change it
            limit_value = state[limit_index].constant
    else:
        limit_value = next(
            (
                v.constant
                for v, c in zip(inputs, condition.invars[:condition_count], strict=False)
                if c is limit
            ),
            None,
        )
    step = _counter_step(body, body.invars[body_count + counter_index], body.outvars[counter_index])
    end = _finite_number(limit_value)
    if end is None or not step or step < 0:
        return None
    distance = end - start + (1 if test.primitive.name == "le" else 0)
    return max(0, math.ceil(distance / step))


def _counter_step(body: Any, counter_in: Any, counter_out: Any) -> float | None:
    """The increment of the counter per trip."""
    for equation in body.eqns:
        if equation.outvars[0] is counter_out and equation.primitive.name == "add":
            lhs, rhs = equation.invars
            if lhs is counter_in and hasattr(rhs, "val"):
                return _finite_number(rhs.val)
            if rhs is counter_in and hasattr(lhs, "val"):
                return _finite_number(lhs.val)
    return None


def _finite_number(value: Any) -> float | None:
    return float(value) if value is not None and math.isfinite(value) else None


def _cond(
    reader: JaxprReader, equation: Any, inputs: Sequence[TensorValue], name_stack: str
) -> list[TensorValue]:
    branches = equation.params["branches"]
    index, *arguments = inputs
    if index.constant is not None:
        at = min(max(int(index.constant), 0), len(branches) - 1)
        return reader.add_jaxpr(
            branches[at].jaxpr, reader.add_constants(branches[at]), arguments, name_stack
        )
    tensors = [value.tensor for value in arguments]
    candidates = [
        _build_body(reader, f"branch_{at}", branch, tensors, name_stack)
        for at, branch in enumerate(branches)
    ]
    candidates.sort(key=lambda pair: (pair[0].flops, pair[0].bytes_moved), reverse=True)
    bodies = [(builder, 1 if at == 0 else 0) for at, (builder, _) in enumerate(candidates)]
    return _add_subgraph(reader, "cond", bodies, inputs, candidates[0][1], name_stack)


def _shard_map(
    reader: JaxprReader, equation: Any, inputs: Sequence[TensorValue], name_stack: str
) -> list[TensorValue]:
    """A function of the shards of a mesh, which runs once per device of the mesh."""
    inner = equation.params["jaxpr"]
    shards = [tensor_of("shard", variable.aval) for variable in inner.invars]
    child, _ = _build_body(reader, "shards", inner, shards, name_stack)
    outputs = [tensor_of("shard_map", variable.aval) for variable in equation.outvars]
    count = int(equation.params["mesh"].size)
    return _add_subgraph(reader, "shard_map", [(child, count)], inputs, outputs, name_stack)


def _add_subgraph(
    reader: JaxprReader,
    name: str,
    bodies: Sequence[tuple[GraphBuilder, int]],
    inputs: Sequence[TensorValue],
    outputs: Sequence[TensorSpec],
    name_stack: str,
) -> list[TensorValue]:
    context = reader.op_context(inputs, name_stack)
    return reader.builder.add_subgraph(name, bodies, inputs, outputs, **context)


CONTROL_FLOW: Mapping[
    str, Callable[[JaxprReader, Any, Sequence[TensorValue], str], list[TensorValue]]
] = {
    "scan": _scan,
    "while": _while,
    "cond": _cond,
    "shard_map": _shard_map,
}
"""How to read each primitive that contains jaxprs, other than plain calls."""
