"""A CUDA backend without a GPU: streams run at once what they are issued.

What a real GPU does later, this does when it is issued; an op issued before what it waits for, a
weight overwritten before it is read, or a tensor freed too early still shows. What streams must
wait for does not: that needs a real GPU (`test_gpu.py`).
"""

from __future__ import annotations

import contextlib
from dataclasses import dataclass, field
from types import SimpleNamespace

from models import torch
from torch._subclasses.fake_tensor import FakeTensor
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_map

from placewright.runtime.cuda.backend import use_backend


class FakeEvent:
    def __init__(self, cuda: FakeCuda) -> None:
        self.cuda, self.recorded, self.captured = cuda, False, False

    def record(self, stream=None):
        self.recorded, self.captured = True, bool(self.cuda.capturing)

    def synchronize(self):
        assert self.recorded


class FakeStream:
    def __init__(self, cuda: FakeCuda) -> None:
        self.cuda = cuda

    def wait_event(self, event):
        assert event.recorded, "a stream waits for what was never issued"
        assert event.captured == bool(self.cuda.capturing), "a capture and others cannot wait"

    def wait_stream(self, stream):
        pass

    def synchronize(self):
        pass


class FakeGraph:
    """Ops that are run again on the tensors they were captured with."""

    def __init__(self) -> None:
        self.calls = []

    def replay(self):
        for func, args, kwargs, outputs in self.calls:
            new = tensors_in(func(*args, **kwargs))
            for old, value in zip(outputs, new, strict=True):
                if storage(old) not in map(storage, tensors_in((args, kwargs))):
                    old.copy_(value)


def tensors_in(value) -> list[torch.Tensor]:
    leaves = torch.utils._pytree.tree_leaves(value)
    return [leaf for leaf in leaves if isinstance(leaf, torch.Tensor)]


def storage(tensor: torch.Tensor) -> int:
    return tensor.untyped_storage().data_ptr() if tensor.numel() else id(tensor)


class Recorder(TorchDispatchMode):
    """Records ops into a graph; those that write into their inputs are run on copies of them."""

    def __init__(self, graph: FakeGraph) -> None:
        super().__init__()
        self.graph = graph

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        originals = {}

        def copied(value):
            copy = torch.clone(value)
            originals[storage(copy)] = value
            return copy

        arguments = list(args)
        for index, argument in enumerate(func._schema.arguments):
            if argument.alias_info is not None and argument.alias_info.is_write:
                assert index < len(arguments), f"{func} writes to a keyword argument"
                arguments[index] = tree_map(copied, arguments[index])
        outputs = func(*arguments, **kwargs)
        outputs = tree_map(
            lambda value: (
                originals.get(storage(value), value) if isinstance(value, torch.Tensor) else value
            ),
            outputs,
        )
        inputs = set(map(storage, tensors_in((args, kwargs))))
        if originals or any(storage(value) not in inputs for value in tensors_in(outputs)):
            self.graph.calls.append((func, args, kwargs, tensors_in(outputs)))
        return outputs


class Allocator(TorchDispatchMode):
    """Counts the bytes of tensors that ops make; more than the cap is an error, as on a GPU."""

    def __init__(self, cap: int, cuda: FakeCuda) -> None:
        super().__init__()
        self.cap, self.cuda = cap, cuda
        self.blocks: dict[int, tuple[StorageWeakRef, int]] = {}

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        outputs = func(*args, **(kwargs or {}))
        if any(isinstance(tensor, FakeTensor) for tensor in tensors_in((args, kwargs, outputs))):
            return outputs
        inputs = set(map(storage, tensors_in((args, kwargs))))
        for tensor in tensors_in(outputs):
            address, size = storage(tensor), tensor.untyped_storage().nbytes()
            self.blocks = {
                key: block for key, block in self.blocks.items() if not block[0].expired()
            }
            self.cuda.reserved = sum(size for _, size in self.blocks.values())
            if address in inputs or address in self.blocks:
                continue
            if self.cuda.reserved + size > self.cap:
                raise torch.OutOfMemoryError(f"Tried to allocate {size} bytes")
            self.blocks[address] = StorageWeakRef(tensor.untyped_storage()), size
        return outputs


@dataclass
class FakeCuda:
    """GPUs of the host's own memory.

    Args:
        gpus: How many.
        free: Bytes that nothing uses.
        capturing: The graph that is being captured, if one is.
        cleared: How often cuBLAS's workspaces were freed.
        registered: Bytes of the host's memory that are registered, by address.
        counts_host: Whether capped calls are refused what they allocate beyond the cap. Tensors of
            the host count, too: the two have one memory.
        caps: The caps in force, the inmost last.
        was_used: Whether the program has used the GPUs before.
        measured: How often free bytes were asked for.
        reserved: Bytes that a capped call has allocated, and not freed.
    """

    gpus: int = 8
    free: int = 1 << 40
    capturing: list[FakeGraph] = field(default_factory=list)
    cleared: int = 0
    reserved: int = 0
    registered: dict[int, int] = field(default_factory=dict)
    counts_host: bool = False
    caps: list[int] = field(default_factory=list)
    was_used: bool = False
    measured: int = 0

    def __post_init__(self) -> None:
        self.stream = FakeStream(self)

    def device_count(self):
        return self.gpus

    def properties(self, index):
        return SimpleNamespace(name="a GPU", total_memory=self.free, multi_processor_count=1)

    def device_name(self, index):
        return "cpu"

    def new_stream(self, device, priority=0):
        return FakeStream(self)

    def confined_stream(self, index, multiprocessors):
        return None, FakeStream(self)

    def new_event(self):
        return FakeEvent(self)

    def current_stream(self, device):
        return self.stream

    def has_context(self, index):
        return self.was_used

    def open_context(self, device):
        pass

    def set_stream(self, stream):
        pass

    def stream_scope(self, stream):
        return contextlib.nullcontext()

    def record_use(self, tensor, stream):
        pass

    def pinned_like(self, tensor):
        return torch.empty_like(tensor)

    def pin(self, tensor):
        return tensor

    def register_host(self, address, size):
        assert address not in self.registered
        self.registered[address] = size
        return True

    def unregister_host(self, address):
        if self.capturing:
            return False
        del self.registered[address]
        return True

    def new_graph(self):
        return FakeGraph()

    def new_graph_pool(self):
        return object()

    @contextlib.contextmanager
    def capture(self, graph, pool, stream):
        self.capturing.append(graph)
        try:
            with Recorder(graph):
                yield
        finally:
            self.capturing.pop()

    def synchronize(self, device=None):
        pass

    def empty_cache(self):
        pass

    def clear_workspaces(self):
        self.cleared += 1

    def free_bytes(self, index):
        self.measured += 1
        return self.free

    @contextlib.contextmanager
    def memory_cap(self, index, size):
        self.caps.append(size)
        is_backward = torch._C._current_graph_task_id() >= 0  # where each node has its own modes
        counts = self.counts_host and not is_backward
        try:
            with Allocator(size, self) if counts else contextlib.nullcontext():
                yield
        finally:
            self.caps.pop()

    def reserved_bytes(self, index):
        return self.reserved

    def peak_bytes(self, index):
        return 0

    def reset_peak(self, index):
        pass


@contextlib.contextmanager
def fake_gpus(**settings):
    """Make this machine one with GPUs inside the block; models are captured before it."""
    cuda = FakeCuda(**settings)
    with use_backend(cuda):
        yield cuda
