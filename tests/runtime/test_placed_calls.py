"""Calls of a placed model that look alike and are not: each gives what the model itself would."""

from __future__ import annotations

import copy
import gc
import inspect
import multiprocessing
import pickle
import warnings
import weakref
from itertools import pairwise

import numpy as np
import pytest
from models import nn, torch

import placewright as pw
from placewright.errors import ExecutionError
from placewright.runtime.dynamo import model_calls
from placewright.runtime.program.optimizer_step import OptimizerRule

DTYPES = (torch.float32, torch.float64, torch.bfloat16, torch.float16)


def placed(model, *example, staged=0, training=False):
    """The model under a plan of two workers; with some bytes of staging buffer, weights stream."""
    graph = pw.from_torch(model, example, training=training)
    problem = pw.Problem(graph, pw.Cluster.parse("2xcpu"))
    if staged:
        device = np.array([op.kind == "weight" for op in graph.ops], dtype=np.int32)
        sizes = np.array([staged, -1], dtype=np.int64)
        plan = pw.Plan.of(problem, problem.legalize(device), staging=sizes)
    else:
        device = problem.legalize(np.arange(len(graph), dtype=np.int32) % 2)
        plan = pw.Plan.of(problem, device)
    return pw.apply(plan, model, optimizer=OptimizerRule("adam", 0.01) if training else None)


class Difference(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 3)

    def forward(self, one, other):
        return self.layer(one) - 2 * self.layer(other)


class Deep(nn.Module):
    def __init__(self, width=16) -> None:
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(width, width) for _ in range(6)])

    def forward(self, x):
        for layer in self.layers:
            x = torch.relu(layer(x))
        return x


class Normed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer, self.norm = nn.Linear(4, 4), nn.BatchNorm1d(4)

    def forward(self, x):
        return self.norm(self.layer(x))


class Scored(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 3)

    def forward(self, x, y):
        return nn.functional.cross_entropy(self.layer(x), y)


def small():
    return nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 2)).eval()


@pytest.fixture(autouse=True)
def without_gradients():
    torch.manual_seed(0)
    with torch.no_grad():
        yield


def test_one_tensor_twice_is_another_call_than_two_tensors():
    model, (one, other) = Difference().eval(), torch.randn(2, 2, 4)
    expected = model(one, one), model(one, other)
    placed(model, one, other)
    for _ in range(2):
        assert torch.allclose(model(one, one), expected[0])
        assert torch.allclose(model(one, other), expected[1])


def test_what_is_cast_by_itself_is_another_call():
    model, x = small(), torch.randn(3, 4)
    placed(model, x)
    for _ in range(3):
        assert model(x).dtype == torch.float32
        with torch.autocast("cpu", torch.bfloat16):
            assert model(x).dtype == torch.bfloat16


def test_hooks_of_the_model_run_once():
    model, x = small(), torch.randn(3, 4)
    model.register_forward_hook(lambda module, args, made: made * 2)
    model.register_forward_pre_hook(lambda module, args: (args[0] + 1,))
    expected = model(x)
    placed(model, x)
    assert torch.allclose(model(x), expected)


def test_changes_of_the_model_are_noticed():
    model, x = small(), torch.randn(3, 4)
    placed(model, x)

    def changed():
        assert torch.allclose(model(x), model.placed.forward(x))
        return model(x)

    made = [changed()]
    model[0].weight.data = torch.zeros(4, 4)
    made.append(changed())
    model[2] = nn.Linear(4, 2)
    made.append(changed())
    model[1] = nn.Tanh()
    model[0].weight.data = torch.ones(4, 4)
    made.append(changed())
    handle = model[2].register_forward_hook(lambda module, args, made: made + 1)
    made.append(changed())
    handle.remove()
    made.append(changed())
    model[2].load_state_dict({k: v + 1 for k, v in model[2].state_dict().items()}, assign=True)
    made.append(changed())
    assert all(not torch.allclose(a, b) for a, b in pairwise(made))


