"""A call or control flow of a jaxpr in; the ops inside, or one op with their cost, out."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from placewright.frontends.graph_builder import Draft, Value
from placewright.frontends.jaxpr.kinds import tensor_of
from placewright.frontends.op_costs import Tensor
from placewright.graph import INPUT, WEIGHT, Op

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from placewright.frontends.jaxpr.frontend import Reader

SPREAD = ("elementwise", "cast")  # kinds of op that work on stacks part by part
MOST_UNROLLED = 20_000  # equations that one scan may become


def inlined(equation: Any) -> Any:
    """The jaxpr whose equations stand for a call, or None where an equation is no call."""
    for key in ("jaxpr", "call_jaxpr", "fun_jaxpr"):
        found = equation.params.get(key)
        inner = getattr(found, "jaxpr", found)
        if hasattr(inner, "eqns") and len(inner.invars) == len(equation.invars):
            same = len(inner.outvars) == len(equation.outvars)
            return found if same and _agree(equation.invars, inner.invars) else None
    return None


def _agree(atoms: Sequence[Any], variables: Sequence[Any]) -> bool:
    """Whether a call's arguments have the shapes of its inner jaxpr: not so under a mesh."""
    pairs = zip(atoms, variables, strict=True)
    return all(getattr(a.aval, "shape", 0) == getattr(v.aval, "shape", 0) for a, v in pairs)


def _size(jaxpr: Any) -> int:
    """How many equations a jaxpr becomes, calls inlined."""
    count = 0
    for equation in jaxpr.eqns:
        inner = [
            getattr(found, "jaxpr", found)
            for value in equation.params.values()
            for found in (value if isinstance(value, tuple | list) else (value,))
        ]
        count += max(1, sum(_size(found) for found in inner if hasattr(found, "eqns")))
    return count


def _body(
    reader: Reader, name: str, closed: Any, tensors: Sequence[Tensor], stack: str
) -> tuple[Draft, list[Tensor]]:
    """A jaxpr as a draft of its own, and what it makes."""
    child = reader.draft.child(name)
    inner = reader.inner(child)
    given = [child.add("given", INPUT, (), [tensor])[0] for tensor in tensors]
    jaxpr = getattr(closed, "jaxpr", closed)
    constants = inner.constants(closed) if hasattr(closed, "consts") else []
    made = inner.run(jaxpr, constants, given, stack)
    return child, [value.tensor for value in made]


def _scan(reader: Reader, equation: Any, inputs: Sequence[Value], stack: str) -> list[Value]:
    parameters = equation.params
    closed, length = parameters["jaxpr"], parameters["length"]
    fixed, carried = parameters["num_consts"], parameters["num_carry"]
    if 0 < length <= reader.unroll and length * _size(closed.jaxpr) <= MOST_UNROLLED:
        return _unrolled(reader, equation, inputs, stack)
    rows = [Tensor(v.tensor.shape[1:], v.tensor.dtype) for v in inputs[fixed + carried :]]
    states = [value.tensor for value in inputs[: fixed + carried]]
    child, made = _body(reader, "body", closed, [*states, *rows], stack)
    stacked = [Tensor((length, *row.shape), row.dtype) for row in made[carried:]]
    return _enclosed(reader, "scan", [(child, length)], inputs, [*made[:carried], *stacked], stack)


def _unrolled(reader: Reader, equation: Any, inputs: Sequence[Value], stack: str) -> list[Value]:
    """The steps of a scan one after the other."""
    parameters = equation.params
    closed, length = parameters["jaxpr"], parameters["length"]
    fixed, carried = parameters["num_consts"], parameters["num_carry"]
    constants = reader.constants(closed)
    shared, state = list(inputs[:fixed]), list(inputs[fixed : fixed + carried])
    scanned = inputs[fixed + carried :]
    rows: list[list[Value]] = []
    steps = range(length)
    for step in reversed(steps) if parameters["reverse"] else steps:
        cut = [_cut(reader, value, step, f"{stack}/step_{step}") for value in scanned]
        given = [*shared, *state, *cut]
        made = reader.run(closed.jaxpr, constants, given, f"{stack}/step_{step}")
        state = made[:carried]
        rows.append(made[carried:])
    if parameters["reverse"]:
        rows.reverse()
    stacked = [reader.stack(parts, stack) for parts in zip(*rows, strict=True)]
    return [*state, *stacked]


