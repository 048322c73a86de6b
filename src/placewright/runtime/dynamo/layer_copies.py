"""Copies what AOTAutograd made of one layer for the others, which it did not see.

The result is the graph that it makes of the whole model, op for op. Two kept layers must have
become the same; what does not fit the pattern is an error, and the whole graph is lowered.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch._subclasses.fake_tensor import unset_fake_temporarily

from placewright.runtime.dynamo.repeated_layers import KEPT_LAYERS, NODE_INDEX, argument_nodes

if TYPE_CHECKING:
    from placewright.frontends.pytorch.shapes import Node
    from placewright.runtime.dynamo.repeated_layers import ShortGraph

_CLONE, _COPY = torch.ops.aten.clone.default, torch.ops.aten.copy.default
_WRITE = torch.ops.aten.copy_.default
_CONSTANT = "_tensor_constant"


class UnequalLayersError(Exception):
    """AOTAutograd did not make the same of two layers, so that it must see all."""


def copy_layers(lowered: torch.fx.GraphModule, short: ShortGraph) -> torch.fx.GraphModule:
    """The graph of all layers, of AOTAutograd's graph of the first.

    Raises:
        UnequalLayersError: What it made of a layer depends on more than the layer.
    """
    with unset_fake_temporarily():  # constants are real tensors
        return _LayerCopies(lowered, short).run()


class _LayerCopies:
    def __init__(self, lowered: torch.fx.GraphModule, short: ShortGraph) -> None:
        self.lowered, self.short = lowered, short
        self.layers = short.layers
        self.model_layer = self.layers.model_layer
        self.inputs = self._find_inputs()
        self.index: dict[Node, int] = {  # 0: it has none
            node: (node.meta.get("custom") or {}).get(NODE_INDEX, 0) for node in lowered.graph.nodes
        }
        self.model = self._nodes_of(self.model_layer)
        self.previous = self._nodes_of(self.model_layer - 1)
        self.counterpart = dict(zip(self.previous, self.model, strict=False))
        """The node of the model layer for each of the layer before it."""
        self.graph = torch.fx.Graph()
        self.env: dict[Node, Node] = {}
        self.copies: dict[int, dict[Node, Node]] = {}  # of each layer's nodes
        self.constants: list[tuple[str, torch.Tensor]] = []

    def run(self) -> torch.fx.GraphModule:
        self._check_equal()
        self._check_order()
        changes = self._changed_values()
        last = self.model[-1]
        for node in self.lowered.graph.nodes:
            index = self.index[node]
            if index in self.short.readings:
                self.env[node] = self._reading(node, self.short.readings[index])
            elif index in self.short.changes:
                self.env[node] = self._change(node, self.short.changes[index], changes)
            else:
                self.env[node] = self._copy(node, self.env)
                self.env[node].meta = dict(node.meta)
            if node is last:
                for at in range(KEPT_LAYERS, len(self.layers.nodes)):
                    self._add_layer(at)
        for node in self.graph.nodes:
            self._remove_index(node)
        return self._module()

    # -- the lowered graph ---------------------------------------------------------------------

    def _find_inputs(self) -> dict[Node, Node]:
        """The placeholder for each of TorchDynamo's."""
        placeholders = [node for node in self.layers.graph.nodes if node.op == "placeholder"]
        inputs = {}
        for node in self.lowered.graph.nodes:
            if node.op == "placeholder":
                at = getattr(node.meta.get("desc"), "idx", None)
                if not isinstance(at, int):
                    raise UnequalLayersError("an input is none of the model's")
                inputs[placeholders[at]] = node
        return inputs

    def _nodes_of(self, layer: int) -> list[Node]:
        places, index = self.short.places, self.index
        return [
            node
            for node in self.lowered.graph.nodes
            if index[node] in places and places[index[node]][0] == layer
        ]

    def _check_equal(self) -> None:
        """Compare the last two layers that were lowered."""
        if not self.model or len(self.model) != len(self.previous):
            raise UnequalLayersError("two layers have different numbers of ops")
        before = self._names(self.model_layer - 2)
        names = self._names(self.model_layer - 1)
        own_inputs = {
            self.inputs[wanted]: self.inputs[found]
            for wanted, found in self.layers.sources[self.model_layer - 1].items()
            if wanted.op == "placeholder"
        }

        def expected(source: Node) -> Any:
            if source in names:  # of the layer before: its counterpart is of the one before that
                return names[source]
            return own_inputs.get(source, source)

        counterpart = {model: previous for previous, model in self.counterpart.items()}
        for previous, model in zip(self.previous, self.model, strict=True):
            reads = [
                counterpart.get(source) or expected(source) for source in argument_nodes(model)
            ]
            found = [before.get(source, source) for source in argument_nodes(previous)]
            if reads != found or not _are_alike(previous, model, self.lowered):
                raise UnequalLayersError(f"{model.name} is not as {previous.name}")
            if self._place(previous)[1] != self._place(model)[1]:
                raise UnequalLayersError(f"{model.name} is of another op than {previous.name}")

    def _place(self, node: Node) -> tuple[int, int]:
        return self.short.places[self.index[node]]

    def _names(self, layer: int) -> dict[Node, tuple[int, int]]:
        """A layer's nodes by their op in TorchDynamo's graph, and their number for it."""
        counts: dict[int, int] = {}
        names = {}
        for node in self._nodes_of(layer):
            _, k = self._place(node)
            counts[k] = counts.get(k, 0) + 1
            names[node] = k, counts[k]
        return names

    def _check_order(self) -> None:
        """Let nothing after the layers read them, but what stands for a reading of a layer."""
        inside = {node for at in range(KEPT_LAYERS) for node in self._nodes_of(at)}
        seen_last = False
        for node in self.lowered.graph.nodes:
            index = self.index[node]
            if node in inside:
                if seen_last:
                    raise UnequalLayersError("layers are not in order")
                seen_last = node is self.model[-1]
            elif index in self.short.readings or index in self.short.changes:
                if not seen_last:
                    raise UnequalLayersError("a layer is read before it has run")
            elif any(source in inside for source in argument_nodes(node)) and node.target != _WRITE:
                raise UnequalLayersError(f"{node.name} reads a layer")

    def _changed_values(self) -> dict[Node, Node]:
        """The new value of each input that the model layer changes."""
        outside = {self.inputs[node]: node for node in self.layers.changed}
        model, changes = set(self.model), {}
        for node in self.lowered.graph.nodes:
            if node.target != _WRITE:
                continue
            target, value = node.args
            if target in outside:
                changes[outside[target]] = value
            elif value in model:
                raise UnequalLayersError(f"{node.name} changes an input unnoticed")
        if set(changes) != set(self.layers.changed):
            raise UnequalLayersError("an input is not changed as was expected")
        return changes

    # -- the whole graph -----------------------------------------------------------------------

    def _reading(self, node: Node, layer: int) -> Node:
        """What a node after the layers reads of a layer."""
        if node.op != "call_function" or node.target != _CLONE or len(node.args) != 1:
            raise UnequalLayersError(f"{node.name} is no copy of a layer's value")
        source = argument_nodes(node)[0]
        if _value(node) != _value(source):
            raise UnequalLayersError(f"{node.name} is laid out otherwise than {source.name}")
        if layer <= self.model_layer:
            return self.env[source]
        if source not in self.counterpart and source not in self.model:
            raise UnequalLayersError(f"{source.name} is of no layer")
        return self._image(source, layer)

    def _change(self, node: Node, target: Node, changes: dict[Node, Node]) -> Node:
        """The new value of an input that a layer changes."""
        if node.op != "call_function" or node.target != _COPY:
            raise UnequalLayersError(f"{node.name} does not overwrite an input")
        for at in range(KEPT_LAYERS, len(self.layers.nodes)):
            for model_input, value in changes.items():
                if self.layers.sources[at][model_input] is target:
                    return self._image(value, at)
        raise UnequalLayersError(f"{node.name} overwrites another input")

    def _image(self, node: Node, layer: int) -> Node:
        """What a node that the model layer reads or computes is for another layer."""
        if layer == self.model_layer:
            return self.env[node]
        if node in self.copies[layer]:
            return self.copies[layer][node]
        if node in self.counterpart:  # of the layer before
            return self._image(self.counterpart[node], layer - 1)
        if node.op == "placeholder":
            for wanted, found in self.layers.sources[layer].items():
                if self.inputs.get(wanted) is node:
                    return self.env[self.inputs[found]]
        return self.env[node]

    def _add_layer(self, layer: int) -> None:
        images = self.copies[layer] = {}
        inputs = {
            self.inputs[wanted]: self.env[self.inputs[found]]
            for wanted, found in self.layers.sources[layer].items()
            if wanted.op == "placeholder"
        }
        images.update(inputs)
        for node in self.model:
            sources = {source: self._image(source, layer) for source in argument_nodes(node)}
            copy = images[node] = self._copy(node, sources)
            copy.meta = dict(node.meta)
            original = self.layers.nodes[layer][self._place(node)[1]]
            for key in ("nn_module_stack", "stack_trace"):
                if key in original.meta and key in copy.meta:
                    copy.meta[key] = original.meta[key]

    def _copy(self, node: Node, sources: dict[Node, Node]) -> Node:
        if node.op == "get_attr" and str(node.target).startswith(_CONSTANT):
            name = f"{_CONSTANT}{len(self.constants)}"
            self.constants.append((name, getattr(self.lowered, str(node.target))))
            return self.graph.create_node("get_attr", name)
        args, kwargs = torch.fx.map_arg((node.args, node.kwargs), sources.__getitem__)
        own_name = node.name if node.op == "placeholder" else None
        return self.graph.create_node(node.op, node.target, args, kwargs, own_name, node.type)

    def _module(self) -> torch.fx.GraphModule:
        root = torch.nn.Module()
        for node in self.graph.nodes:
            if node.op == "get_attr" and not str(node.target).startswith(_CONSTANT):
                raise UnequalLayersError(f"{node.name} is an attribute")
        for name, tensor in self.constants:
            root.register_buffer(name, tensor.clone(), persistent=False)
        module = torch.fx.GraphModule(root, self.graph)
        module.meta = dict(self.lowered.meta)
        return module

    def _remove_index(self, node: Node) -> None:
        custom = dict(node.meta.get("custom") or {})
        custom.pop(NODE_INDEX, None)
        if custom:
            node.meta["custom"] = custom
        else:
            node.meta.pop("custom", None)


def _are_alike(first: Node, second: Node, module: torch.nn.Module) -> bool:
    """Whether two nodes do the same to whatever they read."""
    if first.op == second.op == "get_attr":
        one, other = (getattr(module, str(node.target), None) for node in (first, second))
        if not isinstance(one, torch.Tensor) or not isinstance(other, torch.Tensor):
            return False
        return one.dtype == other.dtype and torch.equal(one, other)
    nothing = [torch.fx.map_arg((n.args, n.kwargs), lambda _: None) for n in (first, second)]
    return (
        (first.op, first.target) == (second.op, second.target)
        and repr(nothing[0]) == repr(nothing[1])
        and _value(first) == _value(second)
    )


def _value(node: Node) -> Any:
    """The metadata of what a node computes, to compare."""
    return _described(node.meta.get("val"))


def _described(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        layout = str(value.shape), str(value.stride())
        return value.dtype, value.device, value.layout, *layout
    if isinstance(value, list | tuple):
        return [_described(item) for item in value]
    return type(value), str(value)
