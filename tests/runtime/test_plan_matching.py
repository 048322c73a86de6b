"""A plan matches other captures of its model."""

from __future__ import annotations

import numpy as np
import pytest
from fake_cuda import fake_gpus
from models import machine, nn, torch, twin

from placewright import Plan, Problem, apply, from_torch
from placewright.runtime.plan_matching import match_plan

X = torch.randn(4, 8, generator=torch.Generator().manual_seed(0))


@pytest.fixture
def model():
    return nn.Sequential(nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 8)).eval()


def streaming_plan(model):
    """Weights on the host, ops on a GPU, with a staging buffer that just holds those of an op."""
    problem = Problem(from_torch(model, (X,)), machine(1))
    placement = np.where(problem.arrays.is_weight, 0, problem.legalize([1] * len(problem.graph)))
    return Plan.of(problem, placement, staging={"gpu0": 8 * 9 * 4})


def test_a_plan_of_the_same_graph_is_taken_as_it_is(model):
    plan = streaming_plan(model)
    assert match_plan(plan, from_torch(model, (X,))) is plan


def test_staging_buffers_grow_with_weights_that_were_cast(model):
    plan = streaming_plan(model)
    matched = match_plan(plan, from_torch(model.double(), (X.double(),)))
    assert matched.staging.tolist() == [-1, 8 * 9 * 8]
    assert matched.ops == plan.ops


def test_a_streamed_model_can_be_cast_to_a_wider_dtype(model):
    reference = twin(model)
    with fake_gpus(), torch.no_grad():
        apply(streaming_plan(model), model)
        for dtype in (torch.float32, torch.float64, torch.float32):
            model.to(dtype), reference.to(dtype)
            assert torch.allclose(model(X.to(dtype)), reference(X.to(dtype)))
        assert not model.placed.eager_calls
        model.placed.remove()