def test_a_module_that_trains_is_another_call():
    model, x = Normed().eval(), torch.randn(3, 4)
    placed(model, x)
    still = model(x)
    model.norm.train()
    assert not torch.allclose(model(x), still)


def test_a_call_that_fails_leaves_the_model_as_it_was():
    model = nn.Sequential(nn.Embedding(10, 4), nn.Linear(4, 2)).eval()
    x = torch.tensor([1, 2, 3])
    expected = model(x)
    placed(model, x)
    for _ in range(2):
        assert torch.allclose(model(x), expected)
        with pytest.raises(IndexError, match="index out of range") as raised:
            model(torch.tensor([1, 2, 30]))
        assert "op '0.embedding' failed on" in raised.value.__notes__[0]


def test_the_optimizer_goes_on_whatever_the_size_of_a_batch():
    model, twin = Scored(), Scored()
    twin.load_state_dict(model.state_dict())
    adam = torch.optim.Adam(twin.parameters(), 0.01)
    batches = [(torch.randn(size, 4), torch.randint(3, (size,))) for size in (8, 8, 3, 8, 3, 8)]
    with torch.enable_grad():
        placed(model, *batches[0], training=True)
        for at, batch in enumerate(batches):
            model.placed.train_step(*batch)
            adam.zero_grad()
            twin(*batch).backward()
            adam.step()
            if at == 3:
                model.placed.recapture()  # as a cast of the model does
    for mine, theirs in zip(model.parameters(), twin.parameters(), strict=True):
        assert torch.allclose(mine, theirs, atol=1e-6)


def test_calls_during_a_pipeline_leave_its_staging_buffer_alone():
    model, other = Deep().eval(), torch.randn(5, 16)
    calls = [torch.randn(3, 16) for _ in range(12)]
    expected, beside = [model(x) for x in calls], model(other)
    placed(model, calls[0], staged=2 * (16 * 16 + 16) * 4)
    for _ in range(2):
        model(other)  # captured when it comes again
    streamed = model.placed.pipeline(((x,) for x in calls), in_flight=3)
    for made, right in zip(streamed, expected, strict=True):
        assert torch.allclose(made, right, atol=1e-6)
        assert torch.allclose(model(other), beside, atol=1e-6)


def test_a_last_batch_that_is_smaller_streams_too():
    model = Deep().eval()
    calls = [torch.randn(size, 16) for size in (4, 4, 4, 1)]
    expected = [model(x) for x in calls]
    placed(model, calls[0])
    for made, right in zip(model.placed.pipeline((x,) for x in calls), expected, strict=True):
        assert torch.allclose(made, right, atol=1e-6)


@pytest.mark.usefixtures("frozen_heap")
def test_a_stream_that_is_left_leaves_nothing_behind():
    model, x = Deep().eval(), torch.randn(3, 16)
    placed(model, x)
    for _ in range(3):
        for _ in model.placed.pipeline(((x,) for _ in range(9)), in_flight=4):
            break
    gc.collect()
    (graph,) = model.placed.graphs
    executor = graph.executor
    assert not executor._in_flight
    assert not executor._done_by_step


def test_the_model_keeps_its_signature_and_says_that_it_cannot_be_copied():
    model = placed(Difference().eval(), *torch.randn(2, 2, 4))
    assert list(inspect.signature(model.forward).parameters) == ["one", "other"]
    for copied in (copy.deepcopy, pickle.dumps):
        with pytest.raises(ExecutionError, match=r"placed\.remove\(\)"):
            copied(model)
    copy.deepcopy(model.placed.remove())


def test_a_forked_child_starts_its_own_workers():
    model, x = small(), torch.randn(3, 4)
    expected = model(x)
    placed(model, x)
    assert torch.equal(model(x), expected)
    context = multiprocessing.get_context("fork")
    answers = context.SimpleQueue()
    child = context.Process(target=lambda: answers.put(torch.equal(model(x), expected)))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of forks in programs with threads
        child.start()
    child.join(60)
    assert child.exitcode == 0
    assert answers.get()


