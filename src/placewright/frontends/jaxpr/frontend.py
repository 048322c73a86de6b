"""Traces a JAX function and reads its jaxpr as a Graph.

The function is traced, never run: arguments may be arrays, `jax.ShapeDtypeStruct`s, or pytrees of
them. Nested calls are inlined. Control flow:

- a `scan` of few steps is unrolled; the scanned values are cut into views, and a weight that is
  read in no other way becomes one weight per step, so that layers stacked for a scan can be placed
  on different devices. A longer scan is one op that costs its body times its length;
- a `while` is one op: its body and condition times the trip count, if that is known (a counter
  against a constant); otherwise it costs one trip and a warning lists it;
- a `cond` costs its most expensive branch, or is the branch that a known index selects.

Ops of reverse-mode differentiation have the phase "backward"; ops that depend on them and are not
part of a differentiated function have the phase "update".
"""

from __future__ import annotations

import inspect
import re
import traceback
from typing import TYPE_CHECKING, Any

from placewright.errors import GraphError, MissingDependency, nearest
from placewright.frontends.graph_builder import (
    GraphBuilder,
    TensorValue,
    first_line,
)
from placewright.frontends.jaxpr.control_flow import (
    CONTROL_FLOW,
    STEPWISE_KINDS,
    apply_stepwise,
    inlined_jaxpr,
    split_stacked_weights,
)
from placewright.frontends.jaxpr.op_rules import (
    CONSTANT_FOLDS,
    PASS_THROUGH,
    describe,
    scalar_constant,
    tensor_of,
)
from placewright.frontends.op_costs import TensorSpec
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
        weights: The arguments that are weights, by position or name; the others are inputs. Arrays
            that the function closes over are weights too.
        unroll: Scans of at most this many steps are unrolled.
        kwargs: The function's keyword arguments; wrap a function whose own are called `name`,
            `weights` or `unroll`.

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
        closed_jaxpr = jax.make_jaxpr(function)(*args, **kwargs)
    except Exception as error:  # whatever the user's function raises
        raise GraphError(
            f"function {name!r} cannot be traced{_user_line(error)}: {first_line(error)}"
        ) from error
    builder = GraphBuilder(name, "jax")
    reader = JaxprReader(builder, unroll)
    inputs = []
    leaves = _argument_leaves(function, args, kwargs, weights)
    for (path, is_weight), variable in zip(leaves, closed_jaxpr.jaxpr.invars, strict=True):
        kind, module = (WEIGHT, path.rpartition(".")[0]) if is_weight else (INPUT, "")
        inputs += builder.add(path, kind, (), [tensor_of(path, variable.aval)], module=module)
    source_positions = set(range(len(builder.ops)))
    results = reader.add_jaxpr(closed_jaxpr.jaxpr, reader.add_constants(closed_jaxpr), inputs)
    outputs = [part for value in results for part in reader.parts_of(reader.materialize(value))]
    return builder.graph(
        outputs, source_positions - split_stacked_weights(builder, reader.step_slices)
    )


def _user_line(error: BaseException) -> str:
    """The last line of the user's code in an error's traceback."""
    frames = traceback.extract_tb(error.__traceback__)
    user_frames = [
        frame
        for frame in frames
        if "site-packages" not in frame.filename and frame.filename != __file__
    ]
    return (
        f" at line {user_frames[-1].lineno} of {user_frames[-1].filename!r}" if user_frames else ""
    )


def _argument_leaves(
    function: Callable[..., Any], args: Any, kwargs: Any, weights: Sequence[int | str]
) -> list[tuple[str, bool]]:
    """The name of each array among the arguments, and whether it is a weight."""
    from jax import tree_util

    try:
        names = list(inspect.signature(function).bind_partial(*args).arguments)
    except (TypeError, ValueError):
        names = []
    names += [f"argument_{at}" for at in range(len(names), len(args))]
    weight_names = set()
    for argument in weights:
        known_names = [*names[: len(args)], *kwargs]
        if isinstance(argument, int) and 0 <= argument < len(args):
            weight_names.add(names[argument])
        elif argument in known_names:
            weight_names.add(str(argument))
        elif isinstance(argument, int):
            raise GraphError(f"weights has {argument}: the function is given {len(args)} arguments")
        else:
            raise GraphError(f"weights has {argument!r}: {nearest(str(argument), known_names)}")
    leaves = []
    for container, key in [(args, at) for at in range(len(args))] + [
        (kwargs, k) for k in sorted(kwargs)
    ]:
        label = names[key] if isinstance(key, int) else key
        for path, _ in tree_util.tree_flatten_with_path(container[key])[0]:
            steps = [re.sub(r"^[.\[]?['\"]?|['\"]?\]?$", "", str(step)) for step in path]
            leaves.append((".".join([label, *steps]), label in weight_names))
    return leaves


