"""Measured step times: plans that fail are data, and the choice never loses to one device."""

from __future__ import annotations

import math
import multiprocessing
from dataclasses import replace

import numpy as np
import pytest
from models import Branches, capture, nn, plans, torch, twin, workers

import placewright as pw
from placewright.errors import ConfigError, ExecutionError, VerifyError
from placewright.frontends import from_python
from placewright.problem import Constraints
from placewright.profiling.selection import MeasuredChoice, rerank
from placewright.runtime import (
    Executor,
    Measurement,
    Meter,
    time_steps,
)
from placewright.runtime import (
    meter as measure,
)
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

    def _request(self, plan):
        self.asked = [*getattr(self, "asked", []), plan]
        placed = {plan.device_names[plan.placement[at]] for at in TURNS}
        return Measurement(1.0 if len(placed) == 1 else 2.0)


def test_the_choice_never_loses_to_the_best_single_device(problem):
    assert [at for at in range(14) if problem.arrays.scheduled[at]] == list(TURNS)
    ranked = rerank(problem, plans(problem, 5), Told(build), k=2)
    assert len(ranked) == 4  # two plans, two devices
    assert ranked[0].candidate.found_by.startswith("all on cpu")
    assert [one.measurement.seconds for one in ranked] == [1, 1, 2, 2]
    choice = MeasuredChoice(Told(build), k=2)
    result = pw.solve(problem, pw.solvers.Auto(), pw.MaxEvaluations(200), select=choice)
    assert result.found_by in ("single", "all on cpu0", "all on cpu1")
    assert len(choice.ranking) >= 3
    with pytest.raises(ConfigError, match="expected 1 or more"):
        MeasuredChoice(Told(build), k=0)


class Larger(Told):
    """Measures on devices that have more than their limits; some plans cannot be run."""

    fails = "none"

    def _request(self, plan):
        placed = {plan.device_names[plan.placement[at]] for at in TURNS}
        fails = self.fails == "all" or (self.fails == "spread" and len(placed) > 1)
        if fails:
            return Measurement(math.inf, failure=f"no room for {len(placed)}\nbecause of it")
        return Measurement(1.0 if len(placed) == 1 else 2.0)


def test_a_plan_over_the_limit_is_not_chosen_however_quick(problem):
    """All on one device is over the limit, and would be quicker."""
    alone = pw.Plan.of(problem, problem.legalize(np.zeros(len(problem.graph), dtype=int)))
    most = int(pw.simulate(problem, alone).peak.max())
    limits = dict.fromkeys(("cpu0", "cpu1"), most - 1)
    limited = replace(problem, constraints=Constraints(limits=limits))
    fits = [one for one in plans(problem, 20) if not pw.simulate(limited, one).overflow][:2]
    assert len(fits) == 2
    ranked = rerank(limited, [alone, *fits], Larger(build))
    assert [one.measurement.seconds for one in ranked] == [2, 2, 1]
    assert [one.candidate.key[0] > 0 for one in ranked] == [False, False, True]
    failing = Larger(build)
    failing.fails = "spread"
    with pytest.raises(ExecutionError, match="none of the 2 plans that fit the memory could be"):
        rerank(limited, [alone, *fits], failing)
    tight = replace(problem, constraints=Constraints(limits=dict.fromkeys(limits, 1)))
    over = rerank(tight, [*fits, alone], failing)
    assert over[0].measurement.seconds == 1  # nothing fits: then what could be run


def test_where_no_plan_could_be_run_there_is_no_choice(problem):
    failing = Larger(build)
    failing.fails = "all"
    with pytest.raises(ExecutionError, match=r"none of the 4 plans could .* met: no room for \d$"):
        rerank(problem, plans(problem, 2), failing)
    with pytest.raises(ExecutionError, match="plans could be run"):
        pw.solve(problem, pw.solvers.Auto(), pw.MaxEvaluations(50), select=MeasuredChoice(failing))