def test_more_shapes_than_graphs_run_eagerly_and_right(monkeypatch):
    monkeypatch.setattr(model_calls, "MAX_GRAPHS", 2)
    model, x = small(), torch.randn(3, 4)
    twin = copy.deepcopy(model)
    placed(model, x)
    for dtype in DTYPES:
        assert torch.equal(model.to(dtype)(x.to(dtype)), twin.to(dtype)(x.to(dtype)))
    assert sum(model.placed.eager_calls.values()) == 2


def test_eight_graphs_have_executors_and_more_are_right():
    class Scales(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(4, 4)

        def forward(self, x, mode):
            return self.layer(x) * len(mode)

    model, x = Scales().eval(), torch.randn(3, 4)
    placed(model, x, "a")
    for _ in range(2):
        for count in range(1, 12):
            assert torch.equal(model(x, "a" * count), model.placed.forward(x, "a" * count))
    assert len(model.placed.graphs) == 11
    assert sum(graph.executor is not None for graph in model.placed.graphs) == 8


@pytest.mark.usefixtures("frozen_heap")
def test_a_model_that_nobody_has_any_more_is_let_go():
    model, x = small(), torch.randn(3, 4)
    placed(model, x)
    model(x)
    gone = weakref.ref(model)
    del model
    gc.collect()
    assert gone() is None


class Routed(nn.Module):
    """Whether the second layer is used depends on values, so that it is not one graph."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(4, 4), nn.Linear(4, 4)

    def forward(self, x):
        y = self.first(x)
        (rows,) = torch.where(x[:, 0] > 0)
        return y.index_add(0, rows, self.second(x[rows])) if len(rows) else y


def test_a_model_that_branches_on_values_runs_both_branches():
    own = Routed()
    model = placed(copy.deepcopy(own), torch.ones(3, 4))
    for x in (torch.ones(3, 4), -torch.ones(3, 4), torch.randn(5, 4)):
        assert torch.equal(model(x), own(x))


def test_a_call_between_a_batch_norm_and_its_backward_pass_changes_no_gradient():
    own, x = Normed(), torch.randn(6, 4)
    model = placed(copy.deepcopy(own), x)
    for each in (own, model):
        with torch.enable_grad():
            loss = each(x).square().sum()
        each(2 * x)
        loss.backward()
    for weight, own_weight in zip(model.parameters(), own.parameters(), strict=True):
        assert torch.equal(weight.grad, own_weight.grad)
    assert torch.equal(model.norm.running_var, own.norm.running_var)


class Places(nn.Module):
    """Adds a slice of a weight, and of a buffer, as long as its input."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.places = nn.Linear(4, 4), nn.Parameter(torch.randn(9, 4))
        self.register_buffer("numbers", torch.arange(9.0))

    def forward(self, x):
        length = x.shape[1]
        return self.layer(x + self.places[:length]) * self.numbers[None, :length, None]


@pytest.mark.parametrize("staged", [0, 1024])
def test_slices_of_weights_are_as_long_as_each_call_needs(staged):
    own = Places()
    model = placed(copy.deepcopy(own), torch.randn(2, 5, 4), staged=staged)
    for length in (5, 7, 3, 9, 4, 7):
        x = torch.randn(2, length, 4)
        with torch.enable_grad():
            output, expected = model(x), own(x)
        assert torch.equal(output, expected)
        assert torch.equal(model(x), expected)
        gradient = torch.randn_like(expected)
        output.backward(gradient)
        expected.backward(gradient)
        for weight, own_weight in zip(model.parameters(), own.parameters(), strict=True):
            assert torch.equal(weight.grad, own_weight.grad)
    assert any(graph.is_symbolic and not graph.reason for graph in model.placed.graphs)
