"""Reads the nodes of an ONNX graph into a GraphBuilder and infers their shapes."""

from __future__ import annotations

import ast
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from placewright.errors import GraphError, nearest
from placewright.frontends.graph_builder import (
    GraphBuilder,
    TensorValue,
    tensor_spec,
    topological_order,
)
from placewright.frontends.onnx_graph.control_flow import CONTROL_FLOW, free_names
from placewright.frontends.onnx_graph.inputs import (
    dimension_size,
    input_spec,
    input_value,
    missing_sizes_error,
)
from placewright.frontends.onnx_graph.op_rules import (
    DTYPES,
    ONNX_DOMAINS,
    SAME_SHAPE_OPS,
    SETTING_INPUTS,
    describe,
)
from placewright.frontends.onnx_graph.shapes import (
    attributes_of,
    constant_array,
    dtype_of,
    fold_node,
    inferred_types,
)
from placewright.frontends.op_costs import TensorSpec
from placewright.graph import INPUT, WEIGHT, Graph

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

MAX_LOOP_PASSES = 64  # over the bodies of loops whose shapes grow


@dataclass
class OnnxScope:
    """The values that ops can name: those of a graph and of the enclosing graphs.

    Args:
        pending_weights: Constants that become a weight as soon as an op reads them.
    """

    builder: GraphBuilder
    parent: OnnxScope | None = None
    values: dict[str, TensorValue | None] = field(default_factory=dict)
    pending_weights: set[str] = field(default_factory=set)

    def child(self, builder: GraphBuilder) -> OnnxScope:
        """The scope of a subgraph whose ops go into this builder."""
        return OnnxScope(builder, self)

    def lookup(self, name: str) -> TensorValue | None:
        """A value's shape and contents; None if its shape is unknown."""
        if name in self.values:
            return self.values[name]
        if self.parent is None:
            raise GraphError(f"tensor {name!r} is read, but nothing makes it")
        return self.parent.lookup(name)

    def read(self, name: str) -> TensorValue | None:
        """A value that an op of this scope's builder can read."""
        value = self.lookup(name)
        if value is None:
            return None
        if name in self.pending_weights:
            self.pending_weights.discard(name)
            module = name.rpartition(".")[0]
            [weight] = self.builder.add(name, WEIGHT, (), [value.tensor], module=module)
            self.values[name] = weight._replace(constant=value.constant)
        elif name not in self.values and self.parent is not None:
            value = self.parent.read(name)
            if value is not None and self.parent.builder is not self.builder:
                self.values[name] = self.builder.capture(value)
            return self.values.get(name, value)
        return self.values[name]


