"""Calls with several steps in flight give their own results, in order."""

from __future__ import annotations

import pytest
from models import Cached, nn, place, torch

from placewright.errors import ConfigError, ExecutionError


def small():
    return nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 2)).eval()


@pytest.fixture(autouse=True)
def without_gradients():
    torch.manual_seed(0)
    with torch.no_grad():
        yield


@pytest.mark.parametrize("in_flight", [1, 3])
def test_mixed_shapes_come_back_in_order(in_flight):
    model = place(small(), torch.randn(3, 4))
    calls = [(torch.randn(count, 4),) for count in (3, 3, 5, 3, 7, 2, 7, 3, 5)]
    made = list(model.placed.pipeline(calls, in_flight))
    for one, (x,) in zip(made, calls, strict=True):
        assert torch.equal(one, model.placed.forward(x))


def test_the_models_own_code_goes_on_after_the_graph():
    class Wraps(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(4, 4)

        def forward(self, x, name):
            return {name: self.layer(x), "rows": x.shape[0], "same": x}

    model = place(Wraps().eval(), torch.randn(3, 4), "a")
    calls = [(torch.randn(3 + at % 2, 4), "ab"[at % 2]) for at in range(6)]
    for one, (x, name) in zip(model.placed.pipeline(calls), calls, strict=True):
        assert list(one) == [name, "rows", "same"]
        assert torch.equal(one[name], model.layer(x))
        assert one["rows"] == len(x)
        assert one["same"] is x


def test_a_call_that_computes_nothing_is_refused_and_the_model_goes_on():
    class Optional(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(4, 4)

        def forward(self, x, how):
            return {"compute": self.layer, "pass": lambda x: x, "none": lambda x: None}[how](x)

    model, x = Optional().eval(), torch.randn(3, 4)
    place(model, x, "compute")
    for how in ("pass", "none"):
        with pytest.raises(ExecutionError, match=r"computes nothing|nothing to compute"):
            list(model.placed.pipeline([(x, "compute"), (x, "compute"), (x, how)]))
    assert model(x, "pass") is x
    assert model(x, "none") is None
    assert torch.equal(model(x, "compute"), model.layer(x))
    assert not model.placed.graphs[0].executor._in_flight


def test_a_model_that_changes_states_has_one_step_in_flight():
    model, row = Cached().eval(), (torch.randn(1, 8), torch.tensor([1]))
    place(model, *row)
    with pytest.raises(ExecutionError, match="cannot overlap: run with one in flight"):
        list(model.placed.pipeline([row] * 3, in_flight=2))
    assert model.calls == 0
    assert [calls.item() for _, _, calls in model.placed.pipeline([row] * 3, in_flight=1)] == [
        1,
        2,
        3,
    ]
    assert model.calls == 3


def test_calls_that_are_not_one_graph_or_none_in_flight_are_refused():
    model, x = small(), torch.randn(3, 4)
    place(model, x)
    with pytest.raises(ConfigError, match="0 steps in flight"):
        list(model.placed.pipeline([(x,)], in_flight=0))
    assert list(model.placed.pipeline([])) == []
    with model.placed.eager(), pytest.raises(ExecutionError, match="cannot be in flight together"):
        list(model.placed.pipeline([(x,)]))
    assert torch.equal(model(x), model.placed.forward(x))


def test_a_step_that_fails_raises_and_the_model_goes_on():
    model = nn.Sequential(nn.Embedding(5, 4), nn.Linear(4, 2)).eval()
    good, bad = torch.tensor([1, 2, 3]), torch.tensor([1, 2, 30])
    place(model, good)
    with pytest.raises(ExecutionError, match=r"op '0\.embedding' failed"):
        list(model.placed.pipeline([(good,), (bad,), (good,)], in_flight=3))
    assert torch.equal(model(good), model.placed.forward(good))
    for one in model.placed.pipeline([(good,)] * 3):
        assert torch.equal(one, model.placed.forward(good))
