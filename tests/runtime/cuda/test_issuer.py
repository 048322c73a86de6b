"""What the host issues to GPUs, tried on GPUs that do at once what they are told."""

from __future__ import annotations

import pytest
from models import (
    Branches,
    Cached,
    capture,
    machine,
    nn,
    plans,
    streams_of_one,
    torch,
    twin,
    workers,
)

from placewright import Plan
from placewright.errors import ExecutionError
from placewright.runtime import Executor
from placewright.runtime.cuda.graph_segments import persistent_tensors
from placewright.runtime.cuda.issuer import Issuer
from placewright.runtime.micro_batches import train_micro_batches
from placewright.runtime.program.optimizer_step import OptimizerRule


@pytest.mark.parametrize("staged", [False, True])
def test_any_plan_gives_the_models_outputs(staged, cuda):
    model, x = Branches(), torch.randn(4, 8)
    program, problem = capture(model, x, machine())
    expected = model(x)
    for plan in plans(problem, 8, staged=staged):
        with Executor(program, twin(model), plan, cuda_graphs=False) as run:
            for _ in range(3):
                made = run(x)
            assert torch.equal(made["made"], expected["made"])


def test_states_and_training_work_on_gpus_too(cuda):
    model = Cached()
    row = (torch.randn(1, 8), torch.tensor([2]))
    program, problem = capture(model, row, machine())
    how = {"training": True, "optimizer": OptimizerRule("momentum", 0.01)}
    other, x = Branches(), torch.randn(4, 8)
    learning, learned = capture(other, x, machine(), **how)
    for plan in plans(problem, 4):
        mine, reference = twin(model), twin(model)
        with Executor(program, mine, plan, cuda_graphs=False) as run, torch.no_grad():
            for _ in range(2):
                for one, same in zip(run(*row), reference(*row), strict=True):
                    assert torch.allclose(one, same)
        assert torch.equal(mine.cache, reference.cache)
    losses = set()
    for plan in [*plans(learned, 3), *plans(learned, 3, staged=True)]:
        with Executor(learning, twin(other), plan) as run:
            losses.add(tuple(round(run(x).item(), 5) for _ in range(3)))
    assert len(losses) == 1
    assert len(set(losses.pop())) == 3


@pytest.mark.parametrize("rule", ["sgd", "momentum", "adam"])
def test_captured_training_steps_go_on_learning(rule, cuda):
    layers = [nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 8), nn.ReLU()]
    model, x = nn.Sequential(*layers, nn.Linear(8, 1)), torch.randn(16, 8)
    how = {"training": True, "optimizer": OptimizerRule(rule, 0.01)}
    program, problem = capture(model, x, machine(1), **how)
    everything = Plan.of(problem, problem.legalize([1] * len(problem.graph)))
    with Executor(program, twin(model), everything, cuda_graphs=False) as run:
        expected = [run(x).item() for _ in range(8)]
    assert len(set(expected)) == 8
    for plan in [everything, *plans(problem, 3), *plans(problem, 2, staged=True)]:
        with Executor(program, twin(model), plan, cuda_graphs=True) as run:
            assert [run(x).item() for _ in range(8)] == pytest.approx(expected, rel=1e-5)
            replayed = [one for one in run.issuer.cuda_graphs.segments.values() if one.graph]
        assert replayed or plan is not everything


def test_gradients_are_gathered_op_by_op_and_then_replays_go_on(cuda):
    model, x = nn.Sequential(nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 1)), torch.randn(16, 8)
    how = {"training": True, "optimizer": OptimizerRule("momentum", 0.01)}
    program, problem = capture(model, x, machine(1), **how)
    plan = Plan.of(problem, problem.legalize([1] * len(problem.graph)))
    losses = []
    for graphs in (False, True):
        with Executor(program, twin(model), plan, cuda_graphs=graphs) as run:
            made = [run(x).item() for _ in range(3)]
            made += [one.item() for one in train_micro_batches(run, [(x,), (x + 1,)], in_flight=1)]
            made += [run(x).item() for _ in range(2)]
        losses.append(made)
    assert losses[1] == pytest.approx(losses[0], rel=1e-5)


