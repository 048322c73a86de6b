"""The nodes of an ONNX graph in, ops of a draft out; shapes are inferred on the way."""

from __future__ import annotations

import ast
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from placewright.errors import GraphError, nearest
from placewright.frontends.graph_builder import (
    Draft,
    Value,
    checked,
    topological,
)
from placewright.frontends.onnx_graph.control_flow import FLOW, free
from placewright.frontends.onnx_graph.kinds import (
    DTYPES,
    OWN,
    SAME,
    SETTINGS,
    describe,
)
from placewright.frontends.onnx_graph.shapes import (
    attributes_of,
    contents,
    dtype_of,
    fold,
    inferred,
)
from placewright.frontends.op_costs import Tensor
from placewright.graph import INPUT, WEIGHT, Graph

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

MOST_PASSES = 64  # through the bodies of loops whose shapes grow


@dataclass
class Scope:
    """The values that ops can name: those of a graph and of the graphs around it.

    Args:
        stored: Constants that are not in the draft yet: a weight appears once an op reads it.
    """

    draft: Draft
    parent: Scope | None = None
    values: dict[str, Value | None] = field(default_factory=dict)
    stored: set[str] = field(default_factory=set)

    def inner(self, draft: Draft) -> Scope:
        """The scope of a subgraph whose ops go into this draft."""
        return Scope(draft, self)

    def look(self, name: str) -> Value | None:
        """A value's shape and contents; None where its shape is not known."""
        if name in self.values:
            return self.values[name]
        if self.parent is None:
            raise GraphError(f"tensor {name!r} is read, but nothing makes it")
        return self.parent.look(name)

    def read(self, name: str) -> Value | None:
        """A value that an op of this scope's draft can read."""
        value = self.look(name)
        if value is None:
            return None
        if name in self.stored:
            self.stored.discard(name)
            module = name.rpartition(".")[0]
            [made] = self.draft.add(name, WEIGHT, (), [value.tensor], module=module)
            self.values[name] = made._replace(constant=value.constant)
        elif name not in self.values and self.parent is not None:
            value = self.parent.read(name)
            if value is not None and self.parent.draft is not self.draft:
                self.values[name] = self.draft.capture(value)
            return self.values.get(name, value)
        return self.values[name]


