"""Ranks that torchrun has started: their process group, and steps timed on all of them."""

from __future__ import annotations

import os
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import torch.distributed as dist

from placewright.errors import ExecutionError
from placewright.runtime.distributed.control_channel import MessageKind
from placewright.runtime.distributed.rank_executor import RankExecutor
from placewright.runtime.distributed.rank_verification import StepReference
from placewright.runtime.distributed.rank_weights import (
    drop_weights,
    foreign_names,
    synchronise_weights,
)
from placewright.runtime.distributed.transport import loopback_by_default
from placewright.runtime.distributed.weight_gather import send_weights
from placewright.runtime.meter import time_steps
from placewright.runtime.verification import SEED

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
        difference: The largest difference of an output or gradient from the untouched model's, or
            of a weight from its own optimizer's, as a share of its largest number; None: it was not
            verified.
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
        verify: Compare one step with the model itself on rank 0, first: its outputs, or its loss,
            gradients and updated weights.

    Raises:
        ExecutionError: A rank has failed.
        PlanError: The plan cannot run on several ranks.
        VerifyError: Something differs; on the other ranks an ExecutionError of the same text.
    """
    session, host_ranks = options.open_session(plan)
    try:
        reference = None
        if verify and session.is_leader:
            reference = StepReference(program, model, args, kwargs)
        foreign = foreign_names(model, plan, host_ranks, session.rank)
        synchronise_weights(session, model, foreign)
        drop_weights(model, foreign)
        session.handlers[MessageKind.GATHER] = partial(send_weights, session, model)
        difference = None
        if verify:
            executor = RankExecutor(
                program,
                model,
                plan,
                session,
                host_ranks,
                device_map,
                keep_tensors=[each for parts in program.gradients.values() for each in parts],
                seed=SEED,
                cuda_graphs=False,
            )
            if reference is not None:
                difference = reference.compare(executor, model, host_ranks)
                executor.close()
            else:
                number = executor.graph
                session.serve(lambda: number not in session.executors)
        executor = RankExecutor(program, model, plan, session, host_ranks, device_map)
        if not session.is_leader:
            session.serve()
            return None
        measurement = time_steps(executor, args, kwargs, steps, warmup_steps, in_flight)
        session.close()
        return RankRun(measurement, difference)
    except Exception as error:
        session.fail(error)
        raise
