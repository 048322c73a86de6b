"""Calls of a placed model that look alike and are not: each gives what the model itself would."""

from __future__ import annotations

import copy
import gc
import inspect
import pickle
import weakref
from itertools import pairwise

import numpy as np
import pytest
from models import nn, torch

import placewright as pw
from placewright.errors import ExecutionError
from placewright.runtime.call_cache import ModelFingerprint, call_key
from placewright.runtime.program.optimizer_step import OptimizerRule


def placed(model, *example, staged=0, training=False):
    """The model under a plan of two workers; with some bytes of staging buffer, weights stream."""
    graph = pw.from_torch(model, example, training=training)
    problem = pw.Problem(graph, pw.Cluster.parse("2xcpu"))
    if staged:
        device = np.array([op.kind == "weight" for op in graph.ops], dtype=np.int32)
        plan = pw.Plan.of(problem, device, staging=np.array([staged, -1], dtype=np.int64))
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
        with pytest.raises(ExecutionError, match="index out of range"):
            model(torch.tensor([1, 2, 30]))


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


def test_a_stream_that_is_left_leaves_nothing_behind():
    model, x = Deep().eval(), torch.randn(3, 16)
    placed(model, x)
    for _ in range(3):
        for _ in model.placed.pipeline(((x,) for _ in range(9)), in_flight=4):
            break
    gc.collect()
    (executor,) = model.placed.executors.values()
    assert not executor._in_flight
    assert not executor._done_by_step


def test_the_model_keeps_its_signature_and_says_that_it_cannot_be_copied():
    model = placed(Difference().eval(), *torch.randn(2, 2, 4))
    assert list(inspect.signature(model.forward).parameters) == ["one", "other"]
    for copied in (copy.deepcopy, pickle.dumps):
        with pytest.raises(ExecutionError, match=r"placed\.remove\(\)"):
            copied(model)
    copy.deepcopy(model.placed.remove())


def test_a_model_that_nobody_has_any_more_is_let_go():
    model, x = small(), torch.randn(3, 4)
    placed(model, x)
    model(x)
    gone = weakref.ref(model)
    del model
    gc.collect()
    assert gone() is None


def test_keys_are_equal_for_what_is_alike():
    model, x = small(), torch.randn(3, 4)
    watched = ModelFingerprint(model)
    assert call_key(watched, (x,), {}) == call_key(watched, (x + 1,), {})
    assert call_key(watched, (x,), {"mask": None}) != call_key(watched, (x,), {})
    assert call_key(watched, (object(),), {}) is None
    empty = torch.empty(0, 4), torch.empty(0, 4)
    assert call_key(watched, empty, {}) != call_key(watched, (empty[0], empty[0]), {})
    model[0].weight.add_(1)
    assert not watched.changed
    model[1] = nn.GELU()
    assert watched.changed
