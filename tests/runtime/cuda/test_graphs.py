"""Runs of ops that are captured between steps: what they read, hold and give up."""

from __future__ import annotations

import pytest
from models import capture, machine, nn, streams_of_one, torch, twin

from placewright import Plan
from placewright.errors import ExecutionError
from placewright.runtime import Executor
from placewright.runtime.cuda import graph_memory, streams


def on_gpu(problem, *host):
    """All on the GPU, but for ops of these names."""
    device = problem.legalize([1] * len(problem.graph))
    device[[problem.graph.position[name] for name in host]] = 0
    return Plan.of(problem, device)


@pytest.mark.parametrize("first", [4, 8], ids=["in a graph", "alone"])
def test_a_state_that_is_changed_between_graphs_is_changed_where_it_lies(first, cuda):
    class Caches(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("cache", torch.zeros(3, 8))

        def forward(self, x, rows):
            for at in range(10):
                if at == first:
                    self.cache.index_copy_(0, rows[0], x)
                x = torch.tanh(x)
            x = torch.relu(x)
            self.cache.index_copy_(0, rows[1], x)  # a run that is too short for a graph
            x = torch.exp(x)
            self.cache.index_copy_(0, rows[2], x)
            for _ in range(8):
                x = torch.tanh(x)
            return x

    model, rows = Caches().eval(), [torch.tensor([at]) for at in range(3)]
    program, problem = capture(model, (torch.randn(1, 8), rows), machine(1))
    mine, right = twin(model), twin(model)
    with Executor(program, mine, on_gpu(problem, "relu", "exp"), cuda_graphs=True) as run:
        for _ in range(4):
            x = torch.randn(1, 8)
            assert torch.allclose(run(x, rows), right(x, rows))
            assert torch.allclose(mine.cache, right.cache)
        assert run.issue_mode == "2 graphs"


def test_a_view_of_what_a_graph_makes_is_not_overwritten(cuda):
    class Parts(nn.Module):
        def forward(self, x):
            for _ in range(9):
                x = torch.tanh(x)
            return torch.relu(x), x[1]

    model, x = Parts().eval(), torch.randn(4, 8)
    program, problem = capture(model, x, machine(1))
    with Executor(program, twin(model), on_gpu(problem, "relu"), cuda_graphs=True) as run:
        for _ in range(3):
            _, part = run(x)
        run(torch.randn(4, 8))
        assert run.issue_mode == "1 graph"
    assert torch.allclose(part, model(x)[1])


def test_after_a_whole_graph_each_op_runs_on_its_own_device(cuda, monkeypatch):
    class Speaker(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner, self.head = nn.Linear(8, 8), nn.Linear(8, 64)

        def forward(self, x):
            for _ in range(7):
                x = torch.sigmoid(x)
            return self.head(torch.relu(torch.tanh(self.inner(x))))

    model, x = Speaker().eval(), torch.randn(4, 8)
    program, problem = capture(model, x, streams_of_one())
    monkeypatch.setattr(graph_memory, "LARGE_OUTPUT_BYTES", 4 * 4 * 64)
    device = problem.legalize([0] * len(problem.graph))
    device[problem.arrays.scheduled.nonzero()[0][6:]] = 1
    with Executor(
        program, twin(model), Plan.of(problem, problem.legalize(device)), cuda_graphs=True
    ) as run:
        for _ in range(4):
            x = torch.randn(4, 8)
            assert torch.allclose(run(x), model(x), atol=1e-6)
        assert run.issue_mode == "1 graph"


def test_streamed_steps_in_flight_after_graphs_read_their_weights(cuda):
    model, x = nn.Sequential(*(nn.Linear(8, 8) for _ in range(6))), torch.randn(2, 8)
    program, problem = capture(model, x, machine(1))
    device = problem.legalize([1] * len(problem.graph))
    device[problem.arrays.is_weight] = 0
    plan = Plan.of(problem, device, staging={"gpu0": 2 * 512})
    with Executor(program, twin(model), plan, cuda_graphs=True) as run:
        for _ in range(3):
            assert torch.equal(run(x), model(x))
        assert run.issue_mode == "1 graph"
        several = [torch.randn(2, 8) for _ in range(3)]
        numbers = [run.submit(one) for one in several]
        for number, one in zip(numbers, several, strict=True):
            assert torch.equal(run.result(number), model(one))


def test_what_is_captured_for_inference_serves_other_calls(cuda):
    model, x = nn.Sequential(*(nn.Tanh() for _ in range(9))), torch.randn(2, 8)
    program, problem = capture(model, x, machine(1))
    with Executor(program, twin(model), on_gpu(problem), cuda_graphs=True) as run:
        with torch.inference_mode():
            for _ in range(3):
                run(torch.randn(2, 8))
        x = torch.randn(2, 8)
        assert torch.equal(run(x), model(x))
        assert run.issue_mode == "1 graph"


class Skips(nn.Module):
    """What one graph makes a later one reads, with ops of the host and a single one between."""

    def forward(self, x):
        for _ in range(9):
            x = torch.tanh(x)
        skip = x
        x = torch.exp(torch.relu(torch.sigmoid(x)))
        x = torch.sin(x)
        for _ in range(8):
            x = torch.tanh(x)
        return x + skip


def test_out_of_memory_is_reported_if_graphs_cannot_be_dropped(cuda):
    model, x = Skips().eval(), torch.randn(4, 8)
    program, problem = capture(model, x, machine(1))
    with Executor(program, twin(model), on_gpu(problem, "relu", "sin"), cuda_graphs=True) as run:
        for _ in range(3):
            assert torch.allclose(run(x), model(x), atol=1e-6)
        assert run.issue_mode == "2 graphs"
        job = run.jobs[1]

        def failing(read):
            raise torch.OutOfMemoryError("CUDA out of memory")

        job.runners[job.names.index("exp")] = failing
        with pytest.raises(ExecutionError, match="op 'exp' failed on 'gpu0': CUDA out of memory"):
            run(x)


@pytest.mark.parametrize("room", ["beside", "received"])
def test_graphs_leave_memory_for_excluded_tensors(room, cuda, monkeypatch):
    class Sums(nn.Module):
        def forward(self, x):
            short = x.sum(0)
            for _ in range(9):
                short = torch.tanh(short)
            both = torch.relu(x).sum(0) + short
            for _ in range(9):
                both = torch.tanh(both)
            return both

    model, x = Sums().eval(), torch.randn(4, 8)
    program, problem = capture(model, x, machine(1))
    monkeypatch.setattr(graph_memory, "LARGE_TRANSFER_BYTES", x.nbytes)
    receive, empty, failed = streams.CudaDevice.receive, torch.empty, []

    def received(lane, value, after, place=None):
        if room == "received" and run.issuer.cuda_graphs.has_graphs and value.nbytes == x.nbytes:
            failed.append(value)
            raise torch.OutOfMemoryError("CUDA out of memory")
        return receive(lane, value, after, place)

    def reserved(*size, **how):
        if room == "beside" and how.get("dtype") is torch.uint8:
            failed.append(size)
            raise torch.OutOfMemoryError("CUDA out of memory")
        return empty(*size, **how)

    monkeypatch.setattr(streams.CudaDevice, "receive", received)
    monkeypatch.setattr(torch, "empty", reserved)
    with Executor(program, twin(model), on_gpu(problem, "relu"), cuda_graphs=True) as run:
        for _ in range(4):
            x = torch.randn(4, 8)
            assert torch.allclose(run(x), model(x), atol=1e-6)
        assert run.issue_mode == "op by op: there is no memory for graphs"
    assert len(failed) == 1
    assert room == "received" or failed[0][0] >= x.nbytes
