"""Eager fallback: runs calls that are not captured under the placement of a plan.

Calls with a cache that grows with every token, a branch on a value or a backward pass are not
captured. Every PyTorch function then runs on the device where the plan has the ops of the module
whose weights it reads, else on the device of its first tensor; inputs of other devices are copied
there, and copied back if the function changes them. Streamed weights are prefetched in the order
of the previous call. On a GPU, autocast of the host casts as it does there. This works for every
call that works without a plan.

Where the model has limits, the allocator of each GPU is capped for the time of the call, and of its
backward pass. A function of the call that needs more memory gets it from prefetched weights; else
the error names the function.
"""

from __future__ import annotations

import contextlib
import re
from collections import Counter
from typing import TYPE_CHECKING, Any

import torch
from torch.overrides import TorchFunctionMode

from placewright.errors import ExecutionError
from placewright.runtime.backward_limits import BackwardLimits
from placewright.runtime.cuda.backend import current_backend
from placewright.runtime.cuda.library_memory import library_bytes
from placewright.units import format_bytes

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from placewright.plan import Plan
    from placewright.runtime.real_devices import RealDevice

_CHANGING_FUNCTIONS = frozenset({"batch_norm", "instance_norm"})
"""Functions that write into statistics which their schemas do not declare as changed."""
_SPARSE_FUNCTIONS = frozenset({"embedding", "embedding_bag"})
"""Functions whose gradients may be sparse: PyTorch's own copies refuse those."""
_IN_PLACE_FUNCTIONS = frozenset({"__setitem__", "copy_", "set_"})
_REQUEST = re.compile(r"[Tt]ried to allocate ([\d.]+) (bytes|[KMGT]iB)")
_GPU = re.compile(r"\bGPU (\d+)")
_UNITS = {"bytes": 1, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30, "TiB": 1 << 40}


def find_compute_devices(
    plan: Plan, real_devices: Sequence[RealDevice], named_tensors: Mapping[str, torch.Tensor]
) -> dict[int, torch.device]:
    """The device on which each parameter and buffer is read, by its id.

    It is the device of most ops of its module, or of the nearest enclosing module that has ops.

    Args:
        named_tensors: The model's parameters and buffers, by name.
    """
    votes: dict[str, Counter[int]] = {}
    for name, device in zip(plan.ops, plan.placement.tolist(), strict=True):
        if name not in named_tensors:
            votes.setdefault(name.rpartition(".")[0], Counter())[device] += 1
    device_of = dict(zip(plan.ops, plan.placement.tolist(), strict=True))
    torch_devices = {}
    for name, tensor in named_tensors.items():
        path = name.rpartition(".")[0]
        while path and path not in votes:
            path = path.rpartition(".")[0]
        count = votes.get(path) or Counter([device_of.get(name, 0)])
        torch_devices[id(tensor)] = torch.device(
            real_devices[count.most_common(1)[0][0]].torch_name
        )
    return torch_devices


def shortage_text(error: torch.OutOfMemoryError, limits: Mapping[int, int]) -> str:
    """What each GPU that is too small may use, and what it needs at least.

    Args:
        limits: Bytes that may be used, by the number of the GPU.
    """
    found, gpu = _REQUEST.search(str(error)), _GPU.search(str(error))
    request = int(float(found[1]) * _UNITS[found[2]]) if found else 0
    texts = []
    for index, limit in limits.items():
        if gpu is not None and int(gpu[1]) != index:
            continue
        taken = current_backend().reserved_bytes(index) + library_bytes(index)
        needed = max(taken + request, limit + 1)
        texts.append(
            f"GPU {index} may use {format_bytes(limit)} and needs {needed:,} bytes or more"
        )
    return ", ".join(texts)


@contextlib.contextmanager
def memory_caps(limits: Mapping[int, int], measure: bool = True) -> Iterator[None]:
    """Cap the allocator of each GPU inside the block, so that it keeps a limit with libraries.

    Args:
        limits: Bytes, by the number of the GPU.
        measure: Whether to measure what libraries take; else it is what they took before.
    """
    with contextlib.ExitStack() as stack:
        for index, limit in limits.items():
            size = max(0, limit - library_bytes(index, measure))
            stack.enter_context(current_backend().memory_cap(index, size))
        yield


