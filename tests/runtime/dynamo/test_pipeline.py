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


def test_a_call_without_a_graph_is_refused_and_the_model_goes_on():
    class Optional(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(4, 4)

        def forward(self, x, how):
            return {"compute": self.layer, "pass": lambda x: x, "none": lambda x: None}[how](x)

    model, x = Optional().eval(), torch.randn(3, 4)
    place(model, x, "compute")
    *_, last = model.placed.pipeline([(x, "compute"), (x, "compute"), (x, "pass")])
    assert last is x
    with pytest.raises(ExecutionError, match="computes nothing"):
        list(model.placed.pipeline([(x, "compute"), (x, "compute"), (x, "none")]))
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


def test_none_in_flight_is_refused():
    model, x = small(), torch.randn(3, 4)
    place(model, x)
    with pytest.raises(ConfigError, match="0 steps in flight"):
        list(model.placed.pipeline([(x,)], in_flight=0))
    assert list(model.placed.pipeline([])) == []


class Branch(nn.Module):
    """Breaks the graph on a negative number, and refuses a zero."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.order = nn.Linear(4, 4), []

    def forward(self, x, number):
        if number == 0:
            raise ValueError("zero")
        if number < 0:
            torch._dynamo.graph_break()
        self.order.append(number)
        return self.layer(x) * number


def test_a_call_that_is_not_one_graph_runs_alone_in_its_turn():
    model = Branch().eval()
    calls = [(torch.randn(3, 4), number) for number in (1, 2, -3, 4, -5)]
    expected = [model(*call) for call in calls]
    model.order.clear()
    place(model, *calls[0])
    made = list(model.placed.pipeline(calls, in_flight=3))
    for one, other in zip(made, expected, strict=True):
        assert torch.equal(one, other)
    assert model.order == [1, 2, -3, 4, -5]


def test_a_call_inside_an_eager_block_runs_alone():
    model, x = place(small(), torch.randn(3, 4)), torch.randn(3, 4)
    with model.placed.eager():
        (made,) = model.placed.pipeline([(x,)])
    assert torch.equal(made, model(x))
    assert sum(model.placed.eager_calls.values()) == 1


def results_and_error(results):
    """The results before an error, and the error."""
    made = []
    try:
        made.extend(results)  # keeps what comes before an error
    except Exception as error:
        return made, error
    return made, None


@pytest.mark.parametrize("in_flight", [1, 2, 4])
def test_results_come_before_the_error_of_a_call_that_cannot_begin(in_flight):
    model = Branch().eval()
    place(model, torch.randn(3, 4), 1)
    calls = [(torch.randn(3, 4), number) for number in (1, 2, 3, 0, 4)]
    made, error = results_and_error(model.placed.pipeline(calls, in_flight))
    assert isinstance(error, ValueError)
    assert str(error) == "zero"
    for one, (x, number) in zip(made, calls[:3], strict=True):
        assert torch.equal(one, model.layer(x) * number)


@pytest.mark.parametrize("in_flight", [1, 2, 4])
def test_results_come_before_the_error_of_a_step_that_fails(in_flight):
    model = nn.Sequential(nn.Embedding(5, 4), nn.Linear(4, 2)).eval()
    good, bad = torch.tensor([1, 2, 3]), torch.tensor([1, 2, 30])
    place(model, good)
    for count in range(4):
        calls = [(good,)] * count + [(bad,), (good,)]
        made, error = results_and_error(model.placed.pipeline(calls, in_flight))
        with pytest.raises(IndexError) as own:
            model.placed.forward(bad)
        assert type(error) is type(own.value)
        assert str(error) == str(own.value)
        assert len(made) == count
        assert all(torch.equal(one, model.placed.forward(good)) for one in made)
    assert torch.equal(model(good), model.placed.forward(good))


def test_results_come_before_an_error_of_the_calls_themselves():
    def calls():
        yield (torch.ones(3, 4),)
        yield (torch.ones(3, 4),)
        raise OSError("the disk is gone")

    model = place(small(), torch.ones(3, 4))
    made, error = results_and_error(model.placed.pipeline(calls()))
    assert isinstance(error, OSError)
    assert len(made) == 2


def test_a_step_that_fails_after_it_changed_a_state_does_not_run_twice():
    class Counts(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.table = nn.Embedding(5, 4)
            self.register_buffer("calls", torch.zeros(()))

        def forward(self, words):
            self.calls += 1
            return self.table(words)

    model = place(Counts().eval(), torch.tensor([1, 2]))
    calls = [(torch.tensor([1, 2]),), (torch.tensor([1, 20]),)]
    made, error = results_and_error(model.placed.pipeline(calls, in_flight=1))
    assert isinstance(error, IndexError)
    assert len(made) == 1
    assert model.calls <= 2


def test_hooks_of_the_model_itself_run():
    model = place(small(), torch.ones(3, 4))
    model.register_forward_pre_hook(lambda module, args: (args[0] + 1,))
    model.register_forward_hook(lambda module, args, output: output * 2)
    calls = [(torch.randn(3, 4),) for _ in range(3)]
    for one, (x,) in zip(model.placed.pipeline(calls), calls, strict=True):
        assert torch.equal(one, 2 * model.placed.forward(x + 1))


def test_the_model_goes_on_after_a_step_that_fails():
    model = nn.Sequential(nn.Embedding(5, 4), nn.Linear(4, 2)).eval()
    good, bad = torch.tensor([1, 2, 3]), torch.tensor([1, 2, 30])
    place(model, good)
    with pytest.raises(IndexError) as raised:
        list(model.placed.pipeline([(good,), (bad,), (good,)], in_flight=3))
    assert any("op '0.embedding' failed" in note for note in raised.value.__notes__)
    assert torch.equal(model(good), model.placed.forward(good))
    for one in model.placed.pipeline([(good,)] * 3):
        assert torch.equal(one, model.placed.forward(good))