def _cut(reader: Reader, value: Value, step: int, stack: str) -> Value:
    """One step of what a scan scans over."""
    parts = reader.parts_of(value)
    if len(parts) > 1:
        return parts[step]
    tensor = Tensor(value.tensor.shape[1:], value.tensor.dtype)
    if value.source is None:
        return Value(None, tensor)
    name = f"{reader.draft.ops[value.source[0]].name}[{step}]"
    made = reader.view(value, tensor, name, stack)
    if made.source is not None:
        reader.slices[made.source[0]] = (value.source[0], step)
    return made


def spread(
    reader: Reader,
    name: str,
    kind: str,
    inputs: Sequence[Value],
    outputs: Sequence[Tensor],
    stack: str,
) -> Value | None:
    """An element-wise op on stacks, part by part; None where it reads no stack or other shapes.

    So the update of stacked weights by stacked gradients does not need the stacks.
    """
    [tensor] = outputs
    if not any(len(reader.parts_of(v)) > 1 for v in inputs):
        return None
    if any(v.tensor.shape != tensor.shape and v.tensor.elements != 1 for v in inputs):
        return None
    part = Tensor(tensor.shape[1:], tensor.dtype)
    made = []
    for step in range(tensor.shape[0]):
        inside = f"{stack}/step_{step}"
        whole = [v.tensor.shape == tensor.shape for v in inputs]
        cut = [
            _cut(reader, v, step, inside) if stacked else v
            for v, stacked in zip(inputs, whole, strict=True)
        ]
        made += reader.draft.add(name, kind, cut, [part], **reader.place(cut, inside))
    return reader.stack(made, stack)


def split_stacks(draft: Draft, slices: Mapping[int, tuple[int, int]]) -> set[int]:
    """Make weights that are only read step by step one weight a step; gives those split up."""
    readers: dict[int, list[int]] = {}
    for position, op in enumerate(draft.ops):
        for source, _ in op.inputs:
            readers.setdefault(source, []).append(position)
    split = set()
    for position, op in enumerate(draft.ops):
        reading = readers.get(position, [])
        if op.kind != WEIGHT or not reading or any(reader not in slices for reader in reading):
            continue
        split.add(position)
        first: dict[int, int] = {}
        for reader in reading:
            step = slices[reader][1]
            cut = draft.ops[reader]
            if step in first:
                draft.ops[reader] = replace(cut, inputs=((first[step], 0),))
                continue
            first[step] = reader
            draft.ops[reader] = Op(
                cut.name, WEIGHT, outputs=cut.outputs, dtype=op.dtype, module=op.module
            )
    return split


def _while(reader: Reader, equation: Any, inputs: Sequence[Value], stack: str) -> list[Value]:
    parameters = equation.params
    asked, fixed = parameters["cond_nconsts"], parameters["body_nconsts"]
    tensors = [value.tensor for value in inputs]
    states = tensors[asked + fixed :]
    condition, _ = _body(
        reader, "condition", parameters["cond_jaxpr"], [*tensors[:asked], *states], stack
    )
    body, made = _body(reader, "body", parameters["body_jaxpr"], tensors[asked:], stack)
    trips = _trips(parameters, inputs)
    bodies = [(body, 1 if trips is None else trips), (condition, 1 if trips is None else trips + 1)]
    values = _enclosed(reader, "while", bodies, inputs, made, stack)
    if trips is None:
        reader.draft.untimed.append(reader.draft.ops[-1].name)
    return values