class Reader:
    """Reads the nodes of one model into a draft."""

    def __init__(
        self,
        model: Any,
        dims: Mapping[str, int],
        shapes: Mapping[str, Sequence[int]],
        draft: Draft,
    ) -> None:
        self.dims = dims
        self.shapes = shapes
        self.draft = draft
        self.opsets = {entry.domain: entry.version for entry in model.opset_import}
        self.declared: dict[str, Any] = {}
        self.passes = MOST_PASSES  # left
        self.became: dict[str, list[str]] = {}  # a node's first tensor → its ops
        self.seen: set[str] = set()  # names of dimensions and tensors, to tell misspelt ones
        for domain, version in self.opsets.items():
            if not 0 < version < 1000:
                raise GraphError(f"opset {domain!r} has version {version}: expected 1 to 999")

    def graph(self, graph: Any) -> Graph:
        scope = Scope(self.draft)
        self.store(scope, graph)
        keep = []
        for info in graph.input:
            if info.name in scope.values:
                continue  # an initializer: before IR version 4 these were inputs too
            tensor = self.input(info)
            [scope.values[info.name]] = self.draft.add(info.name, INPUT, (), [tensor])
            keep.append(len(self.draft.ops) - 1)
        self.nodes(scope, graph)
        for what, given in (("dims", self.dims), ("shapes", self.shapes)):
            for name in given:
                if name not in self.seen:
                    raise GraphError(
                        f"{what} has {name!r}, which the model does not: {nearest(name, self.seen)}"
                    )
        for info in graph.output:
            value = scope.look(info.name)
            if value is not None and value.source is None:
                scope.stored.add(info.name)  # a literal that someone wants must be somewhere
        ends = [scope.read(info.name) for info in graph.output]
        return self.draft.graph([value for value in ends if value is not None], keep)

    def input(self, info: Any) -> Tensor:
        """The tensor of a graph input; every dimension must be known."""
        name = info.name
        self.seen.add(name)
        if name not in self.shapes and info.type.WhichOneof("value") != "tensor_type":
            raise GraphError(f"input {name!r} is not a tensor: only tensors can be read")
        self.notice(info.type)
        tensor = self.tensor(name, info.type)
        if tensor is not None:
            return tensor
        sizes = info.type.tensor_type.shape.dim
        for dim in sizes:
            if dim.dim_param:
                raise GraphError(
                    f"input {name!r} has a symbolic dimension {dim.dim_param!r}: give its size, "
                    f"such as --dims {dim.dim_param}=8 or dims={{{dim.dim_param!r}: 8}}"
                )
        shown = ", ".join(str(dim.dim_value) if dim.HasField("dim_value") else "?" for dim in sizes)
        raise GraphError(
            f"input {name!r} has shape ({shown}): give it whole, such as --dims {name}=8x16 or "
            f"shapes={{{name!r}: (8, 16)}}"
        )

    def notice(self, kind: Any) -> None:
        for dim in kind.tensor_type.shape.dim:
            if dim.dim_param:
                self.seen.add(dim.dim_param)

    def tensor(self, name: str, kind: Any, given: str = "float32") -> Tensor | None:
        """A tensor of a type in the model or of the user's shape; None where a size is missing."""
        if name in self.shapes:
            code = kind.tensor_type.elem_type if kind is not None else 0
            return checked(f"tensor {name!r}", self.shapes[name], DTYPES.get(code, given))
        if kind is None or kind.WhichOneof("value") != "tensor_type":
            return None
        if not kind.tensor_type.HasField("shape"):
            return None
        sizes = []
        for dim in kind.tensor_type.shape.dim:
            if dim.HasField("dim_value"):
                sizes.append(dim.dim_value)
            elif dim.dim_param in self.dims:
                sizes.append(self.dims[dim.dim_param])
            else:
                return None
        return checked(f"tensor {name!r}", sizes, DTYPES.get(kind.tensor_type.elem_type, given))

    def store(self, scope: Scope, graph: Any) -> None:
        """The initializers of a graph, and the types it declares."""
        for info in (*graph.value_info, *graph.output):
            self.declared[info.name] = info.type
            self.notice(info.type)
        for tensor in graph.initializer:
            self.constant(scope, tensor.name, tensor)
        for sparse in graph.sparse_initializer:
            name = sparse.values.name
            what = f"initializer {name!r}"
            dense = checked(what, sparse.dims, dtype_of(sparse.values.data_type))
            scope.values[name] = Value(None, dense)
            scope.stored.add(name)

    def constant(self, scope: Scope, name: str, proto: Any) -> None:
        tensor = checked(f"constant {name!r}", proto.dims, dtype_of(proto.data_type))
        scope.values[name] = Value(None, tensor, contents(proto, tensor))
        scope.stored.add(name)

    def nodes(self, scope: Scope, graph: Any) -> None:
        """Add the nodes of a graph, in topological order."""
        makers: dict[str, int] = {}
        for at, node in enumerate(graph.node):
            for name in node.output:
                if name and (name in makers or name in scope.values):
                    raise GraphError(f"tensor {name!r} is made twice: names must be unique")
                if name:
                    makers[name] = at
        sources = [
            sorted({makers[name] for name in free(node) if name in makers}) for node in graph.node
        ]
        labels = [node.name or node.op_type for node in graph.node]
        for at in topological(self.draft.name, labels, sources):
            node = graph.node[at]
            before = len(self.draft.ops)
            try:
                self.seen.update(node.output)
                if node.op_type in FLOW and node.domain in OWN:
                    FLOW[node.op_type](self, scope, node)
                else:
                    self.node(scope, node)
            except GraphError as error:
                text = str(error)
                if not text.startswith("op "):
                    text = f"op {labels[at]!r} of type {node.op_type!r}: {text}"
                raise GraphError(text) from None
            if scope.parent is None:
                made = [op.name for op in self.draft.ops[before:] if op.kind != WEIGHT]
                self.became[next(filter(None, node.output), "")] = made

    def node(self, scope: Scope, node: Any) -> None:
        """Add one op, or compute it where all it reads is known and small."""
        looked = [scope.look(name) if name else None for name in node.input]
        if node.op_type == "Constant" and node.domain in OWN:
            self.constant_node(scope, node)
            return
        outputs = self.infer(node, looked)
        if None in outputs:
            self.unsized(scope, node, looked, outputs)
            return
        tensors = [tensor for tensor in outputs if tensor is not None]
        constants = fold(node, looked, tensors, self.opsets)
        if constants is not None:
            for name, tensor, constant in zip(node.output, tensors, constants, strict=False):
                self.literal(scope, name, tensor, constant)
            return
        attributes = attributes_of(node)
        kind, more = describe(node.domain, node.op_type, attributes, looked, tensors)
        settings = SETTINGS.get(node.op_type, ()) if node.domain in OWN else ()
        inputs = []
        for at, name in enumerate(node.input):
            value = looked[at]
            if value is None or (at in settings and value.constant is not None):
                continue
            read = scope.read(name)
            if read is not None:
                inputs.append(read)
        made = scope.draft.add(
            node.name or node.op_type,
            kind or scope.draft.own(node.op_type),
            inputs,
            tensors,
            module=module_of(node),
            **more,
        )
        scope.values.update(
            {name: value for name, value in zip(node.output, made, strict=False) if name}
        )

    def literal(self, scope: Scope, name: str, tensor: Tensor, constant: Any) -> None:
        """A computed constant: a weight once it is read, unless it is a single element."""
        scope.values[name] = Value(None, tensor, constant)
        if constant is None or tensor.elements != 1:
            scope.stored.add(name)

    def constant_node(self, scope: Scope, node: Any) -> None:
        import numpy as np

        if len(node.output) != 1:
            raise GraphError(f"it has {len(node.output)} outputs: expected one")
        name = node.output[0]
        for attribute in node.attribute:
            if attribute.name == "value":
                self.constant(scope, name, attribute.t)
                if scope.values[name].tensor.elements == 1:  # type: ignore[union-attr]
                    scope.stored.discard(name)
                return
            if attribute.name in ("value_int", "value_ints", "value_float", "value_floats"):
                single = not attribute.name.endswith("s")
                values = [attribute.i] if attribute.name == "value_int" else attribute.ints
                dtype = "int64"
                if "float" in attribute.name:
                    values = [attribute.f] if single else attribute.floats
                    dtype = "float32"
                array = np.array(values, dtype).reshape(() if single else (-1,))
                self.literal(scope, name, Tensor(array.shape, dtype), array)
                return
        raise GraphError("holds no number that can be read: expected a value attribute")

    def unsized(
        self,
        scope: Scope,
        node: Any,
        looked: Sequence[Value | None],
        outputs: Sequence[Tensor | None],
    ) -> None:
        """Note that an op's shape is not known, unless that follows from another's."""
        for name in node.output:
            if name:
                scope.values[name] = None
        if all(value is not None for value, name in zip(looked, node.input, strict=True) if name):
            name = next(
                name for name, tensor in zip(node.output, outputs, strict=False) if tensor is None
            )
            scope.draft.unsized.append(
                f"op {node.name or node.op_type!r} of type {node.op_type!r} makes tensor {name!r}, "
                f"whose shape cannot be inferred: give it, such as --dims {name}=8x16 or "
                f"shapes={{{name!r}: (8, 16)}}"
            )

    def infer(self, node: Any, looked: Sequence[Value | None]) -> list[Tensor | None]:
        """What an op makes: as the user says, as onnx infers, or as the file declares."""
        kinds = inferred(node, looked, self.opsets)
        known = next((value.tensor for value in looked if value is not None), None)
        outputs: list[Tensor | None] = []
        for name in node.output:
            if not name:
                outputs.append(Tensor((0,), "bool"))  # left out
                continue
            kind = kinds.get(name)
            if kind is not None and kind.WhichOneof("value") not in (None, "tensor_type"):
                raise GraphError(
                    f"it makes {name!r}, which is not a tensor: only tensors can be read"
                )
            dtype = known.dtype if known else "float32"
            tensor = self.tensor(name, kind, dtype)
            if tensor is None and name in self.declared:
                tensor = self.tensor(name, self.declared[name], dtype)
            if tensor is None and node.op_type in SAME and not outputs:
                tensor = known
            outputs.append(tensor)
        return outputs


def module_of(node: Any) -> str:
    """Where an op stands in the model: what its exporter says, or the folders of its name."""
    for entry in node.metadata_props:
        if entry.key == "pkg.torch.onnx.name_scopes":
            try:
                return str(ast.literal_eval(entry.value)[-2])
            except (ValueError, SyntaxError, IndexError, TypeError, MemoryError, RecursionError):
                break
    return str(node.name).strip("/").rpartition("/")[0].replace("/", ".")
