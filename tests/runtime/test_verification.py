"""Verification passes honest executors, and catches every kind of dishonest one."""

from __future__ import annotations

import numpy as np
import pytest
from models import Branches, Cached, capture, plans, torch, twin, workers

from placewright import Plan
from placewright.errors import VerifyError
from placewright.runtime import (
    instructions,
    verification,
    verify,
)
from placewright.runtime.program import program as torch_program
from placewright.runtime.program.optimizer_step import OptimizerRule


@pytest.fixture(scope="module")
def branches():
    torch.manual_seed(0)
    model, x = Branches(), torch.randn(4, 8)
    return model, x, *capture(model, x, workers(3))


@pytest.fixture(scope="module")
def learning():
    torch.manual_seed(0)
    model, x = Branches(), torch.randn(4, 8)
    return model, x, *capture(model, x, training=True, optimizer=OptimizerRule("adam"))


@pytest.mark.parametrize("staged", [False, True])
def test_an_honest_run_passes(branches, learning, staged):
    model, x, program, problem = branches
    for plan in plans(problem, 3, staged=staged):
        seen = verify(program, twin(model), plan, (x,), problem=problem)
        assert seen.difference < 1e-6
        assert seen.ops == sum(problem.arrays.scheduled)
        assert set(seen.peak) <= set(seen.predicted)
        for name, most in seen.peak.items():
            assert 0 < most <= seen.predicted[name] * 1.1 + 4096
    model, x, program, problem = learning
    for plan in plans(problem, 2, staged=staged):
        mine = twin(model)
        assert verify(program, mine, plan, (x,), problem=problem).difference < 1e-5
        for one, other in zip(mine.parameters(), model.parameters(), strict=True):
            assert torch.equal(one, other)  # the update is taken back
            assert one.grad is None


def test_the_states_of_an_optimizer_are_counted(learning):
    model, x, adam, problem = learning
    sgd, _ = capture(model, x, training=True, optimizer=OptimizerRule("sgd"))
    plan = Plan.of(problem, np.zeros(len(problem.graph), dtype=int))
    assert [op.name for op in sgd.graph.ops] == list(plan.ops)
    peak = [verify(one, twin(model), plan, (x,)).peak["cpu0"] for one in (sgd, adam)]
    weights = sum(one.nbytes for one in model.parameters())
    assert peak[1] == peak[0] + 2 * weights


class Counting(torch.nn.Module):
    """What comes in, through a layer, and how often that has been."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(8, 8)
        self.register_buffer("times", torch.zeros((), dtype=torch.long))

    def forward(self, x):
        self.times += 1
        return self.layer(x), self.times


def test_a_state_that_is_an_output_is_held_to_what_it_was_then():
    model, x = Counting().eval(), torch.randn(2, 8)
    program, problem = capture(model, x)
    for plan in plans(problem, 2):
        mine = twin(model)
        assert verify(program, mine, plan, (x,)).difference < 1e-6
        assert mine.times == 0


def test_states_are_left_as_they_were():
    model, args = Cached(), (torch.randn(1, 8), torch.tensor([1]))
    program, problem = capture(model, args)
    for plan in plans(problem, 2):
        verify(program, model, plan, args, problem=problem)
    assert model.cache.abs().sum() == 0
    assert model.calls == 0


def test_a_wrong_output_is_caught(branches, monkeypatch):
    model, x, program, problem = branches
    honest = torch_program.Program.runner

    def wrong(self, position, *rest, **named):
        run = honest(self, position, *rest, **named)
        if self.graph.ops[position].name != "relu":
            return run
        return lambda values: [one * 1.01 for one in run(values)]

    monkeypatch.setattr(torch_program.Program, "runner", wrong)
    with pytest.raises(
        VerifyError, match=r"output 0 differs from one device's by .* \(and 1 more\)"
    ):
        verify(program, twin(model), plans(problem, 1)[0], (x,))


def test_a_wrong_gradient_is_caught(learning, monkeypatch):
    model, x, program, problem = learning
    honest = torch_program.Program.runner

    def wrong(self, position, *rest, **named):
        run = honest(self, position, *rest, **named)
        if "backward" not in self.graph.ops[position].name:
            return run
        return lambda values: [one * 1.01 for one in run(values)]

    monkeypatch.setattr(torch_program.Program, "runner", wrong)
    with pytest.raises(VerifyError, match="the gradient of"):
        verify(program, twin(model), plans(problem, 1)[0], (x,))


def test_an_op_on_another_device_is_caught(branches, monkeypatch):
    model, x, program, problem = branches
    honest = instructions.compile_graph
    swapped = {0: 1, 1: 0, 2: 2}

    def elsewhere(graph, device, *rest):
        return honest(graph, [swapped[at] for at in device], *rest)

    monkeypatch.setattr(instructions, "compile_graph", elsewhere)
    with pytest.raises(VerifyError, match=r"ran on 'cpu\d': the plan has it on 'cpu\d'"):
        verify(program, twin(model), plans(problem, 1)[0], (x,))


def test_memory_beyond_the_prediction_is_caught(branches, monkeypatch):
    model, x, program, problem = branches
    monkeypatch.setattr(verification, "LIBRARY_BYTES", 0)
    plan = plans(problem, 1)[0]
    verify(program, twin(model), plan, (x,), problem=problem)
    light = problem.with_arrays(resident=problem.arrays.resident * 0)
    with pytest.raises(VerifyError, match=r"held \d+ bytes: the plan predicts \d+"):
        verify(program, twin(model), plan, (x,), problem=light)