class EagerPlacement(TorchFunctionMode):
    """While it is active, PyTorch functions run on the devices that a plan names.

    Args:
        compute_devices: The PyTorch device on which each parameter and buffer is read, by id.
        prefetch_bytes: Bytes of weights that may be prefetched to each device.
        limits: Bytes that may be used of each GPU, by its number; others have no limit.
    """

    def __init__(
        self,
        compute_devices: Mapping[int, torch.device],
        prefetch_bytes: Mapping[torch.device, int],
        limits: Mapping[int, int] | None = None,
    ) -> None:
        super().__init__()
        self.compute_devices, self.prefetch_bytes = compute_devices, prefetch_bytes
        self.limits = caps = dict(limits or {})
        self.backward_limits = BackwardLimits(lambda: memory_caps(caps))
        self.previous_weights: list[torch.Tensor] = []  # copied by the previous call, in order
        self.current_weights: list[torch.Tensor] = []
        self.prefetches: dict[int, tuple[torch.Tensor, Any]] = {}
        self.copy_streams: dict[torch.device, Any] = {}
        self.next_index = 0

    @classmethod
    def of(
        cls,
        plan: Plan,
        real_devices: Sequence[RealDevice],
        named_tensors: Mapping[str, torch.Tensor],
        limits: Mapping[int, int] | None,
    ) -> EagerPlacement:
        """The placement of a plan; as much is prefetched as it has staging buffers."""
        sizes = [0] * len(real_devices) if plan.staging is None else plan.staging.tolist()
        prefetch_bytes = {
            torch.device(real_device.torch_name): max(0, int(size))
            for real_device, size in zip(real_devices, sizes, strict=True)
        }
        devices = find_compute_devices(plan, real_devices, named_tensors)
        return cls(devices, prefetch_bytes, limits)

    def for_rerun(self) -> EagerPlacement:
        """The same placement for another thread; it prefetches nothing, and has no limits."""
        return EagerPlacement(self.compute_devices, {})

    def begin_call(self) -> None:
        """Begin a call."""
        self.previous_weights, self.current_weights, self.next_index = (
            self.current_weights or self.previous_weights,
            [],
            0,
        )
        self.prefetches.clear()

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        name = getattr(func, "__name__", "")
        if name == "__get__":
            return func(*args, **kwargs)
        outputs = self._run_within_limits(func, name, args, kwargs)
        if self.limits and torch.is_grad_enabled():
            self.backward_limits.watch(outputs)
        return outputs

    def _run_within_limits(self, func: Any, name: str, args: Any, kwargs: Any) -> Any:
        """Run a function on its device; where memory is short, without prefetched weights."""
        try:
            return self._run(func, name, args, kwargs)
        except torch.OutOfMemoryError as error:
            if not self.limits:
                raise
            if not self.prefetches or _is_in_place(name):  # which may have written a part
                raise self._limit_error(name, error) from error
        self.prefetches.clear()
        current_backend().empty_cache()
        try:
            return self._run(func, name, args, kwargs)
        except torch.OutOfMemoryError as error:
            raise self._limit_error(name, error) from error

    def _limit_error(self, name: str, error: torch.OutOfMemoryError) -> ExecutionError:
        """An error that says which function needs how much memory."""
        return ExecutionError(
            f"function {name!r} of a call that is not captured does not fit: "
            f"{shortage_text(error, self.limits)}: "
            "place the model with a higher limit, or for calls of this kind, which are then planned"
        )

    def _run(self, func: Any, name: str, args: Any, kwargs: Any) -> Any:
        """Run a function on its device."""
        tensors = [*_tensors_in(args), *_tensors_in(kwargs.values())]
        if len({value.device for value in tensors}) < 2 and not any(
            self.compute_devices.get(id(value), value.device) != value.device for value in tensors
        ):
            return func(*args, **kwargs)
        copies = _Copies(self, self._target(name, tensors), name in _SPARSE_FUNCTIONS)
        moved_args = [copies.of(value) for value in args]
        moved_kwargs = {key: copies.of(value) for key, value in kwargs.items()}
        with _autocast_as_on_host(copies.target):
            outputs = func(*moved_args, **moved_kwargs)
        copies.write_back(name in _CHANGING_FUNCTIONS)
        return outputs

    def _target(self, name: str, tensors: Sequence[torch.Tensor]) -> torch.device:
        """A function's device: of the tensor it changes, a weight, or its first tensor."""
        first_tensor = tensors[0]
        if _is_in_place(name):
            return first_tensor.device
        for tensor in tensors:
            if id(tensor) in self.compute_devices:
                return self.compute_devices[id(tensor)]
        non_scalars = [tensor for tensor in tensors if tensor.dim() > 0]
        return non_scalars[0].device if non_scalars else first_tensor.device

    def weight_on(self, weight: torch.Tensor, target: torch.device) -> torch.Tensor:
        """A copy of a weight on another device; copies of the next weights are started, too."""
        if target.type != "cuda" or (torch.is_grad_enabled() and weight.requires_grad):
            return weight.to(target)
        self.current_weights.append(weight)
        prefetch = self.prefetches.pop(id(weight), None)
        if prefetch is None:
            copy = weight.to(target, non_blocking=True)
        else:
            copy, event = prefetch
            stream = current_backend().current_stream(target)
            stream.wait_event(event)
            current_backend().record_use(copy, stream)
        self._prefetch(weight, target)
        return copy.detach()

    def _prefetch(self, weight: torch.Tensor, target: torch.device) -> None:
        """Start copies of the weights that follow this one, as far as `prefetch_bytes` permits."""
        indices = [index for index, item in enumerate(self.previous_weights) if item is weight]
        if not indices:
            return
        stream = self.copy_streams.setdefault(target, current_backend().new_stream(target))
        free_bytes = self.prefetch_bytes.get(target, 0) - sum(
            item.nbytes for item, _ in self.prefetches.values()
        )
        index = next((item for item in indices if item >= self.next_index), indices[0])
        self.next_index = index + 1
        for next_weight in self.previous_weights[index + 1 :]:
            if id(next_weight) in self.prefetches:
                continue
            free_bytes -= next_weight.nbytes
            if free_bytes < 0 or self.compute_devices[id(next_weight)] != target:
                return
            with current_backend().stream_scope(stream), torch.no_grad():
                try:
                    copy = next_weight.detach().to(target, non_blocking=True)
                except torch.OutOfMemoryError:  # it is copied when it is read
                    return
                event = current_backend().new_event()
                event.record(stream)
            self.prefetches[id(next_weight)] = copy, event


