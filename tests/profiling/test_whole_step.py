"""Ops of a program timed in whole steps: all of them, with sound numbers, or not at all."""

from __future__ import annotations

from dataclasses import replace

import pytest
from fake_cuda import fake_gpus
from models import Branches, Cached, Everything, nn, torch

from placewright.profiling import op_costs, whole_step
from placewright.profiling.machine_profile import profile_machine
from placewright.profiling.op_signatures import STORED_KINDS
from placewright.profiling.timing import Timing
from placewright.profiling.whole_step import (
    MIN_STEPS,
    StepTimer,
    _initial_tensors,
    fits_host,
    mean_timing,
    time_gpu_step,
)
from placewright.runtime.machine import this_machine
from placewright.runtime.program.program import build_program
from placewright.runtime.real_devices import RealDevice, machine_devices


class Speaker(nn.Module):
    """Words in, logits out: a table that is read at places, and a copy into places of a buffer."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.head = nn.Embedding(5, 8), nn.Linear(8, 5)
        self.layers = nn.Sequential(*(nn.Linear(8, 8) for _ in range(20)))

    def forward(self, words):
        return self.head(self.layers(self.words(words)))


@pytest.fixture(scope="module")
def speaker_program():
    return build_program(Speaker(), (torch.tensor([[4, 1]]),))


def site():
    return machine_devices(this_machine(), 1)[0]


def timed(program, seconds=10.0):
    steps = StepTimer(program, site())
    return steps.timings() if steps.device.run(lambda: steps.run(seconds)) else None


@pytest.mark.parametrize("training", [False, True])
def test_every_op_is_timed(training):
    model, x = (
        (Speaker(), torch.tensor([[4, 1]])) if not training else (Branches(), torch.ones(2, 8))
    )
    program = build_program(model, (x,), training=training)
    taken = timed(program)
    turns = [at for at, op in enumerate(program.graph.ops) if op.kind not in STORED_KINDS]
    assert list(taken) == turns
    assert all(one.seconds > 0 and one.samples >= MIN_STEPS for one in taken.values())


@pytest.mark.parametrize("training", [False, True], ids=["inference", "training"])
def test_ops_of_all_kinds_run_in_a_step(training):
    call = (
        torch.randint(11, (2, 6)),
        torch.rand(2, 3, 8, 8),
        torch.tensor([1, 4]),
        torch.randperm(44),
    )
    rule = "adam" if training else None
    program = build_program(Everything(), call, training=training, optimizer=rule)
    assert len(timed(program)) == sum(op.kind not in STORED_KINDS for op in program.graph.ops)


def test_states_are_written_where_they_are():
    program = build_program(Cached(), (torch.randn(1, 8), torch.tensor([2])))
    assert len(timed(program)) == sum(op.kind not in STORED_KINDS for op in program.graph.ops)


def test_values_stay_finite_and_indices_valid(speaker_program):
    program = speaker_program
    env = _initial_tensors(program, site())
    assert {int(one) for one in env[program.graph.position["words"], 0].flatten()} <= set(range(5))
    for at, op in enumerate(program.graph.ops):
        if op.kind not in STORED_KINDS:
            made = program.runner(at, "cpu")([env[tensor] for tensor in op.inputs])
            env |= {(at, output): value for output, value in enumerate(made)}
            assert all(value.isfinite().all() and value.abs().max() < 1e3 for value in made)


def test_a_step_that_takes_too_long_or_too_much_is_not_run(speaker_program):
    program = speaker_program
    assert timed(program, seconds=0.0) is None
    machine = this_machine()
    assert fits_host(program, machine)
    assert not fits_host(program, replace(machine, memory=whole_step.HOST_MEMORY_DIVISOR * 100))


def test_what_delays_an_op_now_and_then_counts_with_the_steps_it_delays(speaker_program):
    program = speaker_program
    steps = StepTimer(program, site())
    count = len(steps.positions)
    steps.step_seconds = [
        [(0.5, 1.0 + 5.0 * (at == step % count)) for at in range(count)] for step in range(9)
    ]
    taken = steps.timings()
    assert sum(one.seconds + one.issue for one in taken.values()) == pytest.approx(1.5 * count + 5)
    assert {one.seconds for one in taken.values()} == {2 * one.issue for one in taken.values()}
    assert len({one.seconds for one in taken.values()}) == 1
    assert not steps.step_seconds


def test_the_workers_time_between_ops_is_separate(speaker_program):
    program = speaker_program
    steps = StepTimer(program, site())
    steps.device.run(lambda: steps.run(10.0))
    first, *others = steps.timings().values()
    assert first.issue == 0  # from the first op on
    assert all(one.issue > 1e-7 for one in others)
    issue = sorted(one.issue for one in others)
    assert issue[len(issue) // 2] < 1e-2  # the machine may be busy during a few


def test_an_op_that_fails_in_a_step_says_so(speaker_program):
    program = speaker_program
    steps = StepTimer(program, site())

    def refused(_):
        raise RuntimeError("an op refuses its sample")

    worker = steps._make_worker()
    worker.job.runners[1] = refused
    steps.worker = worker
    with pytest.raises(RuntimeError, match="refuses"):
        steps.device.run(lambda: steps.run(10.0))


def test_steps_of_several_moments_add_up(speaker_program):
    program = speaker_program
    steps = StepTimer(program, site())
    for _ in range(2):
        assert steps.device.run(lambda: steps.run(10.0, max_steps=6))
    assert {one.samples for one in steps.timings().values()} == {12}


@pytest.mark.parametrize("training", [False, True], ids=["inference", "training"])
def test_a_whole_step_is_captured_with_sound_numbers_in_all_its_ops(training, monkeypatch):
    program = build_program(Branches(), (torch.ones(2, 8),), training=training)
    gpu, steps = RealDevice("gpu0", "cuda", model="a GPU"), []

    def replayed(_, index, step, calls):
        steps.append((index, calls, step(0)))
        return Timing(1e-3, 0.0, 5)

    monkeypatch.setattr(whole_step, "time_cuda_graph", replayed)
    with fake_gpus() as cuda, torch.no_grad():
        assert time_gpu_step(program, gpu) == Timing(1e-3, 0.0, 5)
        assert steps == [(0, 1, None)]
        cuda.free = 1000  # it may not fit
        assert time_gpu_step(program, gpu) is None
        cuda.free = 1 << 30

        def refused(*_):
            raise RuntimeError("an op refuses its sample")

        monkeypatch.setattr(whole_step, "time_cuda_graph", refused)
        assert time_gpu_step(program, gpu) is None


def test_equal_ops_share_their_mean():
    taken = {3: Timing(1.0, 0.1, 9, 0.2), 5: Timing(2.0, 0.3, 7, 0.4), 8: Timing(9.0, 0.3, 7)}
    assert mean_timing(taken, [3, 5]) == Timing(1.5, 0.2, 7, pytest.approx(0.3))
    assert mean_timing(taken, [4]).seconds == 0  # a view of a weight, which is not run


def test_a_profile_takes_what_a_step_says_and_else_times_op_by_op(
    speaker_program, monkeypatch, tmp_path
):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    program = speaker_program
    profile = profile_machine(1)
    alone = []
    measure = op_costs.measure_op
    monkeypatch.setattr(
        op_costs, "measure_op", lambda *args: alone.append(args[1]) or measure(*args), raising=True
    )

    def profiled():
        sites = machine_devices(profile.machine, 1)
        return op_costs.profile_ops(
            program, profile.machine, profile.cluster, sites, 8.0, refresh=True
        )

    found = profiled()
    assert not alone
    assert found.estimated == 0
    assert not found.failed
    monkeypatch.setattr(StepTimer, "run", lambda *_: False)
    assert profiled().estimated == 0
    assert len(alone) == found.distinct

    def refused(*_):
        raise RuntimeError("an op refuses its sample")

    alone.clear()
    monkeypatch.setattr(StepTimer, "run", refused)
    assert profiled().estimated == 0
    assert len(alone) == found.distinct
