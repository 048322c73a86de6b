"""Ranks that torchrun has started: their process group, and steps timed on all of them."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

import torch.distributed as dist

from placewright.errors import ExecutionError
from placewright.runtime.distributed.rank_executor import RankExecutor
from placewright.runtime.distributed.rank_weights import (
    drop_weights,
    foreign_names,
    synchronise_weights,
)
from placewright.runtime.distributed.transport import loopback_by_default
from placewright.runtime.meter import time_steps

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import torch

    from placewright.plan import Plan
    from placewright.runtime.distributed.rank_model import RankOptions
    from placewright.runtime.measurement_journal import Measurement
    from placewright.runtime.program.program import Program


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
) -> Measurement | None:
    """Run a plan's steps on all ranks and time them; None on all ranks but rank 0.

    All ranks call it. The weights are rank 0's; each rank holds those of its devices.

    Raises:
        ExecutionError: A rank has failed.
        PlanError: The plan cannot run on several ranks.
    """
    session, host_ranks = options.open_session(plan)
    try:
        foreign = foreign_names(model, plan, host_ranks, session.rank)
        synchronise_weights(session, model, foreign)
        drop_weights(model, foreign)
        executor = RankExecutor(program, model, plan, session, host_ranks, device_map)
        if not session.is_leader:
            session.serve()
            return None
        measurement = time_steps(executor, args, kwargs, steps, warmup_steps, in_flight)
        session.close()
        return measurement
    except Exception as error:
        session.fail(error)
        raise
