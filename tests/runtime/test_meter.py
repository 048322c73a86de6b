"""Measured step times: plans that fail are data."""

from __future__ import annotations

import math
import multiprocessing

import numpy as np
import pytest
from models import Branches, capture, nn, plans, torch, twin, workers

import placewright as pw
from placewright.errors import ConfigError, ExecutionError, FileError, VerifyError
from placewright.files.journal import Journal
from placewright.frontends import from_python
from placewright.runtime import (
    Executor,
    Measurement,
    Meter,
    time_steps,
)
from placewright.runtime import (
    meter as measure,
)
from placewright.runtime.sample_model import load_model
from placewright.training import Trainer, find_recipe
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


class CountingMeter(Meter):
    """Counts the plans that it measures; each takes a second."""

    requests = 0

    def _request(self, plan):
        self.requests += 1
        return Measurement(1.0)


def test_a_plan_is_measured_once_and_serves_a_trainer(problem):
    meter = CountingMeter(build)
    environment = Environment(problem, measure=meter)
    rows = np.stack([plan.placement for plan in plans(problem, 3)])
    judged = environment.judge(np.concatenate([rows, rows]), "test")
    assert meter.requests == len({row.tobytes() for row in rows})
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
def deadly(deadly_meter):
    """A function that measures, once, the plan whose last op is on that device."""
    meter, plan_on = deadly_meter
    return lambda device: meter._request(plan_on(device))


@pytest.fixture
def deadly_meter(tmp_path):
    """A meter, and a function that makes the plan whose last op is on that device."""
    (tmp_path / "deadly.py").write_text(MODEL)
    spec = f"{tmp_path / 'deadly.py'}:build"
    problem = pw.Problem(from_python(spec), workers(4))
    act = next(at for at, op in enumerate(problem.graph.ops) if op.name.endswith("act"))

    def plan_on(device):
        placement = problem.legalize(np.zeros(len(problem.graph), dtype=int))
        placement[act] = device
        return pw.Plan.of(problem, placement)

    with Meter(spec, timeout=4, pause=0.1) as meter:
        yield meter, plan_on


def test_errors_and_crashes_are_infeasible_plans(deadly):
    assert math.isfinite(deadly(0).seconds)
    failed = deadly(3)
    assert failed.seconds == math.inf
    assert "no room" in failed.failure
    died = Measurement(math.inf, failure="the process that ran it died (exit code 3)", crashed=True)
    assert deadly(1) == died


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
def test_any_error_of_a_plan_is_reported(problem, monkeypatch, error, said):
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
    model, args, kwargs = load_model(tied)
    assert model.head.weight is model.words.weight
    assert not model.head.weight.is_meta
    with Executor(program, model, plans(problem, 1)[0]) as run:
        assert run(*args, **kwargs).shape == (2, 3, 10)
    pipe = Pipe((plans(problem, 1)[0], {}, 1, 10, 5))
    measure.serve_plans(pipe, tied, False, None)
    assert pipe.answers[1].failure == ""


@pytest.mark.parametrize("replies", [0, 1])
def test_a_child_whose_parent_is_gone_exits_without_a_traceback(replies, capsys):
    from multiprocessing import Pipe

    from placewright.runtime.meter import serve_plans

    parent, child = Pipe()
    if replies == 0:
        parent.close()

    def build():
        import torch

        return torch.nn.Linear(2, 2), (torch.zeros(1, 2),)

    if replies:  # it is gone while a plan is measured
        parent.send((None, {}, 1, 1, 0))
        real_send = child.send

        class Gone:
            recv = child.recv

            def send(self, reply):
                if reply is not None:
                    parent.close()
                real_send(reply)

        child = Gone()
    with pytest.raises(SystemExit) as exit_:
        serve_plans(child, build, False, None)
    assert exit_.value.code == 1
    assert capsys.readouterr().err == ""


class FlakyMeter(Meter):
    """Plays a script: what becomes of each attempt, by the last op's device."""

    def __post_init__(self):
        super().__post_init__()
        self.pauses, self.requests = [], []

    def _pause(self, attempt):
        self.pauses.append(attempt)

    def _request(self, plan):
        device = int(plan.placement[-1])
        self.requests.append(device)
        died = Measurement(math.inf, failure="the process that ran it died (SIGSEGV)", crashed=True)
        return died if device == 1 and self.requests.count(1) < 3 else Measurement(1.0 + device)


