"""States that a call changes are the caller's own, also where CUDA graphs have fixed addresses."""

from __future__ import annotations

import threading

import pytest
from fake_cuda import fake_gpus
from models import machine, nn, torch, twin

from placewright import Plan, Problem, apply, from_torch


class Writes(nn.Module):
    """Changes two arguments."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(8, 8)

    def forward(self, x, out):
        y = x
        for _ in range(9):
            y = torch.tanh(self.inner(y))
        x.add_(y)
        out.mul_(0.5).add_(y)
        return y.sum()


def tensors(count):
    generator = torch.Generator().manual_seed(0)
    return [torch.randn(4, 8, generator=generator) for _ in range(count)]


@pytest.fixture
def pair():
    """A model on a fake GPU, whose steps are a CUDA graph, and an untouched copy."""
    torch.manual_seed(0)
    model = Writes().eval()
    reference = twin(model)
    problem = Problem(from_torch(model, tuple(tensors(2))), machine(1))
    plan = Plan.of(problem, problem.legalize([1] * len(problem.graph)))
    with fake_gpus(), torch.no_grad():
        yield apply(plan, model, cuda_graphs=True), reference
        model.placed.remove()


@pytest.mark.parametrize(
    "later",
    [[(2, 3)], [(1, 0)], [(0, 2)], [(2, 1), (0, 1)], [(1, 0), (0, 1), (3, 0), (2, 3)]],
    ids=["others", "swapped", "one other", "one other, then back", "all mixed"],
)
def test_tensors_of_earlier_calls_keep_their_data_after_a_capture(pair, later):
    all_tensors = [tensors(4), tensors(4)]
    for model, mine in zip(pair, all_tensors, strict=True):
        for x, out in [(0, 1)] * 5 + later:
            model(mine[x], mine[out])
    (graph,) = pair[0].placed.graphs
    assert graph.executor.issue_mode == "1 graph"
    for one, other in zip(*all_tensors, strict=True):
        assert torch.allclose(one, other)


def test_a_step_that_fails_leaves_tensors_of_earlier_calls_alone(pair, monkeypatch):
    model, _ = pair
    x, out, other_x, other_out = tensors(4)
    for _ in range(5):
        model(x, out)
    before = x.clone(), out.clone()
    executor = model.placed.graphs[0].executor

    def fail(*_):
        raise RuntimeError("the GPU is gone")

    monkeypatch.setattr(executor.issuer, "run_until", fail)
    with pytest.raises(RuntimeError, match="the GPU is gone"):
        model(other_x, other_out)
    assert torch.equal(x, before[0])
    assert torch.equal(out, before[1])


def test_a_step_leaves_the_memory_of_another_threads_caller_alone(pair):
    """That thread may read it, or fill it, while the step runs."""
    model, reference = pair
    mine, other, expected = tensors(2), tensors(4)[2:], tensors(4)
    for _ in range(12):
        assert torch.equal(model(*mine), reference(*expected[:2]))
    (graph,) = model.placed.graphs
    executor, written = graph.executor, [value._version for value in mine]
    assert executor.issue_mode == "1 graph"

    @torch.no_grad()
    def call():
        for _ in range(12):
            assert torch.equal(model(*other), reference(*expected[2:]))
        done.append(True)

    done = []
    thread = threading.Thread(target=call)
    thread.start()
    thread.join()
    assert done
    assert graph.executor is not executor
    assert [value._version for value in mine] == written
    executor = graph.executor
    model(*other)
    assert graph.executor is executor
    for value, right in zip(mine, expected[:2], strict=True):
        assert torch.equal(value, right)