def test_copies_run_ahead_as_far_as_the_buffer_permits(cuda):
    model, x = nn.Sequential(*(nn.Linear(8, 8, bias=False) for _ in range(6))), torch.randn(2, 8)
    program, problem = capture(model, x, machine(1))
    device = problem.legalize([1] * len(problem.graph))
    device[problem.arrays.is_weight] = 0
    plan = Plan.of(problem, device, staging={"gpu0": 2 * 256})
    with Executor(program, twin(model), plan, cuda_graphs=False) as run:
        run(x)
        rooms = run.issuer.cuda_devices[1].staging
        assert rooms.staging.capacity == 512
        assert [copy.readers_before for copy in rooms.staging.copies] == [0, 0, 1, 2, 3, 4]
        assert [copy.offset for copy in rooms.staging.copies] == [0, 256] * 3
        assert torch.equal(run(x), model(x))


def test_small_weights_come_in_one_copy_and_tied_or_strange_ones_alone(cuda):
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layers = nn.Sequential(*(nn.Linear(24, 24) for _ in range(8)))
            self.layers[5].weight = self.layers[1].weight  # which can stand in one place only
            self.strange = nn.Parameter(torch.randn(24, 48)[:, ::2])

        def forward(self, x):
            return self.layers(x) @ self.strange

    model, x = Net().eval(), torch.randn(2, 24)
    program, problem = capture(model, x, machine(1))
    device = problem.legalize([1] * len(problem.graph))
    device[problem.arrays.is_weight] = 0
    plan = Plan.of(problem, device, staging={"gpu0": 64 * 1024})
    mine = twin(model)
    with Executor(program, mine, plan, cuda_graphs=False) as run:
        hauls = run.issuer.cuda_devices[1].staging.batches
        for _ in range(3):
            given = torch.randn(2, 24)
            assert torch.allclose(run(given), model(given), atol=1e-5)
        several = [haul for haul in hauls if len(haul.readers) > 1]
        assert several
        assert any(len(haul.pairs) == 1 for haul in several)  # in one copy
        assert any(len(haul.pairs) > 1 for haul in several)  # as they are
    with Executor(program, mine, plan, cuda_graphs=False) as run:  # all stand where they stood
        assert torch.allclose(run(x), model(x), atol=1e-5)
    for name, value in model.state_dict().items():
        assert torch.equal(mine.state_dict()[name], value)


def test_several_steps_in_flight_keep_their_order(cuda):
    model = Branches()
    inputs = [torch.randn(4, 8) for _ in range(6)]
    program, problem = capture(model, inputs[0], machine())
    for plan in [*plans(problem, 2), *plans(problem, 2, staged=True)]:
        with Executor(program, twin(model), plan, cuda_graphs=False) as run:
            numbers = [run.submit(x) for x in inputs]
            made = [run.result(number)["made"] for number in numbers]
        for one, x in zip(made, inputs, strict=True):
            assert torch.equal(one, model(x)["made"])


def test_captured_runs_of_ops_read_new_inputs_and_leave_old_outputs_alone(cuda):
    layers = [nn.Linear(8, 8), nn.Tanh()] * 6
    model, x = nn.Sequential(*layers).eval(), torch.randn(4, 8)
    program, problem = capture(model, x, machine(2))
    device = problem.legalize([1] * len(problem.graph))
    device[problem.arrays.scheduled.nonzero()[0][8:9]] = 0  # one op in the middle on the host
    calls = [torch.randn(4, 8) for _ in range(6)]
    for plan in [Plan.of(problem, device), *plans(problem, 3)]:
        with Executor(program, twin(model), plan, cuda_graphs=True) as run:
            made = [run(one) for one in calls]
            captured = [one for one in run.issuer.cuda_graphs.segments.values() if one.graph]
        for one, given in zip(made, calls, strict=True):
            assert torch.allclose(one, model(given), atol=1e-6)
        assert all(len(segment.op_indices) >= 6 for segment in captured)
    with Executor(program, twin(model), Plan.of(problem, device), cuda_graphs=True) as run:
        for one in calls:
            run(one)
        assert len([one for one in run.issuer.cuda_graphs.segments.values() if one.graph]) == 1
        assert run.issuer.cuda_graphs.mode == "replay"