class JaxprReader:
    """Reads jaxprs into a GraphBuilder.

    Attributes:
        step_slices: For each view of one step of a scan, the sliced op and the step.
        stack_parts: For each op that stacks the outputs of a scan's steps, these outputs. The op
            stays only if something reads the stack: stepwise readers read the parts.
    """

    def __init__(self, builder: GraphBuilder, unroll: int) -> None:
        self.builder = builder
        self.unroll = unroll
        self.step_slices: dict[int, tuple[int, int]] = {}
        self.stack_parts: dict[int, list[TensorValue]] = {}
        self.weights_by_id: dict[int, TensorValue] = {}

    def child_reader(self, builder: GraphBuilder) -> JaxprReader:
        """A reader for a subgraph that becomes one op."""
        return JaxprReader(builder, 0)

    def add_constants(self, closed_jaxpr: Any) -> list[TensorValue]:
        """Add the arrays that a jaxpr closes over, as weights."""
        values = []
        for constant, variable in zip(
            closed_jaxpr.consts, closed_jaxpr.jaxpr.constvars, strict=True
        ):
            array_id = id(getattr(constant, "val", constant))  # jax may wrap it again for each use
            if array_id not in self.weights_by_id:
                tensor = tensor_of("constant", variable.aval)
                [value] = self.builder.add("constant", WEIGHT, (), [tensor])
                self.weights_by_id[array_id] = value._replace(
                    constant=scalar_constant(constant, tensor)
                )
            values.append(self.weights_by_id[array_id])
        return values

    def materialize(self, value: TensorValue) -> TensorValue:
        """The value, with a literal turned into a weight."""
        if value.source is None:
            return self.builder.add("literal", WEIGHT, (), [value.tensor])[0]
        return value

    def add_jaxpr(
        self,
        jaxpr: Any,
        constants: Sequence[TensorValue],
        arguments: Sequence[TensorValue],
        name_stack: str = "",
    ) -> list[TensorValue]:
        """Add the equations of a jaxpr and return its outputs."""
        values = dict(zip(jaxpr.constvars, constants, strict=True))
        values.update(zip(jaxpr.invars, arguments, strict=True))

        def value_of(atom: Any) -> TensorValue:
            if hasattr(atom, "val"):
                tensor = tensor_of("literal", atom.aval)
                return TensorValue(None, tensor, scalar_constant(atom.val, tensor))
            value: TensorValue = values[atom]
            return value

        for equation in jaxpr.eqns:
            inputs = [value_of(atom) for atom in equation.invars]
            inner_stack = f"{name_stack}/{equation.source_info.name_stack}"
            outputs = self.add_equation(equation, inputs, inner_stack)
            values.update(zip(equation.outvars, outputs, strict=True))
        return [value_of(atom) for atom in jaxpr.outvars]

    def add_equation(
        self, equation: Any, inputs: Sequence[TensorValue], name_stack: str
    ) -> list[TensorValue]:
        name = equation.primitive.name
        if name in CONTROL_FLOW:
            return CONTROL_FLOW[name](self, equation, inputs, name_stack)
        closed_jaxpr = inlined_jaxpr(equation)
        if closed_jaxpr is not None:
            jaxpr = getattr(closed_jaxpr, "jaxpr", closed_jaxpr)
            constants = self.add_constants(closed_jaxpr) if hasattr(closed_jaxpr, "consts") else []
            return self.add_jaxpr(jaxpr, constants, inputs, name_stack)
        outputs = [tensor_of(name, variable.aval) for variable in equation.outvars]
        tensors = [value.tensor for value in inputs]
        numbers = [value.constant for value in inputs]
        if name in CONSTANT_FOLDS and None not in numbers and outputs[0].elements == 1:
            return [TensorValue(None, outputs[0], CONSTANT_FOLDS[name](*numbers))]
        kind, attributes = describe(name, equation.params, tensors, outputs)
        if kind in STEPWISE_KINDS and not name.startswith(
            "cum"
        ):  # cumulative ops work along a dimension
            stacked = apply_stepwise(self, name, kind, inputs, outputs, name_stack)
            if stacked is not None:
                return [stacked]
        if name in PASS_THROUGH:
            attributes["aliases"] = [(at, at) for at in range(len(outputs))]
        if name == "dynamic_update_slice":  # the written rows go last
            inputs = [inputs[0], *inputs[2:], inputs[1]]
        return self.builder.add(
            name,
            kind or self.builder.framework_kind(name),
            inputs,
            outputs,
            **attributes,
            **self.op_context(inputs, name_stack),
        )

    def op_context(self, inputs: Sequence[TensorValue], name_stack: str) -> dict[str, Any]:
        """The module and phase of an op, from its name stack."""
        module_path = re.sub(r"\b\w+\(|\)", "", name_stack)
        phase = "forward"
        if "transpose(" in name_stack:
            phase = "backward"
        elif "jvp(" not in name_stack:
            phases = {self.builder.ops[value.source[0]].phase for value in inputs if value.source}
            phase = "update" if phases & {"backward", "update"} else "forward"
        return {"module": ".".join(filter(None, module_path.split("/"))), "phase": phase}

    def parts_of(self, value: TensorValue) -> list[TensorValue]:
        """The parts of a stack; any other value is its own only part."""
        return self.stack_parts.get(value.source[0], [value]) if value.source else [value]

    def add_stack(self, parts: Sequence[TensorValue], name_stack: str) -> TensorValue:
        """Add the stack of the parts that a scan produces."""
        values = [self.materialize(part) for part in parts]
        tensor = TensorSpec((len(values), *values[0].tensor.shape), values[0].tensor.dtype)
        [stacked] = self.builder.add(
            "stack", "concat", values, [tensor], **self.op_context(values, name_stack)
        )
        self.stack_parts[len(self.builder.ops) - 1] = values
        return stacked

    def add_view(
        self, value: TensorValue, tensor: TensorSpec, name: str, name_stack: str
    ) -> TensorValue:
        [output] = self.builder.add(
            name, VIEW, [value], [tensor], **self.op_context([value], name_stack)
        )
        return output
