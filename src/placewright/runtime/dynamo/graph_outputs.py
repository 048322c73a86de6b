"""What a compiled graph returns: each value on the device that its caller expects.

A gradient goes to the device of its input, a tensor that the model returns to that of the call, and
one that is saved for the backward graph stays where it is.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any

import torch

from placewright.frontends.pytorch.aot_graph import gradient_input, is_saved, output_nodes
from placewright.frontends.pytorch.shapes import Node
from placewright.runtime.program.scalars import is_scalar

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from placewright.runtime.program.scalars import Scalars


@dataclass
class JointGraph:
    """What a forward graph and its backward graph share.

    Args:
        input_devices: The device of each input of the compiled function, by index. A forward graph
            writes it in every call; its backward graph returns each gradient on that device.
        outputs: The descriptors of what the forward graph returns to the caller, in order.
    """

    input_devices: dict[int, torch.device] = field(default_factory=dict)
    outputs: Sequence[Any] = ()


@dataclass(frozen=True)
class GraphCall:
    """What a graph returns its outputs from.

    Args:
        args: The flat arguments.
        saved: The same as the backward graph shall see them: states as they were before the call.
        values: What was computed.
    """

    args: Sequence[Any]
    saved: Sequence[Any]
    values: Sequence[Any]
    _copies: dict[int, torch.UntypedStorage] = field(default_factory=dict)

    @cached_property
    def _storages(self) -> Counter[int]:
        """How many values have each storage."""
        tensors = (value for value in self.values if isinstance(value, torch.Tensor))
        return Counter(_storage_key(tensor) for tensor in tensors)

    def move(self, value: torch.Tensor, target: torch.device) -> torch.Tensor:
        """A value on another device; values that share memory do so there, too."""
        key = _storage_key(value)
        if self._storages[key] < 2:
            return value.to(target)
        storage = self._copies.get(key)
        if storage is None:
            whole = torch.empty(0, dtype=torch.uint8, device=value.device)
            whole.set_(value.untyped_storage())
            storage = self._copies[key] = whole.to(target).untyped_storage()
        moved = torch.empty(0, dtype=value.dtype, device=target)
        return moved.set_(storage, value.storage_offset(), value.shape, value.stride())


def _storage_key(tensor: torch.Tensor) -> int:
    """A number of a tensor's memory; without a layout in memory, of the tensor."""
    if tensor.layout != torch.strided:
        return id(tensor)
    key: int = tensor.untyped_storage()._cdata
    return key


class GraphOutputs:
    """The outputs of a graph, in order.

    Args:
        device_of_call: Where tensors go that the model returns; None: where they were traced.
        scalars: The symbolic sizes that the program computes.
        is_step: Whether the program is a whole training step: then nothing is saved.
        computed: Whether values are those that a program computes; else they are all outputs.
    """

    def __init__(
        self,
        graph: torch.fx.Graph,
        joint: JointGraph,
        device_of_call: Callable[[], torch.device | None],
        scalars: Scalars | None = None,
        is_step: bool = False,
        computed: bool = True,
    ) -> None:
        self._joint, self._device_of_call, self._scalars = joint, device_of_call, scalars
        self._is_step, self._computed = is_step, computed
        self._placeholders = [node for node in graph.nodes if node.op == "placeholder"]
        self._getters = self._find_getters(output_nodes(graph))

    def of(self, call: GraphCall) -> list[Any]:
        """The outputs of a call."""
        return [get(call) for get in self._getters]

    def _find_getters(self, outputs: Sequence[tuple[Any, Any]]) -> list[Callable[[GraphCall], Any]]:
        index_of = {node: index for index, node in enumerate(self._placeholders)}
        getters: list[Callable[[GraphCall], Any]] = []
        count = 0
        for position, (node, descriptor) in enumerate(outputs):
            is_node = isinstance(node, Node)
            if is_node and node in index_of:
                getters.append(self._argument_getter(index_of[node], is_saved(descriptor)))
            elif is_node and self._is_step and is_saved(descriptor):
                is_tensor = isinstance(node.meta.get("val"), torch.Tensor)
                getters.append(_empty_tensor if is_tensor else _zero)
            elif is_node and isinstance(node.meta.get("val"), torch.Tensor):
                at = count if self._computed else position
                getters.append(self._tensor_getter(at, node, descriptor))
                count += 1
            elif is_node and is_scalar(node):
                getters.append(self._scalar_getter(node, position))
            else:
                getters.append(_constant_getter(node))
        return getters

    def _argument_getter(self, index: int, saved: bool) -> Callable[[GraphCall], Any]:
        """An argument that is passed on; one that is saved keeps its data if they are replaced."""
        if not saved or is_scalar(self._placeholders[index]):
            return lambda call: call.args[index]
        return lambda call: call.saved[index].detach()

    def _tensor_getter(
        self, at: int, node: Node, descriptor: Any
    ) -> Callable[[GraphCall], torch.Tensor]:
        """A tensor on the device that the caller expects."""
        gradient_of, saved = gradient_input(descriptor), is_saved(descriptor)
        device = None if saved else node.meta["val"].device

        def get(call: GraphCall) -> torch.Tensor:
            value: torch.Tensor = call.values[at]
            target = device
            if gradient_of is not None:
                target = self._joint.input_devices.get(gradient_of, device)
            elif device is not None:
                target = self._device_of_call() or device
            if target is not None and value.device != target:
                value = call.move(value, target)
            if torch.is_inference_mode_enabled() and not value.is_inference():
                shape, strides, offset = value.shape, value.stride(), value.storage_offset()
                empty = torch.empty(0, dtype=value.dtype, device=value.device)
                return empty.set_(value.untyped_storage(), offset, shape, strides)
            return value

        return get

    def _scalar_getter(self, node: Node, position: int) -> Callable[[GraphCall], Any]:
        if not self._computed:
            return lambda call: call.values[position]

        def get(call: GraphCall) -> Any:
            assert self._scalars is not None
            return self._scalars.values[node]

        return get


def _constant_getter(value: Any) -> Callable[[GraphCall], Any]:
    return lambda call: value


def _empty_tensor(call: GraphCall) -> torch.Tensor:
    return torch.empty(0)


def _zero(call: GraphCall) -> int:
    return 0