def test_inputs_of_graphs_have_one_address_and_internal_tensors_are_freed(cuda):
    class Twice(nn.Module):
        """What comes first is read at the beginning and at the end."""

        def __init__(self) -> None:
            super().__init__()
            self.first = nn.Linear(8, 8)
            self.layers = nn.Sequential(*[nn.Linear(8, 8), nn.Tanh()] * 12)

        def forward(self, x):
            first = self.first(x)
            return self.layers[12:](self.layers[:12](first) + first) + first

    model, x = Twice().eval(), torch.randn(4, 8)
    program, problem = capture(model, x, machine(2))
    device = problem.legalize([1] * len(problem.graph))
    order = problem.arrays.scheduled.nonzero()[0]
    host = [order[0], order[len(order) // 2]]
    device[host] = 0
    with Executor(program, twin(model), Plan.of(problem, device), cuda_graphs=True) as run:
        calls = [torch.randn(4, 8) for _ in range(5)]
        made = [run(one) for one in calls]
        graphs = run.issuer.cuda_graphs
        first, second = graphs.segments.values()
        shared = {id(one) for one in first.inputs.values()} & {
            id(one) for one in second.inputs.values()
        }
        sent = {(1, (each.position, 0)) for each in first_instructions(run) if each.sends}
        assert len(graphs.static_inputs) == 2
    for one, given in zip(made, calls, strict=True):
        assert torch.allclose(one, model(given), atol=1e-6)
    assert len(shared) == 1
    assert set(first.outputs) == sent  # all else was read by graphs alone


def deep(layers: int, gpus: int):
    """A model of some layers, and its program on a machine with GPUs."""
    parts = [part for _ in range(layers) for part in (nn.Linear(8, 8), nn.Tanh())]
    model = nn.Sequential(*parts).eval()
    program, problem = capture(model, torch.randn(4, 8), machine(gpus))
    return model, program, problem


def test_a_capture_frees_tensors_where_a_step_does(cuda, monkeypatch):
    """Tensors that only graphs read are freed during the capture: later ops reuse their memory."""
    layers = [layer for _ in range(8) for layer in (nn.Linear(8, 8), nn.Tanh())]
    model, x = nn.Sequential(*layers, nn.Linear(8, 1)), torch.randn(4, 8)
    how = {"training": True, "optimizer": OptimizerRule("sgd", 0.01)}
    program, problem = capture(model, x, machine(1), **how)
    device = problem.legalize([1] * len(problem.graph))
    order = problem.arrays.scheduled.nonzero()[0]
    device[order[len(order) // 2 - 2]] = 0  # between the passes
    issue, held = Issuer.issue, []

    def observed(issuer, step, cuda_device, index):
        issue(issuer, step, cuda_device, index)
        if cuda.capturing:
            segments = issuer.cuda_graphs.segments.values()
            needed = persistent_tensors(issuer, segments, cuda_device.number)
            sequence = cuda_device.job.instructions.sequence
            needed |= {key for each in sequence[index:] for _, key in each.inputs}
            op = sequence[index].position
            held.append([key for key in step.env[1] if key not in needed and key[0] != op])

    monkeypatch.setattr(Issuer, "issue", observed)
    with Executor(program, twin(model), Plan.of(problem, device), cuda_graphs=False) as run:
        expected = [run(x).item() for _ in range(4)]
    with Executor(program, twin(model), Plan.of(problem, device), cuda_graphs=True) as run:
        assert [run(x).item() for _ in range(4)] == pytest.approx(expected, rel=1e-5)
        assert run.issuer.cuda_graphs.has_graphs
    assert len(held) > 20
    assert not any(held)


def test_a_run_of_ops_that_cannot_be_captured_is_left_out_of_the_others(cuda, monkeypatch):
    model, program, problem = deep(12, 1)
    device = problem.legalize([1] * len(problem.graph))
    device[problem.arrays.scheduled.nonzero()[0][[8, 16]]] = 0
    with Executor(program, twin(model), Plan.of(problem, device), cuda_graphs=True) as run:
        refused = run.jobs[1].runners[12]

        def refuse(read):
            if cuda.capturing:
                raise RuntimeError("not while a stream is captured")
            return refused(read)

        run.jobs[1].runners[12] = refuse
        for _ in range(4):
            x = torch.randn(4, 8)
            assert torch.allclose(run(x), model(x), atol=1e-6)
        assert run.issue_mode == "2 graphs"


def test_runs_of_ops_beside_a_worker_wait_for_their_streamed_weights_together(cuda):
    model, program, problem = deep(24, 2)
    weight = problem.arrays.is_weight
    device = problem.legalize([1] * len(problem.graph))
    device[weight] = 0
    order = problem.arrays.scheduled.nonzero()[0]
    device[order[20]] = 0  # an op on the host in the middle
    one = 4 * 8 * 9  # bytes of a layer
    for layers_ahead, longest in ((1, 0), (12, 8), (1000, 28)):
        plan = Plan.of(problem, device, staging={"gpu0": layers_ahead * one})
        calls = [torch.randn(4, 8) for _ in range(5)]
        with Executor(program, twin(model), plan, cuda_graphs=True) as run:
            made = [run(one) for one in calls]
            segments = list(run.issuer.cuda_graphs.segments.values())
            assert run.issuer.cuda_graphs.mode == ("replay" if longest else "eager")
        for got, given in zip(made, calls, strict=True):
            assert torch.allclose(got, model(given), atol=1e-6)
        sizes = [len(segment.op_indices) for segment in segments if segment.graph]
        assert max(sizes, default=0) == pytest.approx(longest, abs=1), sizes


@pytest.mark.parametrize("short", ["capture", "outputs", "beside"])
def test_without_memory_for_graphs_ops_are_issued_one_by_one(short, cuda, monkeypatch):
    model, program, problem = deep(12, 2)
    whole = problem.legalize([1] * len(problem.graph))
    mixed = whole.copy()
    mixed[problem.arrays.scheduled.nonzero()[0][[12, 15]]] = 0  # what is between is no graph
    streamed = whole.copy()
    streamed[problem.arrays.is_weight] = 0
    failed = []

    def out_of_memory(runner):
        def run_or_fail(read):
            graphs = run.issuer.cuda_graphs
            is_late = graphs.mode != "eager" and graphs.segments
            if is_late and bool(cuda.capturing) == (short == "capture") and short != "outputs":
                failed.append(runner)
                raise torch.OutOfMemoryError("CUDA out of memory")
            return runner(read)

        return run_or_fail

    def clone(value):
        if short == "outputs":
            failed.append(value)
            raise torch.OutOfMemoryError("CUDA out of memory")
        return torch.empty_like(value).copy_(value)

    plans = [Plan.of(problem, mixed)]
    if short != "beside":
        plans += [
            Plan.of(problem, whole),
            Plan.of(problem, streamed, staging={"gpu0": 3 * 4 * 8 * 9}),
        ]
    for plan in plans:
        failed.clear()
        calls = [torch.randn(4, 8) for _ in range(5)]
        with Executor(program, twin(model), plan, cuda_graphs=True) as run:
            runners = run.jobs[1].runners
            runners[9:] = map(out_of_memory, runners[9:])
            with monkeypatch.context() as patch:
                patch.setattr(torch.Tensor, "clone", clone)
                made = [run(one) for one in calls]
            assert failed
            assert not run.issuer.cuda_graphs.segments
            assert run.issue_mode == "op by op: there is no memory for graphs"
        for got, given in zip(made, calls, strict=True):
            assert torch.allclose(got, model(given), atol=1e-6)


def first_instructions(run):
    (cuda_device,) = run.issuer.cuda_devices.values()
    segment = next(iter(run.issuer.cuda_graphs.segments.values()))
    return [cuda_device.job.instructions.sequence[index] for index in segment.op_indices]


def test_graphs_are_dropped_if_they_are_slower_or_steps_overlap(cuda):
    model, x = nn.Sequential(*[nn.Linear(8, 8), nn.Tanh()] * 6).eval(), torch.randn(4, 8)
    program, problem = capture(model, x, machine(1))
    plan = Plan.of(problem, problem.legalize([1] * len(problem.graph)))
    with Executor(program, twin(model), plan) as run:
        graphs = run.issuer.cuda_graphs
        for _ in range(7):
            run(x)
            if graphs.seconds["replay"]:
                graphs.seconds["replay"][-1] = 1.0  # slow
        assert len(graphs.seconds["eager"]) == 3
        assert torch.equal(run(x), model(x))
        assert not graphs.segments
    with Executor(program, twin(model), plan, cuda_graphs=True) as run:
        numbers = [run.submit(one) for one in (x, x + 1)]
        assert torch.equal(run.result(numbers[0]), model(x))
        assert torch.equal(run.result(numbers[1]), model(x + 1))


def failing(_):
    raise RuntimeError("out of luck")


def test_a_failure_on_either_side_stops_the_other(cuda):
    model, x = Branches(), torch.randn(4, 8)
    program, problem = capture(model, x, machine())
    for plan in plans(problem, 4):
        for number, place in enumerate(plan.device_names):
            run = Executor(program, twin(model), plan, cuda_graphs=False)
            if number in run.jobs:
                run.jobs[number].runners[0] = failing
                with pytest.raises(ExecutionError, match=f"failed on '{place}': out of luck"):
                    run(x)
            run.close()


def test_a_gpu_that_is_not_here_is_named(cuda):
    model, x = Branches(), torch.randn(4, 8)
    program, problem = capture(model, x, workers(1, "gpu"))
    cuda.gpus = 0
    with pytest.raises(ExecutionError, match="device_map="):
        Executor(program, model, plans(problem, 1)[0])
    with Executor(program, model, plans(problem, 1)[0], device_map={"gpu0": "cpu"}) as run:
        assert torch.equal(run(x)["made"], model(x)["made"])


@pytest.mark.parametrize("fails", [False, True])
def test_a_step_on_several_streams_of_one_gpu_is_one_graph(fails, cuda):
    model, x = Branches(), torch.randn(4, 8)
    program, problem = capture(model, x, streams_of_one())
    for plan in plans(problem, 6):
        with Executor(program, twin(model), plan, cuda_graphs=True) as run:
            graphs = run.issuer.cuda_graphs
            assert run.issuer.is_single_gpu
            job = run.jobs[run.issuer.order[-1][0]]
            last = job.runners[-1]

            def tried(read, last=last):
                if cuda.capturing and fails:
                    raise RuntimeError("out of memory")
                return last(read)

            job.runners[-1] = tried
            made = []
            for at in range(5):
                made.append((run(x + at), model(x + at)))
                assert not run.issuer.steps
            assert len(graphs.segments) == (0 if fails else 1)
            for mine, right in made:
                assert torch.equal(mine["made"], right["made"])
                assert torch.equal(mine["sum"], right["sum"])


@pytest.mark.parametrize("fails", [False, True])
def test_streamed_steps_go_on_without_graphs_that_fail_or_are_slower(fails, cuda):
    """What copies waited for in a capture is nothing that later copies could wait for."""
    model, x = nn.Sequential(*(nn.Linear(8, 8) for _ in range(6))), torch.randn(2, 8)
    program, problem = capture(model, x, machine(1))
    device = problem.legalize([1] * len(problem.graph))
    device[problem.arrays.is_weight] = 0
    plan = Plan.of(problem, device, staging={"gpu0": 2 * 512})
    with Executor(program, twin(model), plan) as run:
        graphs = run.issuer.cuda_graphs
        last = run.jobs[1].runners[-1]

        def out_of_memory(read):
            if cuda.capturing and fails:
                raise RuntimeError("out of memory")
            return last(read)

        run.jobs[1].runners[-1] = out_of_memory
        for _ in range(10):
            x = torch.randn(2, 8)
            assert torch.equal(run(x), model(x))
            if graphs.seconds["replay"]:
                graphs.seconds["replay"][-1] = 1.0  # slow
        assert not graphs.segments
        assert len(graphs.seconds["replay"]) == (0 if fails else 3)
        assert ("out of memory" if fails else "a replay took 1000.00 ms") in run.issue_mode


@pytest.mark.parametrize("staged", [False, True])
def test_a_step_of_one_gpu_is_one_graph(staged, cuda):
    model, x = nn.Sequential(*(nn.Linear(8, 8) for _ in range(6))), torch.randn(2, 8)
    program, problem = capture(model, x, machine(1))
    device = problem.legalize([1] * len(problem.graph))
    if staged:
        device[problem.arrays.is_weight] = 0
    plan = Plan.of(problem, device, staging={"gpu0": 2 * 512} if staged else None)
    with Executor(program, twin(model), plan, cuda_graphs=True) as run:
        for _ in range(5):
            x = torch.randn(2, 8)
            assert torch.equal(run(x), model(x))
        (segment,) = run.issuer.cuda_graphs.segments.values()
        assert segment.step_ops
        assert run.issue_mode == "1 graph"
        assert run.issuer.cuda_graphs.covers_step
        if staged:
            for parameter in run.resident[0].values():  # copies are part of what is replayed
                parameter.detach().zero_()
            assert torch.equal(run(x), torch.zeros(2, 8))


def test_new_states_are_changed_at_the_addresses_that_graphs_use(cuda):
    class Adds(nn.Module):
        def forward(self, cache, row):
            for _ in range(6):
                row = row * 1.5
            cache.add_(row)
            return cache * 2

    model, row = Adds(), torch.randn(4)
    program, problem = capture(model, (torch.zeros(4), row), machine(1))
    plan = Plan.of(problem, problem.legalize([1] * len(problem.graph)))
    with Executor(program, twin(model), plan, cuda_graphs=True) as run:
        for _ in range(5):
            cache = torch.randn(4)
            mine = cache.clone()
            made = run(mine, row)
            assert torch.allclose(made, model(cache, row))
            assert torch.allclose(mine, cache)
        assert run.issue_mode == "1 graph"


@pytest.mark.parametrize("error", [RuntimeError, torch.OutOfMemoryError])
def test_an_op_that_fails_among_many_is_named_and_memory_is_tried_again(error, cuda):
    model = nn.Sequential(*(nn.Tanh() for _ in range(9)))
    program, problem = capture(model, torch.randn(2, 8), machine(1))
    plan = Plan.of(problem, problem.legalize([1] * len(problem.graph)))
    with Executor(program, twin(model), plan, cuda_graphs=None) as run:
        x = torch.randn(2, 8)
        run(x)
        job, failed = run.jobs[1], []
        fifth = job.runners[5]

        def failing(read):
            if len(failed) < 2:
                failed.append(True)
                raise error("out of memory")
            return fifth(read)

        job.runners[5] = failing
        if error is RuntimeError:
            with pytest.raises(ExecutionError, match=job.names[5]):
                run(x)
        else:
            assert torch.equal(run(x), model(x))
            assert not run.issuer.cuda_graphs.segments
        assert failed


def test_cublas_keeps_its_workspace_while_graphs_use_it(cuda, monkeypatch):
    model, x = nn.Sequential(*(nn.Linear(8, 8) for _ in range(6))), torch.randn(2, 8)
    program, problem = capture(model, x, machine(1))
    plan = Plan.of(problem, problem.legalize([1] * len(problem.graph)))
    with Executor(program, twin(model), plan, cuda_graphs=True) as run:
        for _ in range(3):
            run(x)
        assert run.issuer.cuda_graphs.has_graphs
        with Executor(program, twin(model), plan, cuda_graphs=False) as other:
            other(x)
        assert not cuda.cleared
    assert cuda.cleared == 1
