"""Checkpoints of eager calls: they run again under the placement, and others are left alone."""

from __future__ import annotations

import threading

import pytest

torch = pytest.importorskip("torch")

from torch.utils import checkpoint as functions  # noqa: E402
from torch.utils.checkpoint import CheckpointFunction, checkpoint  # noqa: E402

from placewright.runtime.eager_checkpoints import rerun_checkpoints  # noqa: E402
from placewright.runtime.eager_fallback import EagerPlacement  # noqa: E402

CPU = torch.device("cpu")


def placement():
    return EagerPlacement({}, {})


def patched():
    """PyTorch's functions of checkpoints, as they are now."""
    return (
        vars(CheckpointFunction).get("apply"),
        functions.get_device_states,
        functions._infer_device_type,
        functions._checkpoint_without_reentrant_generator,
    )


def test_a_reentrant_checkpoint_runs_again_under_the_placement():
    x, weight = torch.ones(3, requires_grad=True), torch.full((3,), 2.0)
    placements = []

    def run(value):
        modes = torch.overrides._get_current_function_mode_stack()
        placements.append([mode for mode in modes if isinstance(mode, EagerPlacement)])
        return value * weight

    devices = {id(weight): torch.device("cpu")}
    with EagerPlacement(devices, {}) as mode, rerun_checkpoints(mode.for_rerun):
        y = checkpoint(run, x, use_reentrant=True)
    y.sum().backward()
    first, second = placements
    assert first == [mode]
    assert [other.compute_devices for other in second] == [devices]
    assert torch.equal(x.grad, weight)


def test_checkpoints_outside_are_left_alone():
    with EagerPlacement({}, {}) as mode, rerun_checkpoints(mode.for_rerun):
        pass
    assert "apply" not in vars(CheckpointFunction)


def test_blocks_of_threads_that_do_not_end_in_order_leave_nothing_behind():
    before, inside, end = patched(), threading.Event(), threading.Event()

    def stay_inside():
        with rerun_checkpoints(placement, [CPU]):
            inside.set()
            end.wait()

    thread = threading.Thread(target=stay_inside)
    with rerun_checkpoints(placement, [CPU]):
        thread.start()
        inside.wait()
    end.set()
    thread.join()
    assert patched() == before


@pytest.mark.parametrize("reentrant", [True, False])
def test_a_checkpoint_of_another_thread_is_left_alone(reentrant):
    placements = []

    def run(value):
        modes = torch.overrides._get_current_function_mode_stack()
        placements.append([mode for mode in modes if isinstance(mode, EagerPlacement)])
        return value.sin()

    def use_checkpoint():
        x = torch.ones(3, requires_grad=True)
        checkpoint(run, x, use_reentrant=reentrant).sum().backward()

    with rerun_checkpoints(placement, [CPU]):
        thread = threading.Thread(target=use_checkpoint)
        thread.start()
        thread.join()
    assert placements == [[], []]
