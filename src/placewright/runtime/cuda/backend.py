"""The CUDA backend: what the runtime needs of CUDA, as a protocol, and PyTorch's implementation.

The runtime reaches streams, events, graphs, pinned memory and memory figures through the current
backend alone, so that tests can run it without a GPU.
"""

from __future__ import annotations

import threading
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from collections.abc import Iterator
    from contextlib import AbstractContextManager

    import torch


class CudaEvent(Protocol):
    """A point in a stream that other streams and the host can wait for."""

    def record(self, stream: Any = None) -> None:
        """Mark the point that a stream has reached."""

    def synchronize(self) -> None:
        """Let the host wait for it."""


class CudaStream(Protocol):
    """A queue of a GPU: what is issued to it runs in order."""

    def wait_event(self, event: Any) -> None:
        """Let what is issued from now on wait for an event."""

    def wait_stream(self, stream: Any) -> None:
        """Let what is issued from now on wait for all that another stream has been issued."""

    def synchronize(self) -> None:
        """Let the host wait for all that has been issued."""


class CudaGraph(Protocol):
    """Captured work."""

    def replay(self) -> None:
        """Issue it again on the current stream."""


class Backend(Protocol):
    """What the runtime needs of CUDA."""

    def device_count(self) -> int:
        """How many GPUs this process can use."""

    def properties(self, index: int) -> Any:
        """A GPU's `name`, `total_memory`, `multi_processor_count` and, if known, L2 cache."""

    def device_name(self, index: int) -> str:
        """PyTorch's name of a GPU, such as `cuda:0`."""

    def new_stream(self, device: torch.device, priority: int = 0) -> CudaStream:
        """A stream of a GPU; a negative priority goes ahead of others."""

    def confined_stream(self, index: int, multiprocessors: int) -> tuple[Any, CudaStream]:
        """A stream that is confined to some multiprocessors, and what keeps it alive."""

    def new_event(self) -> CudaEvent:
        """An event that streams can wait for."""

    def current_stream(self, device: torch.device) -> CudaStream:
        """The stream that this thread issues to on a GPU."""

    def has_context(self, index: int) -> bool:
        """Whether this process has used a GPU, or may have."""

    def open_context(self, device: torch.device) -> None:
        """Make a GPU's context this thread's, which cuBLAS warns of where it is missing."""

    def set_stream(self, stream: CudaStream) -> None:
        """Let this thread issue to a stream from now on."""

    def stream_scope(self, stream: CudaStream) -> AbstractContextManager[Any]:
        """Let this thread issue to a stream inside the block."""

    def record_use(self, tensor: torch.Tensor, stream: CudaStream) -> None:
        """Tell the allocator that a stream uses a tensor that was allocated on another one."""

    def pinned_like(self, tensor: torch.Tensor) -> torch.Tensor:
        """Uninitialised pinned memory of the host for a tensor."""

    def pin(self, tensor: torch.Tensor) -> torch.Tensor:
        """A copy of a host's tensor in pinned memory."""

    def register_host(self, address: int, size: int) -> bool:
        """Pin memory of the host where it is; whether that was possible."""

    def unregister_host(self, address: int) -> bool:
        """Undo `register_host`, once no GPU reads the memory; false if that is impossible now."""

    def new_graph(self) -> CudaGraph:
        """A graph with nothing captured yet."""

    def new_graph_pool(self) -> Any:
        """A memory pool that graphs share."""

    def capture(
        self, graph: CudaGraph, pool: Any, stream: CudaStream
    ) -> AbstractContextManager[Any]:
        """Capture what this thread issues to a stream inside the block, instead of running it."""

    def synchronize(self, device: torch.device | int | None = None) -> None:
        """Let the host wait for all that a GPU was issued; None: the current GPU."""

    def empty_cache(self) -> None:
        """Give unused memory of the allocator back to the GPUs."""

    def clear_workspaces(self) -> None:
        """Free what cuBLAS keeps for each stream."""

    def free_bytes(self, index: int) -> int:
        """Bytes of a GPU that nothing uses."""

    def memory_cap(self, index: int, size: int) -> AbstractContextManager[Any]:
        """Let the allocator of a GPU take at most `size` bytes inside the block."""

    def reserved_bytes(self, index: int) -> int:
        """Bytes of a GPU that the allocator has, used or not."""

    def peak_bytes(self, index: int) -> int:
        """The most bytes that tensors took on a GPU at once, since `reset_peak`."""

    def reset_peak(self, index: int) -> None:
        """Restart the peak."""


