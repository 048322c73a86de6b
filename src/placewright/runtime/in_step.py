"""A program in, the seconds of each of its ops in a step on a worker of the host out.

An op that is called again and again alone finds its code, and the parts of its tensors that each
core needs, where the last call left them. In a step other ops come in between: the same op takes a
tenth longer, and a small one half as long again. So where a step is short, it is run as it is.
"""

from __future__ import annotations

import time
from statistics import fmean
from typing import TYPE_CHECKING, Any

from placewright.graph import WEIGHT
from placewright.runtime.signatures import STORED, in_place
from placewright.runtime.timing import Timing, summed_up

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from placewright.frontends.torch_program import Program
    from placewright.graph import Tensor
    from placewright.runtime.machine import Machine
    from placewright.runtime.sites import Site

FEWEST, MOST = 5, 40
"""Steps that are timed; those before are not."""
WARMING = 2
PART = 8
"""One part in so many of the host's memory may be taken by weights that are made for it."""


def may_run(program: Program, machine: Machine) -> bool:
    """Whether the host has memory for another copy of all that a step begins with."""
    ops = program.graph.ops
    stored = sum(sum(op.outputs) for op in ops if op.kind in STORED)
    return stored <= machine.memory // PART


def time_in_step(program: Program, site: Site, seconds: float) -> dict[int, Timing] | None:
    """Time every op of a program in steps; to be called within `site.run`.

    Args:
        seconds: That it may take, about; None is returned if a few steps take longer.
    """
    until = time.perf_counter() + seconds
    env = _sources(program, site)
    ops = program.graph.ops
    turns = [at for at, op in enumerate(ops) if op.kind not in STORED]
    runners = [program.runner(at, site.device, in_place(program, at)) for at in turns]
    frees = _frees(program, turns)
    taken: dict[int, list[float]] = {at: [] for at in turns}
    for step in range(WARMING + MOST):
        for at, run, dead in zip(turns, runners, frees, strict=True):
            read = [env[tensor] for tensor in ops[at].inputs]
            began = time.perf_counter()
            made = run(read)
            ended = time.perf_counter()
            if step >= WARMING:
                taken[at].append(ended - began)
            elif ended > until:
                return None
            for output, value in enumerate(made):
                env[at, output] = value
            del read, made
            for tensor in dead:
                env.pop(tensor, None)
        if time.perf_counter() > until:
            break
    steps = step + 1 - WARMING
    return {at: summed_up(times) for at, times in taken.items()} if steps >= FEWEST else None


def shared(taken: Mapping[int, Timing], positions: Sequence[int]) -> Timing:
    """One timing of ops that are equal: their mean, so that a step of them stays as long."""
    several = [taken[at] for at in positions]
    return Timing(
        fmean(one.seconds for one in several),
        fmean(one.spread for one in several),
        min(one.samples for one in several),
    )


def _sources(program: Program, site: Site) -> dict[Tensor, Any]:
    """Tensors for all that a step begins with; weights are small, so that no number overflows."""
    from placewright.runtime.samples import distinct, index_limits, sample

    limits: dict[Tensor, int] = {}
    once: set[Tensor] = set()
    for node in program.draft.made_by.values():
        for source, limit in index_limits(node).items():
            for tensor in program.draft.place.get(source) or ():
                if tensor is not None:
                    limits[tensor] = min(limit, limits.get(tensor, limit))
                    once |= {tensor} if distinct(node) else set()
    found = {}
    for at, op in enumerate(program.graph.ops):
        if op.kind in STORED:
            for output in range(len(op.outputs)):
                tensor = at, output
                like = program.values[tensor]
                value = sample(like, site.device, limits.get(tensor), tensor in once)
                if op.kind == WEIGHT and like.dim() > 1 and like.is_floating_point():
                    value.div_(max(1, like.numel() // max(1, like.shape[0])))
                found[tensor] = value
    return found


def _frees(program: Program, turns: Sequence[int]) -> list[list[Tensor]]:
    """What each op is the last to read, or makes for nobody; what a step begins with stays."""
    ops, last = program.graph.ops, {}
    for at in turns:
        for tensor in (*ops[at].inputs, *((at, output) for output in range(len(ops[at].outputs)))):
            if ops[tensor[0]].kind not in STORED:
                last[tensor] = at
    found: dict[int, list[Tensor]] = {at: [] for at in turns}
    for tensor, at in last.items():
        found[at].append(tensor)
    return [found[at] for at in turns]