class OnnxReader:
    """Reads the nodes of one model into a GraphBuilder."""

    def __init__(
        self,
        model: Any,
        dims: Mapping[str, int],
        shapes: Mapping[str, Sequence[int]],
        builder: GraphBuilder,
    ) -> None:
        self.dims = dims
        self.shapes = shapes
        self.builder = builder
        self.opsets = {entry.domain: entry.version for entry in model.opset_import}
        self.declared_types: dict[str, Any] = {}
        self.passes_left = MAX_LOOP_PASSES  # left
        self.node_ops: dict[str, list[str]] = {}  # a node's first output → its ops
        self.known_names: set[str] = set()  # of dimensions and tensors, to find misspelt ones
        for domain, version in self.opsets.items():
            if not 0 < version < 1000:
                raise GraphError(f"opset {domain!r} has version {version}: expected 1 to 999")

    def graph(self, graph: Any) -> Graph:
        scope = OnnxScope(self.builder)
        self.add_initializers(scope, graph)
        input_positions = self.add_inputs(scope, graph)
        self.add_nodes(scope, graph)
        for argument, sizes in (("dims", self.dims), ("shapes", self.shapes)):
            for name in sizes:
                if name not in self.known_names:
                    raise GraphError(
                        f"{argument} has {name!r}, which the model does not: "
                        f"{nearest(name, self.known_names)}"
                    )
        for info in graph.output:
            value = scope.lookup(info.name)
            if value is not None and value.source is None:
                scope.pending_weights.add(info.name)  # an output must be stored
        outputs = [scope.read(info.name) for info in graph.output]
        return self.builder.graph(
            [value for value in outputs if value is not None], input_positions
        )

    def add_inputs(self, scope: OnnxScope, graph: Any) -> list[int]:
        """Add the inputs of the model and return their positions; every size must be known."""
        # Before IR version 4 initializers were inputs too.
        infos = [info for info in graph.input if info.name not in scope.values]
        for info in infos:
            self.record_dimensions(info.type)
        numbers = {name: size for name, size in self.dims.items() if name not in self.known_names}
        self.known_names.update(info.name for info in infos)
        specs = [input_spec(info, self.dims, self.shapes, numbers) for info in infos]
        missing = [info for info, spec in zip(infos, specs, strict=True) if spec is None]
        if missing:
            raise missing_sizes_error(missing, self.dims)
        positions = []
        for info, spec in zip(infos, specs, strict=True):
            assert spec is not None
            [value] = self.builder.add(info.name, INPUT, (), [spec])
            constant = input_value(info.name, spec, numbers.get(info.name))
            scope.values[info.name] = value._replace(constant=constant)
            positions.append(len(self.builder.ops) - 1)
        return positions

    def record_dimensions(self, type_proto: Any) -> None:
        for dim in type_proto.tensor_type.shape.dim:
            if dim.dim_param:
                self.known_names.add(dim.dim_param)

    def type_spec(
        self, name: str, type_proto: Any, default_dtype: str = "float32"
    ) -> TensorSpec | None:
        """A tensor of the user's shape or of a type in the model; None if a size is missing."""
        if name in self.shapes:
            code = type_proto.tensor_type.elem_type if type_proto is not None else 0
            return tensor_spec(
                f"tensor {name!r}", self.shapes[name], DTYPES.get(code, default_dtype)
            )
        if type_proto is None or type_proto.WhichOneof("value") != "tensor_type":
            return None
        if not type_proto.tensor_type.HasField("shape"):
            return None
        sizes = []
        for dim in type_proto.tensor_type.shape.dim:
            size = dimension_size(dim, self.dims)
            if size is None:
                return None
            sizes.append(size)
        return tensor_spec(
            f"tensor {name!r}", sizes, DTYPES.get(type_proto.tensor_type.elem_type, default_dtype)
        )

    def add_initializers(self, scope: OnnxScope, graph: Any) -> None:
        """Read the initializers of a graph and the types that it declares."""
        for info in (*graph.value_info, *graph.output):
            self.declared_types[info.name] = info.type
            self.record_dimensions(info.type)
        for tensor in graph.initializer:
            self.add_constant(scope, tensor.name, tensor)
        for sparse in graph.sparse_initializer:
            name = sparse.values.name
            label = f"initializer {name!r}"
            spec = tensor_spec(label, sparse.dims, dtype_of(sparse.values.data_type))
            scope.values[name] = TensorValue(None, spec)
            scope.pending_weights.add(name)

    def add_constant(self, scope: OnnxScope, name: str, proto: Any) -> None:
        tensor = tensor_spec(f"constant {name!r}", proto.dims, dtype_of(proto.data_type))
        scope.values[name] = TensorValue(None, tensor, constant_array(proto, tensor))
        scope.pending_weights.add(name)

    def add_nodes(self, scope: OnnxScope, graph: Any) -> None:
        """Add the nodes of a graph, in topological order."""
        producers: dict[str, int] = {}
        for at, node in enumerate(graph.node):
            for name in node.output:
                if name and (name in producers or name in scope.values):
                    raise GraphError(f"tensor {name!r} is made twice: names must be unique")
                if name:
                    producers[name] = at
        sources = [
            sorted({producers[name] for name in free_names(node) if name in producers})
            for node in graph.node
        ]
        labels = [node.name or node.op_type for node in graph.node]
        for at in topological_order(self.builder.name, labels, sources):
            node = graph.node[at]
            op_count = len(self.builder.ops)
            try:
                self.known_names.update(node.output)
                if node.op_type in CONTROL_FLOW and node.domain in ONNX_DOMAINS:
                    CONTROL_FLOW[node.op_type](self, scope, node)
                else:
                    self.add_node(scope, node)
            except GraphError as error:
                message = str(error)
                if not message.startswith("op "):
                    message = f"op {labels[at]!r} of type {node.op_type!r}: {message}"
                raise GraphError(message) from None
            if scope.parent is None:
                op_names = [op.name for op in self.builder.ops[op_count:] if op.kind != WEIGHT]
                self.node_ops[next(filter(None, node.output), "")] = op_names

    def add_node(self, scope: OnnxScope, node: Any) -> None:
        """Add one op, or fold it if its inputs are known and small."""
        known_inputs = [scope.lookup(name) if name else None for name in node.input]
        if node.op_type == "Constant" and node.domain in ONNX_DOMAINS:
            self.add_constant_node(scope, node)
            return
        outputs = self.output_specs(node, known_inputs)
        if None in outputs:
            self.record_unsized(scope, node, known_inputs, outputs)
            return
        tensors = [tensor for tensor in outputs if tensor is not None]
        constants = fold_node(node, known_inputs, tensors, self.opsets)
        if constants is not None:
            for name, tensor, constant in zip(node.output, tensors, constants, strict=False):
                self.add_literal(scope, name, tensor, constant)
            return
        attributes = attributes_of(node)
        kind, cost_attributes = describe(
            node.domain, node.op_type, attributes, known_inputs, tensors
        )
        setting_positions = (
            SETTING_INPUTS.get(node.op_type, ()) if node.domain in ONNX_DOMAINS else ()
        )
        inputs = []
        for at, name in enumerate(node.input):
            value = known_inputs[at]
            if value is None or (at in setting_positions and value.constant is not None):
                continue
            operand = scope.read(name)
            if operand is not None:
                inputs.append(operand)
        results = scope.builder.add(
            node.name or node.op_type,
            kind or scope.builder.framework_kind(node.op_type),
            inputs,
            tensors,
            module=module_of(node),
            **cost_attributes,
        )
        scope.values.update(
            {name: value for name, value in zip(node.output, results, strict=False) if name}
        )

    def add_literal(self, scope: OnnxScope, name: str, tensor: TensorSpec, constant: Any) -> None:
        """Add a folded constant: a weight once an op reads it, unless it has one element."""
        scope.values[name] = TensorValue(None, tensor, constant)
        if constant is None or tensor.elements != 1:
            scope.pending_weights.add(name)

    def add_constant_node(self, scope: OnnxScope, node: Any) -> None:
        import numpy as np

        if len(node.output) != 1:
            raise GraphError(f"it has {len(node.output)} outputs: expected one")
        name = node.output[0]
        for attribute in node.attribute:
            if attribute.name == "value":
                self.add_constant(scope, name, attribute.t)
                if scope.values[name].tensor.elements == 1:  # type: ignore[union-attr]
                    scope.pending_weights.discard(name)
                return
            if attribute.name in ("value_int", "value_ints", "value_float", "value_floats"):
                is_scalar = not attribute.name.endswith("s")
                values = [attribute.i] if attribute.name == "value_int" else attribute.ints
                dtype = "int64"
                if "float" in attribute.name:
                    values = [attribute.f] if is_scalar else attribute.floats
                    dtype = "float32"
                array = np.array(values, dtype).reshape(() if is_scalar else (-1,))
                self.add_literal(scope, name, TensorSpec(array.shape, dtype), array)
                return
        raise GraphError("holds no number that can be read: expected a value attribute")

    def record_unsized(
        self,
        scope: OnnxScope,
        node: Any,
        inputs: Sequence[TensorValue | None],
        outputs: Sequence[TensorSpec | None],
    ) -> None:
        """Record that an op's output shape is unknown, unless an input's is unknown too."""
        for name in node.output:
            if name:
                scope.values[name] = None
        if all(value is not None for value, name in zip(inputs, node.input, strict=True) if name):
            name = next(
                name for name, tensor in zip(node.output, outputs, strict=False) if tensor is None
            )
            scope.builder.unsized_ops.append(
                f"op {node.name or node.op_type!r} of type {node.op_type!r} makes tensor {name!r}, "
                f"whose shape cannot be inferred: give it, such as --dims {name}=8x16 or "
                f"shapes={{{name!r}: (8, 16)}}"
            )

    def output_specs(
        self, node: Any, inputs: Sequence[TensorValue | None]
    ) -> list[TensorSpec | None]:
        """The outputs of an op: as the user gives, as onnx infers, or as the file declares."""
        types = inferred_types(node, inputs, self.opsets)
        first_known = next((value.tensor for value in inputs if value is not None), None)
        outputs: list[TensorSpec | None] = []
        for name in node.output:
            if not name:
                outputs.append(TensorSpec((0,), "bool"))  # left out
                continue
            type_proto = types.get(name)
            if type_proto is not None and type_proto.WhichOneof("value") not in (
                None,
                "tensor_type",
            ):
                raise GraphError(
                    f"it makes {name!r}, which is not a tensor: only tensors can be read"
                )
            dtype = first_known.dtype if first_known else "float32"
            tensor = self.type_spec(name, type_proto, dtype)
            if tensor is None and name in self.declared_types:
                tensor = self.type_spec(name, self.declared_types[name], dtype)
            if tensor is None and node.op_type in SAME_SHAPE_OPS and not outputs:
                tensor = first_known
            outputs.append(tensor)
        return outputs


def module_of(node: Any) -> str:
    """The module of an op: from its exporter's metadata, or the path in its name."""
    for entry in node.metadata_props:
        if entry.key == "pkg.torch.onnx.name_scopes":
            try:
                return str(ast.literal_eval(entry.value)[-2])
            except (ValueError, SyntaxError, IndexError, TypeError, MemoryError, RecursionError):
                break
    return str(node.name).strip("/").rpartition("/")[0].replace("/", ".")
