"""CUDA backends: both have all that the runtime needs, and one is current at a time."""

from __future__ import annotations

import inspect
from types import SimpleNamespace

import pytest
from fake_cuda import FakeCuda
from models import torch

from placewright.runtime.cuda.backend import Backend, TorchCuda, current_backend, use_backend
from placewright.runtime.machine import this_machine
from placewright.runtime.real_devices import RealDevice


@pytest.mark.parametrize("implementation", [TorchCuda, FakeCuda])
def test_a_backend_has_every_method_with_its_arguments(implementation):
    names = [name for name in vars(Backend) if not name.startswith("_")]
    assert len(names) > 10
    for name in names:
        expected = inspect.signature(getattr(Backend, name)).parameters
        assert list(inspect.signature(getattr(implementation, name)).parameters) == list(expected)


def test_a_backend_is_used_until_the_block_is_over():
    device = RealDevice("gpu0", "cuda", 1)
    assert isinstance(current_backend(), TorchCuda)
    assert device.torch_name == "cuda:1"
    with use_backend(FakeCuda(gpus=2)):
        assert device.torch_name == "cpu"
        assert [gpu.name for gpu in this_machine().gpus] == ["a GPU"] * 2
    assert isinstance(current_backend(), TorchCuda)


class Memory:
    """The share of a GPU of 1,000 bytes that PyTorch's allocator may take."""

    def __init__(self) -> None:
        self.fraction = 0.9  # a program's own

    def get_device_properties(self, index):
        return SimpleNamespace(total_memory=1000)

    def get_per_process_memory_fraction(self, index):
        return self.fraction

    def set_per_process_memory_fraction(self, fraction, index):
        self.fraction = fraction


def test_the_least_of_all_caps_holds_whatever_the_order_in_which_they_end():
    cuda = TorchCuda()
    memory = cuda._cuda = Memory()
    first, second = cuda.memory_cap(0, 500), cuda.memory_cap(0, 200)  # of two threads
    fractions = []
    for step in (first.__enter__, second.__enter__):
        step()
        fractions.append(memory.fraction)
    for block in (first, second):
        block.__exit__(None, None, None)
        fractions.append(memory.fraction)
    assert fractions == [0.5, 0.2, 0.2, 0.9]
    with cuda.memory_cap(0, 2000):
        assert memory.fraction == 0.9
    assert memory.fraction == 0.9


def test_a_captured_graph_runs_again_on_its_tensors_and_nothing_before(cuda):
    x, total = torch.ones(3), torch.zeros(3)
    graph = cuda.new_graph()
    with cuda.capture(graph, cuda.new_graph_pool(), cuda.new_stream(None)):
        double = x.view(3, 1) * 2
        total.add_(double[:, 0])
    assert total.tolist() == [0, 0, 0]
    for factor in (1, 10):
        x.fill_(factor)
        graph.replay()
        assert double[:, 0].tolist() == [2 * factor] * 3
    assert total.tolist() == [22, 22, 22]
