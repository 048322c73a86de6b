"""Ranks with GPUs, without GPUs: fake ones, and the transport of NCCL over gloo."""

from __future__ import annotations

import gpu_jobs
import pytest
import torch.distributed as dist
import train_jobs
from rank_processes import run_ranks, start_ranks

from placewright.runtime.distributed import nccl_transport


def test_tensors_of_gpus_go_through_pinned_memory_and_results_are_the_models():
    outcomes = run_ranks(gpu_jobs.run_on_gpus, 2, "mlp", [1, 2])
    assert outcomes[0][0] == []
    for _, pins, copies in outcomes:
        assert pins > 0, "no tensor arrived in pinned memory"
        assert copies > 0, "no tensor left a GPU through pinned memory"


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["cnn", "odd", "gpt2"])
def test_any_plan_on_gpus_of_several_ranks_gives_the_models_outputs(kind):
    assert run_ranks(gpu_jobs.run_on_gpus, 3, kind, list(range(12)))[0][0] == []


@pytest.mark.slow
@pytest.mark.parametrize("name", ["sgd", "adam"])
def test_training_on_gpus_of_several_ranks_is_pytorchs_own_loop(name):
    script = [0, 1, "call", [2, 3, 4], 5]
    assert run_ranks(train_jobs.train_on_gpus, 2, "chain", name, [0, 1, 2, 3], script)[0] < 2e-5


def test_a_group_for_each_stage_and_direction_carries_any_plan():
    assert run_ranks(gpu_jobs.run_over_groups, 2, "mlp", [1, 2])[0] == []


def test_a_rank_without_a_gpu_of_its_own_says_so():
    for rank, outcome in enumerate(start_ranks(gpu_jobs.open_without_gpus, 2).outcomes()):
        assert outcome.kind == "ExecutionError"
        assert f"this process is number {rank} of its host, which has 0 GPUs" in outcome.error


@pytest.mark.parametrize(
    ("backend", "transport"),
    [("gloo", "GlooTransport"), ("nccl", "NcclTransport"), ("cpu:gloo,cuda:nccl", "NcclTransport")],
)
def test_the_transport_is_that_of_the_process_groups_backend(backend, transport, monkeypatch):
    monkeypatch.setattr(dist, "is_initialized", lambda: True)
    monkeypatch.setattr(dist, "get_backend", lambda: backend)
    for name in ("GlooTransport", "NcclTransport"):
        monkeypatch.setattr(nccl_transport, name, lambda timeout, name=name: name)
    assert nccl_transport.open_transport(1.0) == transport