def test_a_crash_is_tried_again_with_pauses_and_at_most_so_often(problem):
    crashing = problem.legalize(np.ones(len(problem.graph), dtype=int))
    meter = FlakyMeter(build, attempts=3)
    assert meter.measure(pw.Plan.of(problem, crashing)) == Measurement(2.0, attempts=3)
    assert meter.pauses == [1, 2]
    meter = FlakyMeter(build, attempts=2)
    failed = meter.measure(pw.Plan.of(problem, crashing))
    assert (failed.seconds, failed.attempts) == (math.inf, 2)
    assert "SIGSEGV" in failed.failure
    assert math.isfinite(meter(problem, np.zeros((1, len(crashing)), dtype=int)).seconds[0])
    with pytest.raises(ConfigError, match="0 attempts"):
        Meter(build, attempts=0)


def test_pauses_double_up_to_a_limit(monkeypatch):
    slept = []
    monkeypatch.setattr(measure.time, "sleep", slept.append)
    meter = Meter(build, pause=20)
    for attempt in (1, 2, 3, 4):
        meter._pause(attempt)
    assert slept == [20, 40, 60, 60]


def test_measured_plans_are_in_the_journal_one_by_one_and_are_not_run_again(problem, tmp_path):
    path, rows = tmp_path / "run.journal", np.stack([p.placement for p in plans(problem, 4)])
    rows = np.unique(rows, axis=0)
    lengths = []
    with Journal(path) as journal:
        meter = FlakyMeter(build, journal=journal)
        for row in rows:
            meter(problem, row)
            lengths.append(len(path.read_bytes().splitlines()))
        assert lengths == list(range(3, 3 + len(rows)))  # behind the header and the key
        measured = meter(problem, rows).seconds
    path.write_bytes(path.read_bytes()[:-9])  # killed while the last one was written
    with Journal(path) as journal:
        again = FlakyMeter(build, journal=journal)
        assert again(problem, rows).seconds.tolist() == measured.tolist()
        assert len(again.requests) >= 1
        assert set(again.requests) == {int(rows[-1][-1])}  # the last one alone
    with Journal(path) as journal, pytest.raises(FileError, match="of another run: steps is 10"):
        FlakyMeter(build, steps=20, journal=journal)(problem, rows)


def test_training_that_is_killed_goes_on_with_the_times_that_were_measured(problem, tmp_path):
    """Times come from a clock that never repeats itself: only the journal can give them again."""

    class Noise(FlakyMeter):
        def _request(self, plan):
            self.requests.append(plan)
            return Measurement(1.0 + clock.random())

    def train(path, updates, requests):
        with Journal(path) as journal:
            meter = Noise(build, journal=journal)
            environment = Environment(problem, meter)
            recipe = find_recipe("colocrl", groups=3, hidden=8)
            Trainer([environment], recipe, seed=1, max_updates=updates, device="cpu").run()
            requests += meter.requests
        return environment

    clock = np.random.default_rng(0)
    first: list[pw.Plan] = []
    whole = train(tmp_path / "whole.journal", 6, first)
    content = (tmp_path / "whole.journal").read_bytes()
    (tmp_path / "whole.journal").write_bytes(content + b"half a line")
    none: list[pw.Plan] = []
    again = train(tmp_path / "whole.journal", 6, none)
    assert not none
    assert (again.best_key, again.evaluations) == (whole.best_key, whole.evaluations)
    assert [step[0::2] for step in again.history] == [step[0::2] for step in whole.history]
    (tmp_path / "cut.journal").write_bytes(content[: len(content) // 2])
    rest: list[pw.Plan] = []
    train(tmp_path / "cut.journal", 6, rest)
    assert len(rest) > 0
    assert len(rest) + 2 <= len(first)
    lines = (tmp_path / "cut.journal").read_text().splitlines()
    digests = [line.split('"plan":"')[1][:32] for line in lines if '"plan":' in line]
    assert len(digests) == len(set(digests))  # none is counted twice


@pytest.mark.slow
def test_measuring_outlives_crashes_and_hangs_of_real_processes(deadly_meter):
    meter, plan_on = deadly_meter
    assert math.isfinite(meter.measure(plan_on(0)).seconds)
    died, hung = meter.measure(plan_on(1)), meter.measure(plan_on(2))
    assert died.failure == "the process that ran it died (exit code 3)"
    assert hung.failure == "it took more than 4 seconds"
    assert (died.attempts, hung.attempts) == (2, 2)
    assert math.isfinite(meter.measure(plan_on(0)).seconds)
    assert not [child for child in multiprocessing.active_children() if child is not meter._child]
