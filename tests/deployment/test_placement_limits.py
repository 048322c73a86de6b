"""Limits of GPUs hold for all that a placed model runs, also for steps and calls in flight."""

from __future__ import annotations

import contextlib
import copy

import pytest

torch = pytest.importorskip("torch")
torch.set_num_threads(1)

from attack.odd_uses.placing import cluster_of  # noqa: E402
from fake_cuda import fake_gpus  # noqa: E402
from models import nn  # noqa: E402

import placewright as pw  # noqa: E402
from placewright.deployment import model_placement  # noqa: E402
from placewright.errors import ExecutionError  # noqa: E402
from placewright.runtime.dynamo.backend import FIRST_STEPS  # noqa: E402

LIMIT = 150_000


class Layers(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.one, self.two = nn.Linear(64, 64), nn.Linear(64, 64)

    def forward(self, x):
        return self.two(torch.relu(self.one(x))).square().mean()


def rows(count=4):
    return torch.rand(count, 64, generator=torch.Generator().manual_seed(count))


def placed(workload):
    """A model of which most is on a GPU with a limit."""
    model = pw.place(
        Layers(),
        {"gpu0": LIMIT},
        workload,
        cluster=cluster_of("streaming"),
        budget=0.3,
        notify=lambda text: None,
    )
    assert 1 in model.placed.plan.placement
    return model


@contextlib.contextmanager
def noted_caps(cuda, monkeypatch):
    caps, memory_cap = [], cuda.memory_cap
    monkeypatch.setattr(
        cuda, "memory_cap", lambda index, size: caps.append(size) or memory_cap(index, size)
    )
    yield caps


def test_a_training_step_that_does_not_fit_is_an_error_and_changes_no_weight():
    with fake_gpus(counts_host=True):
        model = placed(pw.Train((rows(),)))
        model.placed.train_step(rows())
        weights = copy.deepcopy(model.state_dict())
        with pytest.raises(ExecutionError, match=r"GPU 0 may use 146.5 KiB and needs .* bytes"):
            model.placed.train_step(rows(10_000))
        assert all(torch.equal(value, weights[name]) for name, value in model.state_dict().items())


def test_micro_batches_run_under_a_cap(monkeypatch):
    with fake_gpus() as cuda, noted_caps(cuda, monkeypatch) as caps:
        model = placed(pw.Train((rows(),)))
        caps.clear()
        model.placed.train_micro_batches([(rows(),), (rows(),)])
        assert set(caps) == {LIMIT}


def test_libraries_are_measured_in_the_first_calls_and_said_to_be_uncounted(monkeypatch):
    monkeypatch.setattr(model_placement, "device_that_fits", lambda workload: None)
    lines = []
    with fake_gpus(was_used=True) as cuda, noted_caps(cuda, monkeypatch) as caps:
        model = pw.place(
            Layers(),
            {"gpu0": LIMIT},
            pw.Calls([((rows(),),)]),
            cluster=cluster_of("streaming"),
            budget=0.3,
            notify=lines.append,
        )
        caps.clear()
        measured = cuda.measured
        with torch.no_grad():
            for _ in range(4 * FIRST_STEPS):
                model(rows())
        assert set(caps) == {LIMIT}
        assert len(caps) == 4 * FIRST_STEPS
        assert cuda.measured - measured <= FIRST_STEPS + 4
    assert any("what libraries took of GPU 0 before is not counted" in line for line in lines)


def test_calls_in_flight_run_under_a_cap(monkeypatch):
    monkeypatch.setattr(model_placement, "device_that_fits", lambda workload: None)
    own = Layers()
    with fake_gpus() as cuda, noted_caps(cuda, monkeypatch) as caps:
        model = placed(pw.Calls([((rows(),),)]))
        caps.clear()
        with torch.no_grad():
            values = list(model.placed.pipeline([(rows(),), (rows(),)]))
            assert values == [own(rows())] * 2
        assert len(caps) >= 4
        assert set(caps) == {LIMIT}


def test_the_backward_pass_of_an_eager_call_is_under_a_cap(monkeypatch):
    monkeypatch.setattr(model_placement, "device_that_fits", lambda workload: None)
    own, seen = Layers(), []
    with fake_gpus() as cuda:
        model = placed(pw.Calls([((rows(),),)]))
        model.one.weight.register_hook(lambda gradient: seen.append(list(cuda.caps)))
        with model.placed.eager():
            loss = model(rows())
        loss.backward()
        own(rows()).backward()
        assert seen == [[LIMIT]]
        assert cuda.caps == []
    assert torch.allclose(model.one.weight.grad, own.one.weight.grad, atol=1e-7)


@pytest.mark.parametrize("workload", ["calls", "steps"])
def test_an_ordinary_loop_runs_where_there_are_limits(workload, monkeypatch):
    monkeypatch.setattr(model_placement, "device_that_fits", lambda workload: None)
    own = Layers()
    with fake_gpus():
        model = placed(pw.Train((rows(),)) if workload == "steps" else pw.Calls([((rows(),),)]))
        for each in (own, model):
            each(rows()).backward()
        for weight, expected in zip(model.parameters(), own.parameters(), strict=True):
            assert torch.allclose(weight.grad, expected.grad, atol=1e-7)
        with pytest.raises(ExecutionError, match="this call does not fit: gpu0 needs"):
            model(rows(10_000)).backward()
