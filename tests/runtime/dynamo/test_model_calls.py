"""Compiled calls of several models: what one has seen does not change the graphs of another."""

from __future__ import annotations

import functools
import logging

import pytest
from models import nn, place, torch

from placewright.runtime.dynamo.call_checks import full_guards


def shared_wrapper(forward):
    """A function of its own around each forward, with the same code for all of them."""

    @functools.wraps(forward)
    def wrapper(self, x):
        return forward(self, x)

    return wrapper


class Scales(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.full((4,), 2.0))

    @shared_wrapper
    def forward(self, x):
        return x * self.weight


class Shifts(Scales):
    @shared_wrapper
    def forward(self, x):
        return x + self.weight


def test_sizes_that_one_model_has_seen_are_no_symbols_in_another():
    first, second = (
        place(Scales().eval(), torch.rand(2, 4)),
        place(Shifts().eval(), torch.ones(2, 4)),
    )
    with torch.no_grad():
        for rows in (2, 3, 5):
            x = torch.rand(rows, 4)
            assert torch.equal(first(x), 2 * x)
        assert [graph.is_symbolic for graph in first.placed.graphs] == [False, True]
        x = torch.rand(2, 4)
        assert torch.equal(second(x), x + 2)
        assert [graph.is_symbolic for graph in second.placed.graphs] == [False]


def test_a_size_that_has_varied_stays_a_symbol_when_graphs_are_made_anew():
    model = place(Scales().eval(), torch.rand(2, 4))
    with torch.no_grad():
        for rows in (2, 3):
            model(torch.rand(rows, 4))
        model.placed.recapture()
        for rows in (2, 3):
            x = torch.rand(rows, 4)
            assert torch.equal(model(x), 2 * x)
    assert [graph.is_symbolic for graph in model.placed.graphs] == [True]


def lines_of_model(caplog):
    return [record.message for record in caplog.records if record.name == "model"]


class Warns(Scales):
    """Says something of its settings, as models of transformers do."""

    def forward(self, x):
        logging.getLogger("model").warning_once("this setting is unknown")
        return super().forward(x)


def test_a_warning_that_is_given_once_breaks_no_graph(monkeypatch, caplog):
    def warning_once(self, *args):
        self.warning(*args)

    monkeypatch.setattr(logging.Logger, "warning_once", warning_once, raising=False)
    model, x = place(Warns().eval(), torch.rand(2, 4)), torch.rand(2, 4)
    caplog.clear()
    with torch.no_grad():
        assert torch.equal(model(x), 2 * x)
    assert len(model.placed.graphs) == 1
    assert not model.placed.eager_calls
    assert not lines_of_model(caplog)


class Logs(Scales):
    def forward(self, x):
        logging.getLogger("model").warning("a call")
        return super().forward(x)


def test_other_log_lines_appear_in_every_call(caplog):
    model, x = place(Logs().eval(), torch.rand(2, 4)), torch.rand(2, 4)
    caplog.clear()
    with torch.no_grad():
        for count in (1, 2, 3):
            assert torch.equal(model(x), 2 * x)
            assert lines_of_model(caplog) == ["a call"] * count


@pytest.mark.parametrize("has_method", [False, True])
def test_settings_of_loggers_are_restored(has_method, monkeypatch):
    if has_method:
        monkeypatch.setattr(logging.Logger, "warning_once", print, raising=False)
    else:
        monkeypatch.delattr(logging.Logger, "warning_once", raising=False)
    before = set(torch._dynamo.config.ignore_logger_methods)
    with full_guards(8):
        assert (print in torch._dynamo.config.ignore_logger_methods) == has_method
    assert torch._dynamo.config.ignore_logger_methods == before
