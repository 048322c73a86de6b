"""Threads of CPU devices: steps are served in order, and what goes wrong reaches the caller."""

from __future__ import annotations

import threading
from dataclasses import replace

import pytest
from models import capture, nn, torch, twin

from placewright import Plan
from placewright.errors import ExecutionError
from placewright.graph import WEIGHT
from placewright.runtime import Executor
from placewright.runtime.cpu_worker import Message, WeightStreamer

WIDTH, LAYERS = 64, 6


class Deep(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(WIDTH, WIDTH) for _ in range(LAYERS)])

    def forward(self, x):
        for layer in self.layers:
            x = torch.relu(layer(x))
        return x


@pytest.fixture(scope="module")
def streamed():
    """A model, its program, and a plan: one device has the weights, and streams two at a time."""
    model = Deep().eval()
    program, problem = capture(model, torch.randn(4, WIDTH))
    device = [int(op.kind == WEIGHT) for op in program.graph.ops]
    room = 2 * (WIDTH * WIDTH + WIDTH) * 4
    return model, program, Plan.of(problem, device, staging={"cpu0": room})


@pytest.fixture
def left():
    """The threads that this test began and that still run."""
    before = set(threading.enumerate())  # models of other tests may still be placed
    return lambda: [
        one.name
        for one in set(threading.enumerate()) - before
        if one.name.startswith("placewright-")
    ]


def within(seconds, work):
    """What some work returns or raises; a hang is a failure."""
    found = []

    def attempt():
        try:
            found.append((work(), None))
        except BaseException as error:
            found.append((None, error))

    thread = threading.Thread(target=attempt, daemon=True)
    thread.start()
    thread.join(seconds)
    assert found, "it hangs"
    made, error = found[0]
    if error is not None:
        raise error
    return made


def in_flight(run, inputs, most=4):
    """The outputs of steps, so many of them under way at once."""
    under_way, made = [], []
    for x in inputs:
        if len(under_way) == most:
            made.append(run.result(under_way.pop(0)))
        under_way.append(run.submit(x))
    return made + [run.result(number) for number in under_way]


def test_streamed_weights_come_step_by_step_however_many_are_in_flight(streamed, left):
    model, program, plan = streamed
    inputs = [torch.randn(4, WIDTH) for _ in range(300)]
    with torch.no_grad():
        expected = [model(x) for x in inputs]
    with Executor(program, twin(model), plan) as run:
        assert run.streamers
        made = within(60, lambda: in_flight(run, inputs))
    for one, other in zip(made, expected, strict=True):
        assert torch.equal(one, other)
    assert not left()


def test_a_step_that_begins_later_never_comes_before_one_that_waits(streamed):
    model, program, plan = streamed
    with Executor(program, twin(model), plan) as run:
        sent = []
        job = replace(
            run.jobs[0],
            send=lambda target, note: sent.append(note),
            report=lambda done: pytest.fail(str(done)),
        )
        streamer = WeightStreamer(job, lambda tensor: run.resident[1][tensor])
        reads = [Message("read")] * len(streamer.staging.readers)
        begins = [Message("begin", step, None, {}) for step in range(4)]
        # The second waits from within the first; the others come when the first is read.
        said = [*begins[:2], *reads, *begins[2:], *reads, *reads, *reads, Message("stop")]
        for note in said:
            streamer.inbox.put(note)
        within(20, streamer.run)
    steps = [note.step for note in sent]
    assert steps == sorted(steps)
    assert set(steps) == {0, 1, 2, 3}


@pytest.mark.parametrize("how", ["record", "on_op"])
@pytest.mark.parametrize("error", [ValueError, SystemExit])
def test_an_error_of_a_callback_is_reported_with_its_op(streamed, left, how, error):
    model, program, plan = streamed
    calls = []

    def raises(*_):
        calls.append(1)
        if len(calls) == 3 * LAYERS:  # not at once: steps before and after are in flight
            raise error("no more")

    run = Executor(program, twin(model), plan, **{how: raises})
    inputs = [torch.randn(4, WIDTH) for _ in range(8)]
    with pytest.raises(ExecutionError, match=r"op '.+' failed on 'cpu0': no more") as told:
        within(20, lambda: in_flight(run, inputs))
    assert isinstance(told.value.__cause__, error)
    with pytest.raises(ExecutionError, match="cannot be run any more: op"):
        run(inputs[0])
    assert not left()


def test_a_failed_send_is_reported_with_its_op_and_step(left, monkeypatch):
    model, x = Deep().eval(), torch.randn(4, WIDTH)
    program, problem = capture(model, x)
    names = [op.name for op in program.graph.ops]
    last = len(names) - 1
    told, send, report = [], Executor._send, Executor._report

    def fails(self, target, note):
        if threading.current_thread().name.startswith("placewright-") and note.step == 1:
            raise ValueError("nobody there")
        send(self, target, note)

    monkeypatch.setattr(Executor, "_send", fails)
    monkeypatch.setattr(
        Executor, "_report", lambda self, done: (told.append(done), report(self, done))
    )
    plan = Plan.of(problem, [int(at == last) for at in range(len(names))])
    run = Executor(program, twin(model), plan)
    within(20, lambda: run(x))
    with pytest.raises(ExecutionError, match="failed on 'cpu0': nobody there"):
        within(20, lambda: run(x))
    (failed,) = [done for done in told if done.failure is not None]
    assert failed.step == 1
    assert names.index(failed.op) == program.graph.ops[last].inputs[0][0]
    assert not left()


def test_a_worker_that_cannot_start_is_reported(streamed, left, monkeypatch):
    model, program, plan = streamed

    def fails(_):
        raise RuntimeError("no thread")

    monkeypatch.setattr("placewright.runtime.cpu_worker.run_in_main_arena", fails)
    run = Executor(program, twin(model), plan)
    with pytest.raises(ExecutionError, match="failed on 'cpu0': no thread"):
        within(20, lambda: run(torch.randn(4, WIDTH)))
    assert not left()


def test_a_failed_copy_is_reported_with_the_op_that_reads_it(streamed, left):
    model, program, plan = streamed
    run = Executor(program, twin(model), plan)
    x = torch.randn(4, WIDTH)
    within(20, lambda: run(x))
    copy = run.instructions.per_device[0].staging.copies[-1]
    run.resident[1][copy.tensor] = torch.randn(999, 999)  # as `.data =` of another shape would
    name = program.graph.ops[copy.reader].name
    with pytest.raises(
        ExecutionError, match=f"op '{name}' failed on 'cpu0': a weight that it reads cannot be"
    ):
        within(20, lambda: in_flight(run, [x] * 6))
    assert not left()