def _trips(parameters: Mapping[str, Any], inputs: Sequence[Value]) -> int | None:
    """How often a loop runs that counts up from a constant to a constant; None otherwise."""
    asked, fixed = parameters["cond_nconsts"], parameters["body_nconsts"]
    condition, body = parameters["cond_jaxpr"].jaxpr, parameters["body_jaxpr"].jaxpr
    state = inputs[asked + fixed :]
    if len(condition.eqns) != 1 or condition.eqns[0].primitive.name not in ("lt", "le"):
        return None
    [test] = condition.eqns
    if test.outvars[0] is not condition.outvars[0]:
        return None
    counter, limit = test.invars

    def carry(variable: Any) -> int | None:
        """Which part of the loop's state a variable of the condition is."""
        places = {id(v): at for at, v in enumerate(condition.invars[asked:])}
        return places.get(id(variable))

    at = carry(counter)
    start = None if at is None else _number(state[at].constant)
    if at is None or start is None:
        return None
    bound: Any = None
    if hasattr(limit, "val"):
        bound = limit.val
    elif (held := carry(limit)) is not None:
        if body.outvars[held] is body.invars[fixed + held]:  # no trip changes it
            bound = state[held].constant
    else:
        bound = next(
            (
                v.constant
                for v, c in zip(inputs, condition.invars[:asked], strict=False)
                if c is limit
            ),
            None,
        )
    step = _step(body, body.invars[fixed + at], body.outvars[at])
    end = _number(bound)
    if end is None or not step or step < 0:
        return None
    reach = end - start + (1 if test.primitive.name == "le" else 0)
    return max(0, math.ceil(reach / step))


def _step(body: Any, before: Any, after: Any) -> float | None:
    """What a trip adds to its counter."""
    for equation in body.eqns:
        if equation.outvars[0] is after and equation.primitive.name == "add":
            first, second = equation.invars
            if first is before and hasattr(second, "val"):
                return _number(second.val)
            if second is before and hasattr(first, "val"):
                return _number(first.val)
    return None


def _number(value: Any) -> float | None:
    return float(value) if value is not None and math.isfinite(value) else None


def _cond(reader: Reader, equation: Any, inputs: Sequence[Value], stack: str) -> list[Value]:
    branches = equation.params["branches"]
    index, *given = inputs
    if index.constant is not None:
        at = min(max(int(index.constant), 0), len(branches) - 1)
        return reader.run(branches[at].jaxpr, reader.constants(branches[at]), given, stack)
    tensors = [value.tensor for value in given]
    drafts = [
        _body(reader, f"branch_{at}", branch, tensors, stack) for at, branch in enumerate(branches)
    ]
    drafts.sort(key=lambda pair: (pair[0].flops, pair[0].moved), reverse=True)
    bodies = [(draft, 1 if at == 0 else 0) for at, (draft, _) in enumerate(drafts)]
    return _enclosed(reader, "cond", bodies, inputs, drafts[0][1], stack)


def _mesh(reader: Reader, equation: Any, inputs: Sequence[Value], stack: str) -> list[Value]:
    """A function of the shards of a mesh, once for each device of the mesh."""
    inner = equation.params["jaxpr"]
    shards = [tensor_of("shard", variable.aval) for variable in inner.invars]
    child, _ = _body(reader, "shards", inner, shards, stack)
    outputs = [tensor_of("shard_map", variable.aval) for variable in equation.outvars]
    count = int(equation.params["mesh"].size)
    return _enclosed(reader, "shard_map", [(child, count)], inputs, outputs, stack)


def _enclosed(
    reader: Reader,
    name: str,
    bodies: Sequence[tuple[Draft, int]],
    inputs: Sequence[Value],
    outputs: Sequence[Tensor],
    stack: str,
) -> list[Value]:
    place = reader.place(inputs, stack)
    return reader.draft.enclose(name, bodies, inputs, outputs, **place)


FLOW: Mapping[str, Callable[[Reader, Any, Sequence[Value], str], list[Value]]] = {
    "scan": _scan,
    "while": _while,
    "cond": _cond,
    "shard_map": _mesh,
}
"""How to read each primitive that holds jaxprs and is no plain call."""
