"""A plan in; any call of the model run under it, function by function, out.

This is the way for calls that are not captured: a cache that grows with every token, a branch on a
value, a backward pass. Every function of PyTorch runs where the plan has the ops of the module
whose weights it reads, or else where its first tensor is; what it reads elsewhere is brought there.
Streamed weights are brought ahead, in the order of the call before. It asks for nothing, so it does
not fail where the model itself does not.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

import torch
from torch.overrides import TorchFunctionMode

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from placewright.plan import Plan
    from placewright.runtime.real_devices import Place

_CHANGES = frozenset({"__setitem__", "copy_", "set_"})


def readers_of(
    plan: Plan, places: Sequence[Place], stored: Mapping[str, torch.Tensor]
) -> dict[int, torch.device]:
    """Where each parameter and buffer is read, by its id.

    That is where most ops of its module run, or of the next module around it that has any.

    Args:
        stored: The model's parameters and buffers, by name.
    """
    votes: dict[str, Counter[int]] = {}
    for name, device in zip(plan.ops, plan.device.tolist(), strict=True):
        if name not in stored:
            votes.setdefault(name.rpartition(".")[0], Counter())[device] += 1
    home = dict(zip(plan.ops, plan.device.tolist(), strict=True))
    found = {}
    for name, tensor in stored.items():
        path = name.rpartition(".")[0]
        while path and path not in votes:
            path = path.rpartition(".")[0]
        count = votes.get(path) or Counter([home.get(name, 0)])
        found[id(tensor)] = torch.device(places[count.most_common(1)[0][0]].torch_name)
    return found


class Follow(TorchFunctionMode):
    """While it is on, functions run where a plan says.

    Args:
        readers: For each parameter and buffer, by id, the PyTorch device on which it is read.
        room: Bytes of weights that may be brought to each device ahead of their use.
    """

    def __init__(
        self, readers: Mapping[int, torch.device], room: Mapping[torch.device, int]
    ) -> None:
        super().__init__()
        self.readers, self.room = readers, room
        self.order: list[torch.Tensor] = []  # the weights that the call before brought, in order
        self.seen: list[torch.Tensor] = []
        self.ahead: dict[int, tuple[torch.Tensor, Any]] = {}
        self.streams: dict[torch.device, Any] = {}
        self.next = 0

    def begin(self) -> None:
        """A call begins."""
        self.order, self.seen, self.next = self.seen or self.order, [], 0
        self.ahead.clear()

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        name = getattr(func, "__name__", "")
        if name == "__get__":
            return func(*args, **kwargs)
        tensors = [*_tensors(args), *_tensors(kwargs.values())]
        if len({one.device for one in tensors}) < 2 and not any(
            self.readers.get(id(one), one.device) != one.device for one in tensors
        ):
            return func(*args, **kwargs)
        target = self._target(name, tensors)
        return func(
            *(self._moved(one, target) for one in args),
            **{key: self._moved(one, target) for key, one in kwargs.items()},
        )

    def _target(self, name: str, tensors: Sequence[torch.Tensor]) -> torch.device:
        """Where a function runs: what it changes stays, weights say, else its first tensor does."""
        first = tensors[0]
        if name in _CHANGES or (name.endswith("_") and not name.endswith("__")):
            return first.device
        for one in tensors:
            if id(one) in self.readers:
                return self.readers[id(one)]
        large = [one for one in tensors if one.dim() > 0]
        return large[0].device if large else first.device

    def _moved(self, value: Any, target: torch.device) -> Any:
        if isinstance(value, torch.Tensor):
            if value.device == target:
                return value
            return self._brought(value, target) if id(value) in self.readers else value.to(target)
        if isinstance(value, list | tuple) and type(value) in (list, tuple):
            return type(value)(self._moved(one, target) for one in value)
        return value

    def _brought(self, weight: torch.Tensor, target: torch.device) -> torch.Tensor:
        """A weight on another device than its home; those that come next are begun too."""
        if target.type != "cuda" or (torch.is_grad_enabled() and weight.requires_grad):
            return weight.to(target)
        self.seen.append(weight)
        begun = self.ahead.pop(id(weight), None)
        if begun is None:
            made = weight.to(target, non_blocking=True)
        else:
            made, event = begun
            stream = torch.cuda.current_stream(target)
            stream.wait_event(event)
            made.record_stream(stream)
        self._bring_ahead(weight, target)
        return made.detach()

    def _bring_ahead(self, weight: torch.Tensor, target: torch.device) -> None:
        """Begin to copy the weights that come after this one, as far as the room permits."""
        from placewright.runtime.cuda.streams import new_event, new_stream

        places = [at for at, one in enumerate(self.order) if one is weight]
        if not places:
            return
        stream = self.streams.setdefault(target, new_stream(target))
        left = self.room.get(target, 0) - sum(one.nbytes for one, _ in self.ahead.values())
        at = next((one for one in places if one >= self.next), places[0])
        self.next = at + 1
        for other in self.order[at + 1 :]:
            if id(other) in self.ahead:
                continue
            left -= other.nbytes
            if left < 0 or self.readers[id(other)] != target:
                return
            with torch.cuda.stream(stream), torch.no_grad():
                made = other.detach().to(target, non_blocking=True)
                event = new_event()
                event.record(stream)
            self.ahead[id(other)] = made, event


def _tensors(values: Any) -> list[torch.Tensor]:
    found: list[torch.Tensor] = []
    for value in values:
        if isinstance(value, torch.Tensor):
            found.append(value)
        elif type(value) in (list, tuple):
            found += _tensors(value)
    return found
