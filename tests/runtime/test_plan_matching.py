"""A plan matches other captures of its model."""

from __future__ import annotations

import numpy as np
import pytest
from fake_cuda import fake_gpus
from models import Branches, machine, nn, torch, twin, workers

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


def test_the_update_of_a_weight_that_was_frozen_is_on_the_weights_device(model):
    """The module's other ops are elsewhere, and an update there would change a copy."""
    model[0].requires_grad_(False)
    problem = Problem(from_torch(model, (X,), training=True), workers())
    weight = problem.graph.position["0.weight"]
    is_elsewhere = [
        at != weight and op.kind != "input" and (op.kind != "view" or (weight, 0) not in op.inputs)
        for at, op in enumerate(problem.graph.ops)
    ]
    plan = Plan.of(problem, np.array(is_elsewhere, dtype=np.int32))
    model.requires_grad_(True)
    matched = match_plan(plan, from_torch(model, (X,), training=True))
    device_of = dict(zip(matched.ops, matched.placement.tolist(), strict=True))
    assert (device_of["0.weight"], device_of["0.weight.update"]) == (0, 0)
    assert device_of["2.bias.update"] == 1


def random_order(graph, seed):
    """A random topological order, as priorities."""
    rng, turns = np.random.default_rng(seed), {}
    while len(turns) < len(graph):
        ready = [
            position
            for position, op in enumerate(graph.ops)
            if position not in turns and all(source in turns for source, _ in op.inputs)
        ]
        turns[int(rng.choice(ready))] = len(turns)
    return [float(turns[position]) for position in range(len(graph))]


@pytest.mark.parametrize("seed", range(3))
def test_an_ordinary_training_loop_runs_in_the_order_of_a_training_plan(seed):
    model = Branches()
    reference = twin(model)
    graph = from_torch(model, (X,), training=True)
    problem = Problem(graph, workers())
    placement = problem.legalize(np.arange(len(graph)) % 2)
    plan = Plan.of(problem, placement, random_order(graph, seed))
    apply(plan, model)
    for each in (model, reference):
        outputs = each(X)
        (outputs["made"].sum() + outputs["sum"]).backward()
    for mine, theirs in zip(model.parameters(), reference.parameters(), strict=True):
        assert torch.equal(mine.grad, theirs.grad)
    priority = dict(zip(plan.ops, plan.priority, strict=True))
    for compiled in model.placed.graphs:
        names = [compiled.program.graph.ops[op].name for op in compiled.executor.instructions.order]
        turns = [priority[name] for name in names if name in priority]
        assert len(turns) >= 5
        assert turns == sorted(turns)


def test_a_plan_of_calls_gives_no_order_to_backward_passes(model):
    problem = Problem(from_torch(model, (X,)), workers())
    placement = problem.legalize([0] * len(problem.graph))
    plan = Plan.of(problem, placement, random_order(problem.graph, 0))
    apply(plan, model)
    model(X).sum().backward()
    _, backward = model.placed.graphs
    assert backward.plan.priority is None


def test_a_streamed_model_can_be_cast_to_a_wider_dtype(model):
    reference = twin(model)
    with fake_gpus(), torch.no_grad():
        apply(streaming_plan(model), model)
        for dtype in (torch.float32, torch.float64, torch.float32):
            model.to(dtype), reference.to(dtype)
            assert torch.allclose(model(X.to(dtype)), reference(X.to(dtype)))
        assert not model.placed.eager_calls
        model.placed.remove()