class _Copies:
    """The arguments of a function on its device.

    Args:
        placement: Says which tensors are weights, and copies them.
        target: The device.
        is_sparse: Whether gradients of the copies may be sparse.
    """

    def __init__(self, placement: EagerPlacement, target: torch.device, is_sparse: bool) -> None:
        self.placement, self.target, self.is_sparse = placement, target, is_sparse
        self._pairs: list[tuple[torch.Tensor, torch.Tensor, int]] = []

    def of(self, value: Any) -> Any:
        """An argument, with its tensors on the device."""
        if isinstance(value, torch.Tensor):
            return value if value.device == self.target else self._copy(value)
        if isinstance(value, list | tuple) and type(value) in (list, tuple):
            return type(value)(self.of(item) for item in value)
        return value

    def _copy(self, value: torch.Tensor) -> torch.Tensor:
        if self.is_sparse and value.requires_grad and torch.is_grad_enabled():
            copy_function: Any = _SparseGradientCopy
            copy: torch.Tensor = copy_function.apply(value, self.target)
        elif id(value) in self.placement.compute_devices:
            copy = self.placement.weight_on(value, self.target)
        else:
            copy = value.to(self.target)
        if not copy.is_inference():
            self._pairs.append((value, copy, copy._version))
        return copy

    def write_back(self, all_statistics: bool) -> None:
        """Copy back what the function has changed.

        Args:
            all_statistics: Also every tensor that needs no gradient: what changed is not known.
        """
        for value, copy, version in self._pairs:
            is_statistic = all_statistics and not value.requires_grad and value.is_leaf
            if copy._version != version or is_statistic:
                with torch.no_grad():
                    value.copy_(copy)


class _SparseGradientCopy(torch.autograd.Function):
    """A copy on another device, whose gradient may be sparse."""

    @staticmethod
    def forward(ctx: Any, value: torch.Tensor, target: torch.device) -> torch.Tensor:
        ctx.device = value.device
        return value.to(target)

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> Any:
        return gradients[0].to(ctx.device), None


def _autocast_as_on_host(target: torch.device) -> contextlib.AbstractContextManager[Any]:
    """Autocast for a function on a GPU, where autocast of the host is on and its own is not."""
    if target.type != "cuda" or not torch.is_autocast_enabled("cpu"):
        return contextlib.nullcontext()
    if torch.is_autocast_enabled("cuda"):
        return contextlib.nullcontext()
    return torch.autocast("cuda", torch.get_autocast_dtype("cpu"))


def _is_in_place(name: str) -> bool:
    """Whether a function writes into its first tensor."""
    return name in _IN_PLACE_FUNCTIONS or (name.endswith("_") and not name.endswith("__"))


def _tensors_in(values: Any) -> list[torch.Tensor]:
    tensors: list[torch.Tensor] = []
    for value in values:
        if isinstance(value, torch.Tensor):
            tensors.append(value)
        elif type(value) in (list, tuple):
            tensors += _tensors_in(value)
    return tensors
