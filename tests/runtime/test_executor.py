"""Plans run on worker threads: whatever the placement and order, the model's own results."""

from __future__ import annotations

import gc
import threading
import weakref

import numpy as np
import pytest
from models import Branches, Cached, capture, nn, plans, torch, twin, workers

from placewright import Plan
from placewright.errors import ExecutionError, PlanError
from placewright.runtime import Executor
from placewright.runtime.in_flight import pipelined_results
from placewright.runtime.program.optimizer_step import OptimizerRule
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
        model, args, workers(3), kwargs=kwargs, training=True, optimizer=OptimizerRule("adam", 0.01)
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


def test_states_persist_from_step_to_step_in_any_order():
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


def failing(_):
    raise RuntimeError("out of luck")


def test_another_shape_than_captured_is_refused_and_changes_nothing():
    model, x = Branches(), torch.randn(4, 8)
    program, problem = capture(model, x)
    with Executor(program, twin(model), plans(problem, 1)[0]) as run:
        with pytest.raises(ExecutionError, match=r"'x' is of shape \(4, 9\).* with \(4, 8\)"):
            run(torch.randn(4, 9))
        with pytest.raises(ExecutionError, match="float64"):
            run(x.double())
        assert torch.equal(run(x)["made"], model(x)["made"])


def test_an_interrupted_step_leaves_nothing_in_flight(monkeypatch):
    model, x = Branches(), torch.randn(4, 8)
    program, problem = capture(model, x)
    run = Executor(program, twin(model), plans(problem, 1)[0])

    def interrupted(number):
        raise KeyboardInterrupt

    monkeypatch.setattr(run, "output_tensors", interrupted)
    with pytest.raises(KeyboardInterrupt):
        run(x)
    assert run.broken


def test_steps_in_flight_can_be_let_end_before_they_are_asked_for():
    model, x = Branches(), torch.randn(4, 8)
    program, problem = capture(model, x)
    with Executor(program, twin(model), plans(problem, 1)[0]) as run:
        numbers = [run.submit(x + at) for at in range(3)]
        run.finish_steps()
        run.finish_steps()
        assert torch.equal(run(x + 7)["made"], model(x + 7)["made"])
        for at, number in enumerate(numbers):
            assert torch.equal(run.result(number)["made"], model(x + at)["made"])


def test_a_caller_that_stops_early_leaves_nothing_in_flight():
    model, x = Branches(), torch.randn(4, 8)
    program, problem = capture(model, x)
    with Executor(program, twin(model), plans(problem, 1)[0]) as run:
        for _ in pipelined_results(run, (x,), [(x,)] * 9, 4):
            break
        assert not run._in_flight
        assert not run._done_by_step


@pytest.mark.usefixtures("frozen_heap")
def test_an_executor_that_nobody_has_any_more_ends_its_threads():
    model, x = Branches(), torch.randn(4, 8)
    program, problem = capture(model, x)
    run = Executor(program, model, plans(problem, 1)[0])
    run(x)
    threads, gone = list(run.workers.values()), weakref.ref(run)
    del run
    gc.collect()
    assert gone() is None
    for thread in threads:
        thread.join(timeout=10)
        assert not thread.is_alive()


def test_a_failing_op_is_named_and_stops_everything():
    model, x = Branches(), torch.randn(4, 8)
    program, problem = capture(model, x)
    before = set(threading.enumerate())  # models of other tests may still be placed
    run = Executor(program, twin(model), plans(problem, 1)[0])
    job = next(job for job in run.jobs.values() if "left.linear" in job.names)
    job.runners[job.names.index("left.linear")] = failing
    with pytest.raises(ExecutionError, match=r"op 'left.linear' failed on 'cpu\d': out of luck"):
        run(x)
    with pytest.raises(ExecutionError, match="cannot be run any more"):
        run(x)
    left = set(threading.enumerate()) - before
    assert not [one for one in left if one.name.startswith("placewright-")]


def test_a_plan_of_another_model_is_refused():
    program, _ = capture(Branches(), torch.randn(4, 8))
    _, other = capture(nn.Sequential(nn.Linear(8, 8)), torch.randn(4, 8))
    plan = Plan.of(other, other.legalize(np.zeros(len(other.graph), dtype=int)))
    with pytest.raises(PlanError, match="missing in the plan"):
        Executor(program, Branches(), plan)