class TorchCuda:
    """CUDA as PyTorch provides it."""

    def __init__(self) -> None:
        import torch

        self._torch: Any = torch
        self._opened = threading.local()
        self._cap_lock = threading.Lock()
        self._caps: dict[int, list[float]] = {}  # those in force, as shares of the GPU's memory
        self._own_fraction: dict[int, float] = {}  # the program's own, before the first of them
        self._cuda: Any = torch.cuda

    def device_count(self) -> int:
        return int(self._cuda.device_count()) if self._cuda.is_available() else 0

    def properties(self, index: int) -> Any:
        return self._cuda.get_device_properties(index)

    def device_name(self, index: int) -> str:
        return f"cuda:{index}"

    def new_stream(self, device: torch.device, priority: int = 0) -> CudaStream:
        stream: CudaStream = self._cuda.Stream(device, priority=priority)
        return stream

    def confined_stream(self, index: int, multiprocessors: int) -> tuple[Any, CudaStream]:
        context = self._cuda.GreenContext.create(num_sms=multiprocessors, device_id=index)
        if hasattr(context, "Stream"):
            return context, context.Stream()
        context.set_context()
        try:
            return context, self.current_stream(self._torch.device(self.device_name(index)))
        finally:
            context.pop_context()

    def new_event(self) -> CudaEvent:
        event: CudaEvent = self._cuda.Event()
        return event

    def current_stream(self, device: torch.device) -> CudaStream:
        stream: CudaStream = self._cuda.current_stream(device)
        return stream

    def has_context(self, index: int) -> bool:
        return bool(self._cuda.is_initialized() and self._cuda.max_memory_reserved(index))

    def open_context(self, device: torch.device) -> None:
        opened = self._opened.__dict__.setdefault("devices", set())
        if device not in opened:  # the autograd engine's threads have none
            self._cuda.current_stream(device).query()
            opened.add(device)

    def set_stream(self, stream: CudaStream) -> None:
        self._cuda.set_stream(stream)

    def stream_scope(self, stream: CudaStream) -> AbstractContextManager[Any]:
        scope: AbstractContextManager[Any] = self._cuda.stream(stream)
        return scope

    def record_use(self, tensor: torch.Tensor, stream: CudaStream) -> None:
        tensor.record_stream(stream)  # type: ignore[arg-type]

    def pinned_like(self, tensor: torch.Tensor) -> torch.Tensor:
        pinned: torch.Tensor = self._torch.empty_like(tensor, device="cpu", pin_memory=True)
        return pinned

    def pin(self, tensor: torch.Tensor) -> torch.Tensor:
        return tensor.pin_memory()

    def register_host(self, address: int, size: int) -> bool:
        for_all_contexts = 1  # cudaHostRegisterPortable
        return self._succeeded(
            self._cuda.cudart().cudaHostRegister(address, size, for_all_contexts)
        )

    def unregister_host(self, address: int) -> bool:
        if self._cuda.is_current_stream_capturing():
            return False
        for index in range(self.device_count()):
            self._cuda.synchronize(index)
        return self._succeeded(self._cuda.cudart().cudaHostUnregister(address))

    def _succeeded(self, status: Any) -> bool:
        """Whether a call of CUDA's was right; if not, its error is no later op's."""
        if int(status) == 0:
            return True
        with suppress(RuntimeError):  # a launch reports the last error, and resets it
            self._torch.zeros(1, device="cuda")
        return False

    def new_graph(self) -> CudaGraph:
        graph: CudaGraph = self._cuda.CUDAGraph()
        return graph

    def new_graph_pool(self) -> Any:
        return self._cuda.graph_pool_handle()

    def capture(
        self, graph: CudaGraph, pool: Any, stream: CudaStream
    ) -> AbstractContextManager[Any]:
        scope: AbstractContextManager[Any] = self._cuda.graph(
            graph, pool=pool, stream=stream, capture_error_mode="thread_local"
        )
        return scope

    def synchronize(self, device: torch.device | int | None = None) -> None:
        self._cuda.synchronize(device)

    def empty_cache(self) -> None:
        self._cuda.empty_cache()

    def clear_workspaces(self) -> None:
        self._torch._C._cuda_clearCublasWorkspaces()

    def free_bytes(self, index: int) -> int:
        return int(self._cuda.mem_get_info(index)[0])

    @contextmanager
    def memory_cap(self, index: int, size: int) -> Iterator[None]:
        fraction = size / self.properties(index).total_memory
        with self._cap_lock:  # blocks of several threads need not end in order
            if not self._caps.get(index):
                get_fraction = getattr(self._cuda, "get_per_process_memory_fraction", lambda _: 1.0)
                self._own_fraction[index] = float(get_fraction(index))
                self._caps[index] = []
            self._caps[index].append(fraction)
            self._set_fraction(index)
        try:
            yield
        finally:
            with self._cap_lock:
                self._caps[index].remove(fraction)
                self._set_fraction(index)

    def _set_fraction(self, index: int) -> None:
        """Let the least of all caps of a GPU hold, and none where there is none."""
        least = min(self._own_fraction[index], *self._caps[index], 1.0)
        self._cuda.set_per_process_memory_fraction(least, index)

    def reserved_bytes(self, index: int) -> int:
        return int(self._cuda.memory_reserved(index))

    def peak_bytes(self, index: int) -> int:
        return int(self._cuda.max_memory_allocated(index))

    def reset_peak(self, index: int) -> None:
        self._cuda.reset_peak_memory_stats(index)


_backends: list[Backend] = []
"""Backends in use, the current one last; PyTorch's is the first."""


def current_backend() -> Backend:
    """The backend that the runtime uses now, in all threads."""
    if not _backends:
        _backends.append(TorchCuda())
    return _backends[-1]


@contextmanager
def use_backend(backend: Backend) -> Iterator[None]:
    """Let the runtime use another backend inside the block; executors keep theirs until closed."""
    current_backend()
    _backends.append(backend)
    try:
        yield
    finally:
        _backends.remove(backend)
