"""The states of a placed model are those of a model that was never called."""

from __future__ import annotations

import copy
import random

import numpy as np
import pytest

torch = pytest.importorskip("torch")
torch.set_num_threads(1)

from fake_cuda import fake_gpus  # noqa: E402
from models import machine, nn, workers  # noqa: E402

import placewright as pw  # noqa: E402
from placewright.deployment import model_placement  # noqa: E402
from placewright.deployment.model_states import (  # noqa: E402
    devices_of,
    unchanged_states,
    unchanged_weights,
)
from placewright.runtime.placed_model import move_tensors  # noqa: E402

X = torch.ones(2, 8)


class Layers(nn.Module):
    """Two layers, and what a forward may change."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.one, self.two = nn.Linear(8, 8), nn.Linear(8, 8)
        self.register_buffer("mean", torch.ones(8))
        self.register_buffer("calls", torch.zeros(()))
        self.count, self.last, self.seen = 0, None, []

    def forward(self, x):
        return self.change(self.two(torch.relu(self.one(x))))


class Assigned(Layers):
    def change(self, y):
        self.mean = self.mean * 0.5 + y.mean(0) * 0.5
        self.last = y
        return y + self.mean


class InPlace(Layers):
    def change(self, y):
        self.calls += 1
        self.mean.mul_(0.5).add_(y.mean(0))
        return y + self.mean


class Counted(Layers):
    def change(self, y):
        self.count += 1
        return y * self.count


class Listed(Layers):
    def change(self, y):
        self.seen.append(y.sum())
        return y


class WritesWeights(Layers):
    """Writes to weights round autograd, and keeps an average in a parameter."""

    def __init__(self) -> None:
        super().__init__()
        self.average = nn.Parameter(torch.zeros(8), requires_grad=False)

    def change(self, y):
        self.one.weight.data.add_(0.125)
        with torch.no_grad():
            self.average.mul_(0.5).add_(y.mean(0), alpha=0.5)
        return y + self.average


@pytest.mark.parametrize("kind", [Assigned, InPlace, Counted, Listed, WritesWeights])
@pytest.mark.parametrize("devices", ["workers", "one GPU", "a GPU that is too small"])
def test_place_leaves_the_states_and_random_numbers_as_they_were(kind, devices, monkeypatch):
    monkeypatch.setattr(model_placement, "single_device", lambda plan: None)
    if devices != "one GPU":
        monkeypatch.setattr(model_placement, "device_that_fits", lambda workload: None)
    own, model = kind().eval(), kind().eval()
    with fake_gpus():
        torch.manual_seed(1)
        model = pw.place(
            model,
            workload=pw.Calls([((X,),)]),
            cluster=workers() if devices == "workers" else machine(1),
            budget=0.3,
            notify=lambda text: None,
        )
        number = torch.rand(1)
        torch.manual_seed(1)
        assert torch.equal(number, torch.rand(1))
        assert model.count == 0
        assert model.last is None
        assert model.seen == []
        assert all(map(torch.equal, model.state_dict().values(), own.state_dict().values()))
        for _ in range(3):
            with torch.no_grad():
                assert torch.equal(model(X), own(X))
            assert torch.equal(model.mean, own.mean)
            assert torch.equal(model.calls, own.calls)
        assert all(map(torch.equal, model.state_dict().values(), own.state_dict().values()))
        assert model.count == own.count
        assert len(model.seen) == len(own.seen)


def test_states_are_restored_after_an_error():
    model = InPlace()
    own = copy.deepcopy(model.state_dict())

    def call_and_fail():
        with unchanged_states(model):
            model(X)
            model.extra = 1
            raise ValueError("it fails")

    with pytest.raises(ValueError, match="it fails"):
        call_and_fail()
    assert all(torch.equal(value, own[name]) for name, value in model.state_dict().items())
    assert not hasattr(model, "extra")


class Rewrites(Layers):
    """Does to its weights what a forward can."""

    def change(self, y):
        self.two.weight.data = self.two.weight.data * 2
        self.one.bias[:4].data.zero_()
        torch.mul(self.two.bias.data, 2, out=self.two.bias.data)
        self.one.weight.grad.add_(1)
        self.two.weight.grad = torch.ones(8, 8)
        self.mean_weight = nn.Parameter(self.one.weight.mean(0))
        self.three = nn.Linear(8, 8)
        return self.three(y) + random.random() + np.random.rand()  # noqa: NPY002


def test_written_weights_and_gradients_are_restored_and_listed():
    model, own = Rewrites(), Rewrites()
    for each in (model, own):
        each.one.weight.grad = torch.full((8, 8), 0.5)
    numbers = random.getstate(), np.random.get_state()[1].tolist()  # noqa: NPY002
    for _ in range(2):
        with unchanged_states(model), unchanged_weights(model) as written:
            model(X)
        assert {id(tensor) for tensor in written} == {
            *map(id, (model.one.bias, model.two.bias, model.one.weight.grad))
        }
        assert list(model.state_dict()) == list(own.state_dict())
        assert all(map(torch.equal, model.state_dict().values(), own.state_dict().values()))
        assert torch.equal(model.one.weight.grad, own.one.weight.grad)
        assert model.two.weight.grad is None
        assert not hasattr(model, "three")
    assert numbers == (random.getstate(), np.random.get_state()[1].tolist())  # noqa: NPY002
    with unchanged_states(model, written), torch.no_grad():
        model.one.bias.zero_()
    assert torch.equal(model.one.bias, own.one.bias)


class OnDevice:
    """What of a tensor tells where it is."""

    def __init__(self, device) -> None:
        self.device, self.is_meta = device, device == "meta"

    @property
    def data(self):
        return self

    @data.setter
    def data(self, data):
        self.device = data.device

    def to(self, device):
        return OnDevice(device)


def test_weights_go_back_to_their_devices():
    first, second, third = OnDevice("cpu"), OnDevice("cuda:0"), OnDevice("meta")
    move_tensors([(first, "cuda:1"), (second, "cuda:0"), (third, "cpu")])
    assert [each.device for each in (first, second, third)] == ["cuda:1", "cuda:0", "meta"]
    model = nn.BatchNorm1d(2)
    assert [device.type for _, device in devices_of(model)] == ["cpu"] * 5
    assert devices_of(model)[0][0] is model.weight
