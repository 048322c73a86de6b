"""A GPU that is no GPU: streams that do at once what they are told, so that issuing can be tested.

What a real GPU does later, this does when it is issued; an op issued before what it waits for, a
weight overwritten before it is read, or a tensor freed too early still shows. What streams must
wait for does not: that needs a real GPU (`test_gpu.py`).
"""

from __future__ import annotations

import contextlib

from models import torch

from placewright.runtime import executor, real_devices
from placewright.runtime.cuda import issuer, streams
from placewright.runtime.micro_batches import AccumulatingUpdate

capturing = []
"""The graph that is being captured, if one is."""


class Event:
    def __init__(self) -> None:
        self.recorded = self.captured = False

    def record(self, stream=None):
        self.recorded, self.captured = True, bool(capturing)

    def synchronize(self):
        assert self.recorded


class Stream:
    def __init__(self, device=None, priority=0) -> None:
        self.device = device

    def wait_event(self, event):
        assert event.recorded, "a stream waits for what was never issued"
        assert event.captured == bool(capturing), "a capture and what is not in it cannot wait"

    def wait_stream(self, other):
        pass

    def synchronize(self):
        pass


def install(monkeypatch):
    """Make this machine one with GPUs; to be called once models have been captured."""
    current = Stream()
    monkeypatch.setattr(executor.Executor, "_check_devices", lambda run: None)
    monkeypatch.setattr(torch.cuda, "Event", Event)
    monkeypatch.setattr(torch.cuda, "Stream", Stream)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device=None: current)
    monkeypatch.setattr(torch.cuda, "set_stream", lambda stream: None)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda device=None: None)
    monkeypatch.setattr(torch.cuda, "stream", lambda stream: contextlib.nullcontext())
    monkeypatch.setattr(torch.Tensor, "record_stream", lambda tensor, stream: None)
    monkeypatch.setattr(torch.Tensor, "pin_memory", lambda tensor: tensor)
    monkeypatch.setattr(streams, "pinned_like", torch.empty_like)
    monkeypatch.setattr(real_devices.RealDevice, "torch_name", "cpu")


class Graph:
    """Ops that are run again on the tensors they were captured with."""

    def __init__(self) -> None:
        self.calls = []

    def replay(self):
        for run, read, made in self.calls:
            for old, new in zip(made, run(read), strict=True):
                old.copy_(new)


def as_in(value, copies, read):
    """A tensor that is in the memory of a copy as it is in that of what was copied."""
    for copy, one in zip(copies, read, strict=True):
        if value.untyped_storage().data_ptr() == copy.untyped_storage().data_ptr():
            begin = one.storage_offset() + value.storage_offset()
            return one.as_strided(value.shape, value.stride(), begin)
    return value


def install_graphs(monkeypatch):
    """Let runs of ops be captured; unlike on a real GPU, capturing runs them, but on copies."""

    @contextlib.contextmanager
    def capture(graph, pool=None, stream=None, capture_error_mode=""):
        capturing.append(graph)
        try:
            yield
        finally:
            capturing.pop()

    issue = issuer.Issuer.issue

    def recorded(self, step, cuda_device, index):
        if not capturing:
            issue(self, step, cuda_device, index)
            return
        job, env = cuda_device.job, step.env[cuda_device.number]
        instruction, run = job.instructions.sequence[index], job.runners[index]
        slots = cuda_device.staging.slots if cuda_device.staging else ()
        locations = env, job.resident, slots
        read = [locations[location][key] for location, key in instruction.inputs]
        if isinstance(run, AccumulatingUpdate):  # which would change a weight
            made = [torch.empty(0)]
        elif instruction.in_place:
            copies = [one.clone() for one in read]
            made = [as_in(value, copies, read) for value in run(copies)]
        else:
            made = run(read)
        env.update({(instruction.position, output): value for output, value in enumerate(made)})
        capturing[-1].calls.append((run, read, made))

    copy_batch = streams._StagingBuffer._copy_batch

    def recorded_batch(staging, batch):
        copy_batch(staging, batch)
        for slot, weight in batch.pairs if capturing else ():
            capturing[-1].calls.append((list, [weight], [slot]))

    monkeypatch.setattr(streams._StagingBuffer, "_copy_batch", recorded_batch)
    monkeypatch.setattr(torch.cuda, "CUDAGraph", Graph)
    monkeypatch.setattr(torch.cuda, "graph", capture)
    monkeypatch.setattr(torch.cuda, "graph_pool_handle", object)
    monkeypatch.setattr(issuer.Issuer, "issue", recorded)