def test_a_plan_is_measured_once_and_serves_a_trainer(problem):
    meter = Told(build)
    environment = Environment(problem, measure=meter)
    rows = np.stack([plan.placement for plan in plans(problem, 3)])
    judged = environment.judge(np.concatenate([rows, rows]), "test")
    assert len(meter.asked) == len({row.tobytes() for row in rows})
    assert judged.feasible.all()
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
        placement = problem.legalize(np.zeros(len(problem.graph), dtype=int))
        placement[act] = device
        return meter._request(pw.Plan.of(problem, placement))

    with Meter(spec, timeout=4) as meter:
        yield measured


def test_errors_and_crashes_are_infeasible_plans(deadly):
    assert math.isfinite(deadly(0).seconds)
    failed = deadly(3)
    assert failed.seconds == math.inf
    assert "no room" in failed.failure
    assert deadly(1) == Measurement(math.inf, failure="the process that ran it died")


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
        Meter(build, steps=5, warmup_steps=5)


def test_a_process_that_does_not_get_ready_is_waited_for_once(problem, monkeypatch):
    monkeypatch.setattr(measure, "START_TIMEOUT", 0.01)
    monkeypatch.setattr(measure, "EXIT_TIMEOUT", 0.01)
    with (
        Meter(build) as meter,
        pytest.raises(ExecutionError, match=r"was not built and captured in 0\.01 seconds"),
    ):
        meter(problem, np.stack([plan.placement for plan in plans(problem, 3)]))
    assert not meter.measurements  # which would say that a plan took too long
    assert not multiprocessing.active_children()


def test_a_process_that_dies_before_it_is_ready_is_an_error(tmp_path, problem):
    (tmp_path / "dies.py").write_text("import os\n\ndef build():\n    os._exit(3)\n")
    with (
        Meter(f"{tmp_path / 'dies.py'}") as meter,
        pytest.raises(ExecutionError, match=r"captured it died \(exit code 3\)"),
    ):
        meter.measure(plans(problem, 1)[0])


class Pipe:
    """The child's end of a pipe: what it is asked, and what it answers."""

    def __init__(self, *asked):
        self.asked, self.answers = list(asked), []

    def recv(self):
        if not self.asked:
            raise EOFError
        return self.asked.pop(0)

    def send(self, answer):
        self.answers.append(answer)


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (KeyError("lost"), "KeyError: 'lost'"),
        (AssertionError(), "AssertionError: "),
        (VerifyError("a line of our own"), "a line of our own"),
    ],
    ids=lambda value: type(value).__name__,
)
def test_whatever_goes_wrong_in_a_plan_is_told(problem, monkeypatch, error, said):
    def fail(*_):
        raise error

    monkeypatch.setattr(measure, "time_steps", fail)
    plan = plans(problem, 1)[0]
    pipe = Pipe((plan, {}, 1, 10, 5), (plan, {}, 1, 10, 5))
    measure.serve_plans(pipe, build, False, None)
    assert pipe.answers == [None, *[Measurement(math.inf, failure=said)] * 2]


class Tied(nn.Module):
    """An embedding that is also the last layer's weight."""

    def __init__(self):
        super().__init__()
        self.words, self.head = nn.Embedding(10, 8), nn.Linear(8, 10, bias=False)
        self.head.weight = self.words.weight

    def forward(self, words):
        return self.head(self.words(words))


def test_tied_weights_on_meta_stay_tied():
    def tied():
        with torch.device("meta"):
            return Tied().eval(), (torch.zeros(2, 3, dtype=torch.int64),)

    program, problem = capture(*tied())
    model, args, kwargs = measure.load_model(tied)
    assert model.head.weight is model.words.weight
    assert not model.head.weight.is_meta
    with Executor(program, model, plans(problem, 1)[0]) as run:
        assert run(*args, **kwargs).shape == (2, 3, 10)
    pipe = Pipe((plans(problem, 1)[0], {}, 1, 10, 5))
    measure.serve_plans(pipe, tied, False, None)
    assert pipe.answers[1].failure == ""
