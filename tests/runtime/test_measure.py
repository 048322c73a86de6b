"""Measured step times: plans that fail are data, and the choice never loses to one device."""

from __future__ import annotations

import math

import numpy as np
import pytest
from models import Branches, capture, plans, torch, twin, workers

import placewright as pw
from placewright.errors import ConfigError
from placewright.frontends import from_python
from placewright.runtime import Executor, Measured, Meter, Remeasured, rerank, time_steps
from placewright.training.environment import Environment


def build():
    torch.manual_seed(0)
    return Branches().eval(), (torch.randn(4, 8),), {}


@pytest.fixture(scope="module")
def problem():
    return capture(*build()[:2])[1]


def test_steps_are_timed_alone_and_in_flight(problem):
    model, args, _ = build()
    program, _ = capture(model, args)
    with Executor(program, twin(model), plans(problem, 1)[0]) as run:
        alone = time_steps(run, args, {})
        several = time_steps(run, args, {}, in_flight=3)
    assert 0 < alone.seconds < 1
    assert 0 < several.seconds < 1
    assert alone.spread >= 0


TURNS = range(7, 14)  # the ops of `Branches` that are neither weights nor inputs


class Told(Meter):
    """A meter that is told what plans take, instead of measuring."""

    def _ask(self, plan):
        self.asked = [*getattr(self, "asked", []), plan]
        placed = {plan.devices[plan.device[at]] for at in TURNS}
        return Measured(1.0 if len(placed) == 1 else 2.0)


def test_the_choice_never_loses_to_the_best_single_device(problem):
    assert [at for at in range(14) if problem.arrays.turn[at]] == list(TURNS)
    ranked = rerank(problem, plans(problem, 5), Told(build), k=2)
    assert len(ranked) == 4  # two plans, two devices
    assert ranked[0].found.found_by.startswith("all on cpu")
    assert [one.measured.seconds for one in ranked] == [1, 1, 2, 2]
    choice = Remeasured(Told(build), k=2)
    result = pw.solve(problem, pw.solvers.Auto(), pw.MaxEvaluations(200), choose=choice)
    assert result.found_by in ("single", "all on cpu0", "all on cpu1")
    assert len(choice.ranked) >= 3
    with pytest.raises(ConfigError, match="expected 1 or more"):
        Remeasured(Told(build), k=0)


def test_a_plan_is_measured_once_and_serves_a_trainer(problem):
    meter = Told(build)
    environment = Environment(problem, measure=meter)
    rows = np.stack([plan.device for plan in plans(problem, 3)])
    judged = environment.judge(np.concatenate([rows, rows]), "test")
    assert len(meter.asked) == len({row.tobytes() for row in rows})
    assert judged.valid.all()
    assert environment.evaluations == 6


MODEL = """
import os, time, torch
from torch import nn

class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.one, self.two = nn.Linear(8, 8), nn.Linear(8, 8)

    def forward(self, x):
        return torch.ops.measured.act(self.two(self.one(x)))

@torch.library.custom_op("measured::act", mutates_args=())
def act(x: torch.Tensor) -> torch.Tensor:
    import threading
    name = threading.current_thread().name
    if name.endswith("cpu1"):
        os._exit(3)
    if name.endswith("cpu2"):
        time.sleep(60)
    if name.endswith("cpu3"):
        raise MemoryError("no room")
    return x.clone()

@act.register_fake
def _(x):
    return torch.empty_like(x)

def build():
    return Model().eval(), (torch.randn(2, 8),), {}
"""


@pytest.fixture
def deadly(tmp_path):
    """A meter, and a function that measures the plan whose last op is on that device."""
    (tmp_path / "deadly.py").write_text(MODEL)
    spec = f"{tmp_path / 'deadly.py'}:build"
    problem = pw.Problem(from_python(spec), workers(4))
    act = next(at for at, op in enumerate(problem.graph.ops) if op.name.endswith("act"))

    def measured(device):
        placement = problem.settle(np.zeros(len(problem.graph), dtype=int))
        placement[act] = device
        return meter._ask(pw.Plan.of(problem, placement))

    with Meter(spec, timeout=4) as meter:
        yield measured


def test_errors_and_crashes_are_infeasible_plans(deadly):
    assert math.isfinite(deadly(0).seconds)
    failed = deadly(3)
    assert failed.seconds == math.inf
    assert "no room" in failed.failure
    assert deadly(1) == Measured(math.inf, failure="the process that ran it died")


@pytest.mark.slow
def test_a_crash_or_a_plan_that_takes_too_long_loses_nothing(deadly):
    deadly(1)
    assert math.isfinite(deadly(0).seconds)
    assert deadly(2).failure == "it took more than 4 seconds"
    assert math.isfinite(deadly(0).seconds)


def test_a_model_that_cannot_be_built_is_an_error(tmp_path, problem):
    (tmp_path / "broken.py").write_text("def build():\n    raise ValueError('no')\n")
    with (
        Meter(f"{tmp_path / 'broken.py'}") as meter,
        pytest.raises(ConfigError, match=r"cannot be measured: FileError: .*ValueError: no"),
    ):
        meter.measure(plans(problem, 1)[0])
    with pytest.raises(ConfigError, match="expected more steps"):
        Meter(build, steps=5, dropped=5)
