"""Captures: what `place` does to a model, and to Python, while its calls are captured."""

from __future__ import annotations

import gc

import pytest

torch = pytest.importorskip("torch")

from models import workers  # noqa: E402

from placewright.deployment.call_capture import begin_capture  # noqa: E402
from placewright.errors import PlanError  # noqa: E402
from placewright.runtime.garbage_collection import (  # noqa: E402
    GARBAGE_OBJECTS,
    rare_collections,
)


@pytest.fixture(autouse=True)
def own_thresholds():
    thresholds = gc.get_threshold()
    yield
    gc.set_threshold(*thresholds)


@pytest.mark.parametrize("thresholds", [(700, 10, 10), (2000, 5, 5)])
def test_garbage_is_collected_less_often_inside_and_as_before_afterwards(thresholds):
    gc.set_threshold(*thresholds)
    with rare_collections():
        assert gc.get_threshold() == (GARBAGE_OBJECTS, *thresholds[1:])
    assert gc.get_threshold() == thresholds


@pytest.mark.parametrize("thresholds", [(0, 10, 10), (2 * GARBAGE_OBJECTS, 10, 10)])
def test_garbage_is_never_collected_more_often_than_the_program_wants(thresholds):
    gc.set_threshold(*thresholds)
    with rare_collections():
        assert gc.get_threshold() == thresholds


def test_garbage_is_collected_less_often_in_the_first_call_of_a_placed_model_alone():
    gc.set_threshold(700, 10, 10)
    placed, seen = begin_capture(torch.nn.Linear(4, 4), workers(2)), []
    placed.backend.on_compile.append(lambda: seen.append(gc.get_threshold()[0]))
    with torch.no_grad():
        for batch in (2, 3):  # the second batch is traced, too, with a symbol
            placed.model(torch.ones(batch, 4))
            assert gc.get_threshold() == (700, 10, 10)
    assert seen == [GARBAGE_OBJECTS, 700]
    placed.remove()


def test_a_captured_model_takes_no_plan_for_other_devices():
    model = torch.nn.Linear(4, 4)
    placed = begin_capture(model, workers(2))
    other = begin_capture(torch.nn.Linear(4, 4), workers(3))
    with pytest.raises(PlanError, match="is for the devices cpu0, cpu1, cpu2: expected cpu0, cpu1"):
        placed.use_plan(other.plan)
    placed.remove()
    other.remove()
