"""A JAX function and the shapes of its arguments in, a Graph out.

The function is traced, never run: arguments may be arrays, `jax.ShapeDtypeStruct`s, or trees of
them. Nested calls are inlined. Of control flow,

- a `scan` of few steps becomes its ops, step by step; what it scans over is cut into views, and a
  weight that is read in no other way is one weight a step, so that layers stacked for a scan can
  be placed apart. A longer scan is one op that costs its body times its length;
- a `while` is one op: its body and condition times the trips, where they can be told (a counter
  against a constant); otherwise it costs one trip and is listed;
- a `cond` costs its costlier branch, or is the branch that a known index picks.

What comes from differentiating backwards is of phase "backward"; what depends on that and is not
itself part of a differentiated function is of phase "update".
"""

from __future__ import annotations

import inspect
import re
import traceback
from typing import TYPE_CHECKING, Any

from placewright.errors import GraphError, MissingDependency, nearest
from placewright.frontends.graph_builder import (
    Draft,
    Value,
    first_line,
)
from placewright.frontends.jaxpr.control_flow import (
    FLOW,
    SPREAD,
    inlined,
    split_stacks,
    spread,
)
from placewright.frontends.jaxpr.kinds import (
    FOLDED,
    PASSING,
    describe,
    small,
    tensor_of,
)
from placewright.frontends.op_costs import Tensor
from placewright.graph import INPUT, VIEW, WEIGHT, Graph

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence


def from_jax(
    function: Callable[..., Any],
    *args: Any,
    name: str | None = None,
    weights: Sequence[int | str] = (),
    unroll: int = 64,
    **kwargs: Any,
) -> Graph:
    """The graph of one call of a function.

    Args:
        args: Arrays or shapes, as the function takes them.
        weights: Which arguments, by place or by name, are weights; the others are inputs. Arrays
            that the function closes over are weights too.
        unroll: The most steps of a scan that become ops of their own.
        kwargs: The function's own keywords; wrap one that is called `name`, `weights` or `unroll`.

    Raises:
        GraphError: The function cannot be traced with these arguments.
    """
    try:
        import jax
    except ImportError:
        raise MissingDependency("jax", "jax") from None
    name = str(name or getattr(function, "__name__", type(function).__name__))
    if not callable(function):
        raise GraphError(f"from_jax was given {type(function).__name__!r}: expected a function")
    try:
        closed = jax.make_jaxpr(function)(*args, **kwargs)
    except Exception as error:  # whatever the user's function raises
        raise GraphError(
            f"function {name!r} cannot be traced{_where(error)}: {first_line(error)}"
        ) from error
    draft = Draft(name, "jax")
    reader = Reader(draft, unroll)
    given = []
    leaves = _leaves(function, args, kwargs, weights)
    for (path, stored), variable in zip(leaves, closed.jaxpr.invars, strict=True):
        kind, module = (WEIGHT, path.rpartition(".")[0]) if stored else (INPUT, "")
        given += draft.add(path, kind, (), [tensor_of(path, variable.aval)], module=module)
    kept = set(range(len(draft.ops)))
    made = reader.run(closed.jaxpr, reader.constants(closed), given)
    ends = [part for value in made for part in reader.parts_of(reader.held(value))]
    return draft.graph(ends, kept - split_stacks(draft, reader.slices))


def _where(error: BaseException) -> str:
    """The last line of the user's own that an error went through."""
    frames = traceback.extract_tb(error.__traceback__)
    own = [
        frame
        for frame in frames
        if "site-packages" not in frame.filename and frame.filename != __file__
    ]
    return f" at line {own[-1].lineno} of {own[-1].filename!r}" if own else ""


def _leaves(
    function: Callable[..., Any], args: Any, kwargs: Any, weights: Sequence[int | str]
) -> list[tuple[str, bool]]:
    """The name of each array among the arguments, and whether it is a weight."""
    from jax import tree_util

    try:
        names = list(inspect.signature(function).bind_partial(*args).arguments)
    except (TypeError, ValueError):
        names = []
    names += [f"argument_{at}" for at in range(len(names), len(args))]
    chosen = set()
    for which in weights:
        known = [*names[: len(args)], *kwargs]
        if isinstance(which, int) and 0 <= which < len(args):
            chosen.add(names[which])
        elif which in known:
            chosen.add(str(which))
        elif isinstance(which, int):
            raise GraphError(f"weights has {which}: the function is given {len(args)} arguments")
        else:
            raise GraphError(f"weights has {which!r}: {nearest(str(which), known)}")
    found = []
    for holder, key in [(args, at) for at in range(len(args))] + [
        (kwargs, k) for k in sorted(kwargs)
    ]:
        label = names[key] if isinstance(key, int) else key
        for path, _ in tree_util.tree_flatten_with_path(holder[key])[0]:
            steps = [re.sub(r"^[.\[]?['\"]?|['\"]?\]?$", "", str(step)) for step in path]
            found.append((".".join([label, *steps]), label in chosen))
    return found


