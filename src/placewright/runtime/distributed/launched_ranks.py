"""Ranks that torchrun has started: their process group, and steps timed on all of them."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch.distributed as dist

from placewright.errors import ExecutionError, VerifyError
from placewright.frontends.pytorch.values import tensors_in
from placewright.runtime.distributed.rank_executor import RankExecutor
from placewright.runtime.distributed.rank_weights import (
    drop_weights,
    foreign_names,
    synchronise_weights,
)
from placewright.runtime.distributed.transport import loopback_by_default
from placewright.runtime.meter import time_steps
from placewright.runtime.verification import compare_tensors, copy_tensors, expected_tensors

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import torch

    from placewright.plan import Plan
    from placewright.runtime.distributed.rank_model import RankOptions
    from placewright.runtime.measurement_journal import Measurement
    from placewright.runtime.program.program import Program


@dataclass(frozen=True)
class RankRun:
    """What rank 0 knows of a run on several ranks.

    Args:
        difference: The largest difference of an output from the untouched model's, as a share of
            its largest number; None: it was not verified.
    """

    measurement: Measurement
    difference: float | None = None


def is_launched() -> bool:
    """Whether torchrun, or another launcher, has started this process as one of several."""
    size = os.environ.get("WORLD_SIZE", "1")
    return "RANK" in os.environ and size.isdecimal() and int(size) > 1


def join_ranks() -> int:
    """Initialise the process group of a launched process, if there is none yet; its rank.

    Raises:
        ExecutionError: The other ranks cannot be reached.
    """
    if not dist.is_initialized():
        try:
            with loopback_by_default():
                dist.init_process_group("gloo")
        except (RuntimeError, ValueError) as error:
            raise ExecutionError(f"the process group cannot be initialised: {error}") from error
    return dist.get_rank()


def leave_ranks() -> None:
    """End the process group of a launched process."""
    if dist.is_initialized():
        dist.destroy_process_group()


def time_on_ranks(
    program: Program,
    model: torch.nn.Module,
    plan: Plan,
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    steps: int,
    warmup_steps: int,
    in_flight: int,
    options: RankOptions,
    device_map: Mapping[str, str] | None = None,
    verify: bool = False,
) -> RankRun | None:
    """Run a plan's steps on all ranks and time them; None on all ranks but rank 0.

    All ranks call it. The weights are rank 0's; each rank holds those of its devices.

    Args:
        verify: Compare the outputs of one step with those of the model itself on rank 0, first.

    Raises:
        ExecutionError: A rank has failed.
        PlanError: The plan cannot run on several ranks.
        VerifyError: An output differs; on the other ranks an ExecutionError of the same text.
    """
    session, host_ranks = options.open_session(plan)
    try:
        expected = {}
        if verify and session.is_leader:
            expected = expected_tensors(program, model, args, dict(kwargs))
        foreign = foreign_names(model, plan, host_ranks, session.rank)
        synchronise_weights(session, model, foreign)
        drop_weights(model, foreign)
        executor = RankExecutor(program, model, plan, session, host_ranks, device_map)
        if not session.is_leader:
            session.serve()
            return None
        difference = _verify_step(executor, args, kwargs, expected) if verify else None
        measurement = time_steps(executor, args, kwargs, steps, warmup_steps, in_flight)
        session.close()
        return RankRun(measurement, difference)
    except Exception as error:
        session.fail(error)
        raise


def _verify_step(
    executor: RankExecutor,
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    expected: Mapping[str, torch.Tensor],
) -> float:
    """Run a step, and compare its outputs; their largest difference."""
    outputs = tensors_in(executor(*copy_tensors(args), **copy_tensors(kwargs)))
    if len(outputs) != len(expected):
        raise VerifyError(f"the ranks return {len(outputs)} tensors: expected {len(expected)}")
    compared = [
        compare_tensors(name, output, value)
        for output, (name, value) in zip(outputs, expected.items(), strict=True)
    ]
    errors = [error for _, messages in compared for error in messages]
    if errors:
        raise VerifyError(errors[0])
    return max((difference for difference, _ in compared), default=0.0)
