"""Reads the nodes of a GraphDef into a GraphBuilder and inlines its functions."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

from placewright.errors import GraphError, nearest
from placewright.frontends.graph_builder import (
    STORED_KINDS,
    GraphBuilder,
    TensorValue,
    tensor_spec,
    topological_order,
)
from placewright.frontends.graphdef.colocation import Colocation
from placewright.frontends.graphdef.control_flow import CONTROL_FLOW, called_functions
from placewright.frontends.graphdef.folds import fold_node
from placewright.frontends.graphdef.op_rules import (
    SETTING_INPUTS,
    describe,
    writes_variable,
)
from placewright.frontends.graphdef.protos import (
    output_dtype,
    output_shapes,
    read_constant,
    text_attribute,
)
from placewright.frontends.graphdef.scope import (
    CALL_OPS,
    GraphDefScope,
    parse_reference,
)
from placewright.frontends.graphdef.setup import step_nodes
from placewright.frontends.graphdef.shapes import infer_outputs
from placewright.frontends.inlining import check_inlined_ops, inlined_size
from placewright.frontends.op_costs import TensorSpec
from placewright.graph import INPUT, VIEW, WEIGHT, Graph

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

NEXT_ITERATION = ("NextIteration", "RefNextIteration")
MERGE_OPS = ("Merge", "RefMerge")
CONTROL_SPEC = TensorSpec((0,), "bool")  # the tensor of a control edge


class GraphDefReader:
    """Reads one GraphDef into a GraphBuilder.

    Attributes:
        devices: The device string of each op, by op name.
    """

    def __init__(
        self, graph: Any, shapes: Mapping[str, Sequence[int]], builder: GraphBuilder
    ) -> None:
        self.nodes = list(graph.node)
        self.functions = {entry.signature.name: entry for entry in graph.library.function}
        self.shapes = shapes
        self.builder = builder
        self.devices: dict[str, str] = {}
        self.colocation = Colocation()
        self.op_positions: dict[str, int] = {}  # the op of each node, by path and name
        self.node_keys: dict[int, str] = {}  # the node of each op
        self.known_names: set[str] = set()

    def graph(self, outputs: Sequence[str] | None) -> Graph:
        scope = GraphDefScope(self.builder)
        nodes = step_nodes(self.nodes) if outputs is None else self.ancestors(outputs)
        self.check_calls(nodes)
        self.add_nodes(scope, nodes)
        for name in self.shapes:
            if name.partition(":")[0] not in self.known_names:
                raise GraphError(f"shapes has {name!r}: {nearest(name, sorted(self.known_names))}")
        self.colocation.label(self.builder.ops, self.op_positions)
        ops = self.builder.ops
        if outputs is None:
            sinks = self.sinks()
            sink_values = [
                TensorValue((at, k), CONTROL_SPEC)
                for at in sinks
                for k in range(len(ops[at].outputs))
            ]
            return self.builder.graph(
                sink_values, [at for at, op in enumerate(ops) if op.kind == INPUT]
            )
        output_values = [
            self.materialize(scope, name, at)
            for name in outputs
            for at in range(len(scope.values.get(name) or ()))
        ]
        keep = [self.op_positions[name] for name in outputs if name in self.op_positions]
        return self.builder.graph([value for value in output_values if value is not None], keep)

    def check_calls(self, nodes: Sequence[Any]) -> None:
        """Refuse nodes whose calls have no end, or too many ops."""
        bodies = {name: function.node_def for name, function in self.functions.items()}
        calls_of = {
            name: [call for node in body for call in called_functions(node, self.functions)]
            for name, body in bodies.items()
        }
        calls = [call for node in nodes for call in called_functions(node, self.functions)]
        own_sizes = {name: len(body) for name, body in bodies.items()}
        check_inlined_ops(inlined_size(calls, own_sizes, calls_of))

    def sinks(self) -> list[int]:
        """The ops that nothing reads and that a step runs for their own sake.

        Not among them are bare reads of variables and, if variables are updated, leftover ops of
        differentiation.
        """
        ops = self.builder.ops
        read_positions = {source for op in ops for source, _ in op.inputs}
        training = any(op.phase == "update" for op in ops)
        positions = []
        for at, op in enumerate(ops):
            is_bare_read = op.kind == VIEW and op.inputs and ops[op.inputs[0][0]].kind == WEIGHT
            is_leftover = training and op.phase == "backward"
            if (
                at not in read_positions
                and op.kind not in STORED_KINDS
                and not is_bare_read
                and not is_leftover
            ):
                positions.append(at)
        return positions

    def ancestors(self, outputs: Iterable[str]) -> list[Any]:
        """The nodes that the outputs depend on."""
        node_of = {node.name: node for node in self.nodes}
        pending = list(outputs)
        needed = set()
        for name in pending:
            if name not in node_of:
                raise GraphError(f"there is no op {name!r}: {nearest(name, node_of)}")
        while pending:
            name = pending.pop()
            if name not in needed and name in node_of:
                needed.add(name)
                pending += [parse_reference(entry, {}, False)[0] for entry in node_of[name].input]
        return [node for node in self.nodes if node.name in needed]

    def add_nodes(self, scope: GraphDefScope, nodes: Sequence[Any]) -> None:
        """Add nodes, in topological order."""
        ops = {node.name: node.op for node in nodes}
        if len(ops) < len(nodes):
            [(duplicate, _)] = Counter(node.name for node in nodes).most_common(1)
            raise GraphError(f"two ops are named {duplicate!r}: names must be unique")
        position = {node.name: at for at, node in enumerate(nodes)}
        sources = []
        for node in nodes:
            names = [parse_reference(entry, ops, scope.is_function)[0] for entry in node.input]
            pairs = zip(names, node.input, strict=True)
            scope.control_sources.update(name for name, entry in pairs if entry.startswith("^"))
            if node.op in MERGE_OPS:
                names = [name for name in names if ops.get(name) not in NEXT_ITERATION]
            sources.append(sorted({position[name] for name in names if name in position}))
        frames = {
            text_attribute(node, "frame_name") for node in nodes if node.op in ("Enter", "RefEnter")
        }
        scope.builder.unbounded_loops += sorted(frames)
        labels = [node.name for node in nodes]
        for at in topological_order(self.builder.name, labels, sources):
            node = nodes[at]
            try:
                self.add_node(scope, node, ops)
            except GraphError as error:
                message = str(error)
                if not message.startswith("op "):
                    message = f"op {scope.name(node)!r} of type {node.op!r}: {message}"
                raise GraphError(message) from None

    def add_node(self, scope: GraphDefScope, node: Any, ops: Mapping[str, str]) -> None:
        """Add one node: inline it, fold it, or make it an op."""
        inputs: list[TensorValue | None] = []
        references: list[tuple[str, int]] = []
        control_inputs: list[TensorValue] = []
        for entry in node.input:
            name, at = parse_reference(entry, ops, scope.is_function)
            if node.op in MERGE_OPS and ops.get(name) in NEXT_ITERATION:
                continue
            if entry.startswith("^"):
                control_inputs += (
                    [scope.control_values[name]] if name in scope.control_values else []
                )
                continue
            if name not in scope.values:
                raise GraphError(f"it reads {name!r}, which is not in the graph")
            source_values = scope.values[name]
            if source_values is not None and not 0 <= at < len(source_values):
                raise GraphError(
                    f"it reads output {at} of {name!r}, which has {len(source_values)}"
                )
            inputs.append(None if source_values is None else source_values[at])
            references.append((name, at))
        self.known_names.add(scope.name(node))
        if scope.builder is self.builder:
            self.colocation.add_node(node, scope.path)
        if node.op == "Const":
            tensor, array = read_constant(node.attr["value"].tensor)
            scope.values[node.name] = [TensorValue(None, tensor, array)]
            scope.constants[node.name] = node
            return
        settings = SETTING_INPUTS.get(node.op, ())
        for at, (name, output) in enumerate(references):
            value = inputs[at]
            is_setting = at in settings or at - len(references) in settings
            if not is_setting or value is None or value.constant is None:
                inputs[at] = self.materialize(scope, name, output)
        if node.op in CALL_OPS or node.op in self.functions:
            function = node.attr["f"].func.name if node.op in CALL_OPS else node.op
            scope.values[node.name] = list(self.inline_call(scope, node.name, function, inputs))
            self.add_control_value(scope, node, control_inputs)
        elif node.op in CONTROL_FLOW:
            CONTROL_FLOW[node.op](self, scope, node, inputs, control_inputs)
        else:
            self.add_op(scope, node, inputs, control_inputs)

    def add_op(
        self,
        scope: GraphDefScope,
        node: Any,
        inputs: Sequence[TensorValue | None],
        control_inputs: Sequence[TensorValue],
    ) -> None:
        known_inputs = [value for value in inputs if value is not None]
        outputs = self.output_specs(
            scope, node, known_inputs, inputs_known=len(known_inputs) == len(inputs)
        )
        if outputs is None:
            scope.values[node.name] = None
            if len(known_inputs) == len(inputs):
                scope.builder.unsized_ops.append(_unknown_shape_message(node, scope.name(node)))
            return
        constants = fold_node(node, known_inputs, outputs)
        if constants is not None and not control_inputs:
            pairs = zip(outputs, constants, strict=True)
            scope.values[node.name] = [TensorValue(None, tensor, array) for tensor, array in pairs]
            scope.constants[node.name] = node
            return
        kind, attributes = describe(node, known_inputs, outputs)
        if kind in STORED_KINDS:
            known_inputs, control_inputs = [], []
        name = scope.name(node)
        is_resident = kind in STORED_KINDS or (
            kind == VIEW and not control_inputs and self.are_weights(scope, known_inputs)
        )
        needs_control = node.name in scope.control_sources and not is_resident
        if kind == VIEW and node.op in ("NoOp", "ControlTrigger", "TensorListReserve"):
            known_inputs = []
        if outputs and len(outputs) == len(known_inputs) > 1 and kind == VIEW:
            attributes["aliases"] = [(position, position) for position in range(len(outputs))]
        values = scope.builder.add(
            name,
            kind or scope.builder.framework_kind(node.op),
            known_inputs,
            [*outputs, *([CONTROL_SPEC] if needs_control or not outputs else [])],
            control_inputs=control_inputs,
            module=name.rpartition("/")[0].replace("/", "."),
            phase=self.phase(scope, node, [*known_inputs, *control_inputs]),
            **attributes,
        )
        position = len(scope.builder.ops) - 1
        if needs_control:
            scope.control_values[node.name] = TensorValue((position, len(outputs)), CONTROL_SPEC)
        scope.values[node.name] = list(values[: len(outputs)])
        self.record_op(scope, node, position, known_inputs)

    def are_weights(self, scope: GraphDefScope, values: Sequence[TensorValue]) -> bool:
        """Whether all of these are weights, or views of weights without control edges."""
        ops = [scope.builder.ops[value.source[0]] for value in values if value.source is not None]
        weight_flags = [
            op.kind == WEIGHT
            or (
                op.kind == VIEW and all(scope.builder.ops[at].kind == WEIGHT for at, _ in op.inputs)
            )
            for op in ops
        ]
        return bool(ops) and all(weight_flags)

    def materialize(self, scope: GraphDefScope, name: str, at: int) -> TensorValue | None:
        """A value that ops can read: a constant of several elements becomes a weight."""
        values = scope.values[name]
        value = None if values is None else values[at]
        if values is None or value is None or value.source is not None:
            return value
        if value.constant is not None and value.tensor.elements == 1:
            return value
        node = scope.constants[name]
        label = scope.name(node) + (f":{at}" if at else "")
        module = label.rpartition("/")[0].replace("/", ".")
        [weight] = scope.builder.add(label, WEIGHT, (), [value.tensor], module=module)
        self.record_op(scope, node, len(scope.builder.ops) - 1, ())
        values[at] = weight._replace(constant=value.constant)
        return values[at]

    def record_op(
        self, scope: GraphDefScope, node: Any, at: int, inputs: Sequence[TensorValue]
    ) -> None:
        """Record an op's device and the variable that it must share a device with."""
        if scope.builder is not self.builder:
            return
        self.op_positions[scope.path + node.name] = at
        self.node_keys[at] = scope.path + node.name
        self.devices[self.builder.ops[at].name] = node.device
        if writes_variable(node.op) and inputs and inputs[0].source is not None:
            root = inputs[0].source[0]
            while self.builder.ops[root].kind == VIEW and self.builder.ops[root].inputs:
                root = self.builder.ops[root].inputs[0][0]
            if self.builder.ops[root].kind == WEIGHT:
                self.colocation.merge(scope.path + node.name, self.node_keys[root])

    def output_specs(
        self, scope: GraphDefScope, node: Any, inputs: Sequence[TensorValue], inputs_known: bool
    ) -> list[TensorSpec] | None:
        """The outputs of a node: as the user gives, as its op infers, or as the file declares."""
        name = scope.name(node)
        user_shapes = [self.shapes[key] for key in (name, f"{name}:0") if key in self.shapes]
        while user_shapes and f"{name}:{len(user_shapes)}" in self.shapes:
            user_shapes.append(self.shapes[f"{name}:{len(user_shapes)}"])
        if user_shapes:
            return [tensor_spec("it", shape, output_dtype(node, inputs)) for shape in user_shapes]
        if not inputs_known:
            return None
        inferred = infer_outputs(node, inputs)
        declared = output_shapes(node)
        if inferred is None and declared and None not in declared:
            inferred = [
                (shape, output_dtype(node, inputs)) for shape in declared if shape is not None
            ]
        return (
            None
            if inferred is None
            else [tensor_spec("it", shape, dtype) for shape, dtype in inferred]
        )

    def phase(self, scope: GraphDefScope, node: Any, inputs: Sequence[TensorValue]) -> str:
        """The phase of an op, from its name and its inputs."""
        if writes_variable(node.op):
            return "update"
        steps = scope.name(node).split("/")
        if any(step.startswith(("gradients", "gradient_tape")) for step in steps):
            return "backward"
        phases = {scope.builder.ops[value.source[0]].phase for value in inputs if value.source}
        return "update" if phases & {"backward", "update"} else "forward"

    def inline_call(
        self, scope: GraphDefScope, label: str, name: str, inputs: Sequence[TensorValue | None]
    ) -> list[TensorValue | None]:
        """Add the nodes of a function in place of its call."""
        if name not in self.functions:
            raise GraphError(f"it calls {name!r}, which is not in the library")
        function = self.functions[name]
        arguments = [entry.name for entry in function.signature.input_arg]
        if len(arguments) != len(inputs):
            raise GraphError(
                f"it calls {name!r} with {len(inputs)} arguments: expected {len(arguments)}"
            )
        inner_scope = scope.child(scope.builder, f"{scope.path}{label}/")
        inner_scope.values = {key: [value] for key, value in zip(arguments, inputs, strict=True)}
        self.add_nodes(inner_scope, list(function.node_def))
        ops = {node.name: node.op for node in function.node_def}
        results: list[TensorValue | None] = []
        for entry in function.signature.output_arg:
            node, at = parse_reference(function.ret[entry.name], ops, is_function=True)
            values = inner_scope.values.get(node, [])
            if values is not None and at >= len(values):
                raise GraphError(f"function {name!r} gives {entry.name!r}, which nothing makes")
            results.append(None if values is None else values[at])
        scope.control_values.update(
            {f"{label}/{key}": value for key, value in inner_scope.control_values.items()}
        )
        return results

    def add_control_value(
        self, scope: GraphDefScope, node: Any, control_inputs: Sequence[TensorValue]
    ) -> None:
        """Add the control tensor of a call, which waits for all of its ops and inputs."""
        if node.name not in scope.control_sources:
            return
        values = [value for value in scope.values[node.name] or () if value is not None]
        inner_values = [
            value for key, value in scope.control_values.items() if key.startswith(f"{node.name}/")
        ]
        dependencies = [*values, *inner_values, *control_inputs]
        [scope.control_values[node.name]] = scope.builder.add(
            f"{scope.name(node)}/done", VIEW, (), [CONTROL_SPEC], control_inputs=dependencies
        )


def _unknown_shape_message(node: Any, name: str) -> str:
    """The message for a node whose shape is unknown."""
    sizes = node.attr["shape"].shape.dim if "shape" in node.attr else ()
    shape_text = ", ".join("?" if dim.size < 0 else str(dim.size) for dim in sizes)
    example = ", ".join("8" if dim.size < 0 else str(dim.size) for dim in sizes) or "8, 16"
    description = (
        f"has shape ({shape_text})"
        if shape_text
        else "makes a tensor whose shape cannot be inferred"
    )
    option = f"--dims {name}={example.replace(', ', 'x')}"
    return (
        f"op {name!r} of type {node.op!r} {description}: give it, such as {option} or "
        f"shapes={{{name!r}: ({example})}}"
    )