class Reader:
    """Reads jaxprs into a draft.

    Args:
        slices: For each view of one step of a scan, what it is cut from and which step it is.
        parts: For each op that stacks what the steps of a scan make, those parts. It stays only
            if something needs the stack: readers that work step by step read the parts.
    """

    def __init__(self, draft: Draft, unroll: int) -> None:
        self.draft = draft
        self.unroll = unroll
        self.slices: dict[int, tuple[int, int]] = {}
        self.parts: dict[int, list[Value]] = {}
        self.stored: dict[int, Value] = {}

    def inner(self, draft: Draft) -> Reader:
        """A reader for a subgraph that is to become one op."""
        return Reader(draft, 0)

    def constants(self, closed: Any) -> list[Value]:
        """The arrays that a jaxpr closes over, each one weight."""
        values = []
        for constant, variable in zip(closed.consts, closed.jaxpr.constvars, strict=True):
            array = id(getattr(constant, "val", constant))  # jax may wrap it anew for each use
            if array not in self.stored:
                tensor = tensor_of("constant", variable.aval)
                [value] = self.draft.add("constant", WEIGHT, (), [tensor])
                self.stored[array] = value._replace(constant=small(constant, tensor))
            values.append(self.stored[array])
        return values

    def held(self, value: Value) -> Value:
        """A value that an op makes: a literal becomes a weight."""
        if value.source is None:
            return self.draft.add("literal", WEIGHT, (), [value.tensor])[0]
        return value

    def run(
        self, jaxpr: Any, constants: Sequence[Value], given: Sequence[Value], stack: str = ""
    ) -> list[Value]:
        """Add the equations of a jaxpr and give its results."""
        values = dict(zip(jaxpr.constvars, constants, strict=True))
        values.update(zip(jaxpr.invars, given, strict=True))

        def value_of(atom: Any) -> Value:
            if hasattr(atom, "val"):
                tensor = tensor_of("literal", atom.aval)
                return Value(None, tensor, small(atom.val, tensor))
            held: Value = values[atom]
            return held

        for equation in jaxpr.eqns:
            inputs = [value_of(atom) for atom in equation.invars]
            inside = f"{stack}/{equation.source_info.name_stack}"
            made = self.equation(equation, inputs, inside)
            values.update(zip(equation.outvars, made, strict=True))
        return [value_of(atom) for atom in jaxpr.outvars]

    def equation(self, equation: Any, inputs: Sequence[Value], stack: str) -> list[Value]:
        name = equation.primitive.name
        if name in FLOW:
            return FLOW[name](self, equation, inputs, stack)
        closed = inlined(equation)
        if closed is not None:
            jaxpr = getattr(closed, "jaxpr", closed)
            constants = self.constants(closed) if hasattr(closed, "consts") else []
            return self.run(jaxpr, constants, inputs, stack)
        outputs = [tensor_of(name, variable.aval) for variable in equation.outvars]
        tensors = [value.tensor for value in inputs]
        numbers = [value.constant for value in inputs]
        if name in FOLDED and None not in numbers and outputs[0].elements == 1:
            return [Value(None, outputs[0], FOLDED[name](*numbers))]
        kind, more = describe(name, equation.params, tensors, outputs)
        if kind in SPREAD and not name.startswith("cum"):  # which work along a dimension
            whole = spread(self, name, kind, inputs, outputs, stack)
            if whole is not None:
                return [whole]
        if name in PASSING:
            more["aliases"] = [(at, at) for at in range(len(outputs))]
        if name == "dynamic_update_slice":  # what is written goes last
            inputs = [inputs[0], *inputs[2:], inputs[1]]
        return self.draft.add(
            name, kind or self.draft.own(name), inputs, outputs, **more, **self.place(inputs, stack)
        )

    def place(self, inputs: Sequence[Value], stack: str) -> dict[str, Any]:
        """The module and phase of an op, by the name stack it was traced under."""
        plain = re.sub(r"\b\w+\(|\)", "", stack)
        phase = "forward"
        if "transpose(" in stack:
            phase = "backward"
        elif "jvp(" not in stack:
            phases = {self.draft.ops[value.source[0]].phase for value in inputs if value.source}
            phase = "update" if phases & {"backward", "update"} else "forward"
        return {"module": ".".join(filter(None, plain.split("/"))), "phase": phase}

    def parts_of(self, value: Value) -> list[Value]:
        """What a stack was made of; anything else is its own only part."""
        return self.parts.get(value.source[0], [value]) if value.source else [value]

    def stack(self, parts: Sequence[Value], stack: str) -> Value:
        """The parts of what a scan makes, as one."""
        held = [self.held(part) for part in parts]
        tensor = Tensor((len(held), *held[0].tensor.shape), held[0].tensor.dtype)
        [made] = self.draft.add("stack", "concat", held, [tensor], **self.place(held, stack))
        self.parts[len(self.draft.ops) - 1] = held
        return made

    def view(self, value: Value, tensor: Tensor, name: str, stack: str) -> Value:
        [made] = self.draft.add(name, VIEW, [value], [tensor], **self.place([value], stack))
        return made
