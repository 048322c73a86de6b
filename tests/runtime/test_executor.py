"""Plans run on worker threads: whatever the placement and order, the model's own results."""

from __future__ import annotations

import threading

import numpy as np
import pytest
from models import Branches, Cached, capture, nn, plans, torch, twin, workers

from placewright import Plan
from placewright.errors import ExecutionError, PlanError
from placewright.frontends.torch_updates import Rule
from placewright.runtime import Executor
from placewright.zoo.networks import NETWORKS


@pytest.mark.parametrize("staged", [False, True])
def test_any_plan_gives_the_models_outputs(staged):
    model, x = Branches(), torch.randn(4, 8)
    program, problem = capture(model, x, workers(3))
    expected = model(x)
    for plan in plans(problem, 6, staged=staged):
        with Executor(program, twin(model), plan) as run:
            for _ in range(2):
                made = run(x)
            assert torch.equal(made["made"], expected["made"])
            assert torch.equal(made["sum"], expected["sum"])
            assert not made["made"].requires_grad


def test_any_plan_trains_as_one_device_does():
    model, args, kwargs = NETWORKS["rnnlm-2"].build("test", training=True)
    program, problem = capture(
        model, args, workers(3), kwargs=kwargs, training=True, optimizer=Rule("adam", 0.01)
    )
    reference = twin(model)
    optimizer = torch.optim.Adam(reference.parameters(), lr=0.01)
    losses = []
    for _ in range(3):
        optimizer.zero_grad()
        loss = reference(*args, **kwargs)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    for plan in [*plans(problem, 2), *plans(problem, 2, staged=True)]:
        trained = twin(model)
        with Executor(program, trained, plan) as run:
            made = [run(*args, **kwargs).item() for _ in range(3)]
        assert made == pytest.approx(losses, rel=1e-5)
        for mine, theirs in zip(trained.parameters(), reference.parameters(), strict=True):
            assert torch.allclose(mine, theirs, atol=1e-5)


def test_states_are_kept_from_step_to_step_whatever_the_order():
    model = Cached()
    rows = [(torch.randn(1, 8), torch.tensor([at])) for at in (3, 0, 3)]
    program, problem = capture(model, rows[0])
    reference = twin(model)
    with torch.no_grad():
        expected = [[one.clone() for one in reference(*row)] for row in rows]
    for plan in plans(problem, 6):
        mine = twin(model)
        with Executor(program, mine, plan) as run:
            for row, wanted in zip(rows, expected, strict=True):
                for one, other in zip(run(*row), wanted, strict=True):
                    assert torch.allclose(one, other)
        assert torch.allclose(mine.cache, reference.cache)
        assert mine.calls == 3


def test_a_given_state_is_changed_in_the_callers_own_tensor():
    class Given(nn.Module):
        def forward(self, cache, x):
            cache[1] += x
            return cache.sum()

    program, problem = capture(Given(), (torch.zeros(3, 2), torch.ones(2)))
    for plan in plans(problem, 2):
        cache = torch.zeros(3, 2)
        with Executor(program, Given(), plan) as run:
            assert run(cache, torch.ones(2)) == 2
            assert run(cache, torch.ones(2)) == 4
        assert cache[1].tolist() == [2, 2]


def test_random_numbers_are_the_same_wherever_they_are_drawn():
    class Dropped(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = nn.Linear(8, 8)

        def forward(self, x):
            return nn.functional.dropout(self.inner(x), 0.5, training=True).sum()

    model, x = Dropped(), torch.randn(4, 8)
    program, problem = capture(model, x, training=True)
    made = []
    for plan in plans(problem, 4):
        with Executor(program, twin(model), plan, seed=7) as run:
            made.append(run(x).item())
    assert len(set(made)) == 1


def test_a_failing_op_is_named_and_stops_everything():
    model, x = Branches(), torch.randn(4, 8)
    program, problem = capture(model, x)
    before = set(threading.enumerate())  # models of other tests may still be placed
    run = Executor(program, twin(model), plans(problem, 1)[0])
    with pytest.raises(ExecutionError, match=r"op 'left.linear' failed on 'cpu\d'|'right.linear'"):
        run(torch.randn(4, 9))
    with pytest.raises(ExecutionError, match="cannot be run any more"):
        run(x)
    left = set(threading.enumerate()) - before
    assert not [one for one in left if one.name.startswith("placewright-")]


def test_a_plan_of_another_model_is_refused():
    program, _ = capture(Branches(), torch.randn(4, 8))
    _, other = capture(nn.Sequential(nn.Linear(8, 8)), torch.randn(4, 8))
    plan = Plan.of(other, other.settle(np.zeros(len(other.graph), dtype=int)))
    with pytest.raises(PlanError, match="missing in the plan"):
        Executor(program, Branches(), plan)
