"""Batches in parts: the same step as of the whole batch, however many parts are in flight."""

from __future__ import annotations

import pytest
from models import capture, plans, torch, twin, workers
from torch import nn

from placewright.errors import ConfigError, ExecutionError
from placewright.runtime import Executor
from placewright.runtime.micro_batches import train_micro_batches
from placewright.runtime.program.optimizer_step import OptimizerRule

OPTIMIZERS = {
    "sgd": lambda p: torch.optim.SGD(p, lr=0.05),
    "momentum": lambda p: torch.optim.SGD(p, lr=0.05, momentum=0.9),
    "adam": lambda p: torch.optim.Adam(p, lr=0.05),
}


class Loss(nn.Module):
    """A chain whose first weight is read twice, and the mean of its squared error."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(8, 8), nn.Linear(8, 1)

    def forward(self, x, y):
        x = self.first(torch.tanh(self.first(x)))
        return (self.last(torch.tanh(x)) - y).square().mean()


def batch(seed: int, size: int = 12):
    x = torch.randn(size, 8, generator=torch.Generator().manual_seed(seed))
    return x, x.sum(dim=1, keepdim=True)


@pytest.mark.parametrize("in_flight", [1, 4])
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_micro_batches_equal_the_step_of_the_whole_batch(name, in_flight):
    torch.manual_seed(0)
    model = Loss()
    part = tuple(one[:3] for one in batch(0))
    program, problem = capture(
        model, part, workers(2), training=True, optimizer=OptimizerRule(name, 0.05)
    )
    reference = twin(model)
    optimizer = OPTIMIZERS[name](reference.parameters())
    for plan in plans(problem, 3):
        trained, right = twin(model), twin(reference)
        optimizer = OPTIMIZERS[name](right.parameters())
        with Executor(program, trained, plan) as run:
            for seed in range(3):
                x, y = batch(seed)
                losses = train_micro_batches(
                    run, zip(x.split(3), y.split(3), strict=True), in_flight
                )
                optimizer.zero_grad()
                whole = right(x, y)
                whole.backward()
                optimizer.step()
                assert len(losses) == 4
                assert torch.stack(losses).mean().item() == pytest.approx(whole.item(), rel=1e-4)
            for mine, theirs in zip(trained.parameters(), right.parameters(), strict=True):
                assert torch.allclose(mine, theirs, atol=1e-5)
            before = [one.clone() for one in trained.parameters()]
            run(*part)  # a plain step still changes the weights at once
            after = trained.parameters()
            assert any((a != b).any() for a, b in zip(before, after, strict=True))


def test_a_part_that_fails_changes_no_weight():
    model = Loss()
    x, y = batch(0)
    program, problem = capture(model, (x[:3], y[:3]), workers(2), training=True, optimizer="sgd")
    trained = twin(model)
    calls = []

    def once(own):
        return lambda values: calls.append(1) or (own(values) if len(calls) == 1 else 1 / 0)

    with Executor(program, trained, plans(problem, 1)[0]) as run:
        job, *_ = run.jobs.values()
        job.runners[0] = once(job.runners[0])
        with pytest.raises(ExecutionError, match="failed on"):
            train_micro_batches(run, [(x[:3], y[:3])] * 2)
    for mine, theirs in zip(trained.parameters(), model.parameters(), strict=True):
        assert torch.equal(mine, theirs)


def test_impossible_micro_batches_are_refused():
    class Normed(Loss):
        def __init__(self) -> None:
            super().__init__()
            self.norm = nn.BatchNorm1d(8)

        def forward(self, x, y):
            return super().forward(self.norm(x), y)

    x, y = batch(0)
    program, problem = capture(Normed(), (x, y), training=True, optimizer="sgd")
    with Executor(program, Normed(), plans(problem, 1)[0]) as run:
        with pytest.raises(ExecutionError, match="one in flight"):
            train_micro_batches(run, [(x, y), (x, y)])
        with pytest.raises(ConfigError, match="no micro-batches"):
            train_micro_batches(run, [])
        assert len(train_micro_batches(run, [(x, y), (x, y)], in_flight=1)) == 2
    program, problem = capture(Loss(), (x, y))
    with (
        Executor(program, Loss(), plans(problem, 1)[0]) as run,
        pytest.raises(ConfigError, match="training step"),
    ):
        train_micro_batches(run, [(x, y)])
