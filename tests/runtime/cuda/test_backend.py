"""CUDA backends: both have all that the runtime needs, and one is current at a time."""

from __future__ import annotations

import inspect

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
