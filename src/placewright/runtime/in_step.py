"""A program in, the seconds of each of its ops in a step on a worker of the host out.

An op that is called again and again alone finds its code, and the parts of its tensors that each
core needs, where the last call left them. In a step other ops come in between: the same op takes a
tenth longer, and a small one half as long again. So where a step is short, it is run as it is.
"""

from __future__ import annotations

import time
from dataclasses import replace
from statistics import fmean, median
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

FEWEST, MOST = 5, 20
"""Steps that are timed at a time; those before are not."""
WARMING = 2
PART = 8
"""One part in so many of the host's memory may be taken by weights that are made for it."""


def may_run(program: Program, machine: Machine) -> bool:
    """Whether the host has memory for another copy of all that a step begins with."""
    ops = program.graph.ops
    stored = sum(sum(op.outputs) for op in ops if op.kind in STORED)
    return stored <= machine.memory // PART


class Steps:
    """A program's steps on a worker, to be run now and again; what they take adds up.

    Others who share a processor come and go, so steps of several moments say more than of one.
    """

    def __init__(self, program: Program, site: Site) -> None:
        self.program, self.site = program, site
        ops = program.graph.ops
        self.turns = [at for at, op in enumerate(ops) if op.kind not in STORED]
        self.runners: list[Any] = []
        self.frees = _frees(program, self.turns)
        self.env: dict[Tensor, Any] = {}
        self.taken: list[list[float]] = []
        """Seconds of each op, step by step."""

    def run(self, seconds: float, most: int = MOST) -> bool:
        """Time some steps; to be called within `site.run`.

        Args:
            seconds: That it may take, about.

        Returns:
            Whether there was time for a few.
        """
        until = time.perf_counter() + seconds
        if not self.env:
            self.env = _sources(self.program, self.site)
            self.runners = [
                self.program.runner(at, self.site.device, in_place(self.program, at))
                for at in self.turns
            ]
        for step in range(WARMING + most):
            if not self._step(step >= WARMING, until):
                return False
            if time.perf_counter() > until:
                break
        return step + 1 - WARMING >= FEWEST

    def _step(self, timed: bool, until: float) -> bool:
        """One step; false if it is not timed and takes too long."""
        ops, env, taken = self.program.graph.ops, self.env, []
        for at, run, dead in zip(self.turns, self.runners, self.frees, strict=True):
            read = [env[tensor] for tensor in ops[at].inputs]
            began = time.perf_counter()
            made = run(read)
            ended = time.perf_counter()
            taken.append(ended - began)
            if not timed and ended > until:
                return False
            for output, value in enumerate(made):
                env[at, output] = value
            del read, made
            for tensor in dead:
                env.pop(tensor, None)
        if timed:
            self.taken.append(taken)
        return True

    def timings(self) -> dict[int, Timing]:
        """What each op takes; steps that come after this are counted anew.

        A core that is taken away for a moment delays one op of many, so no op's median shows it,
        and nearly every step's does: all are lengthened until they add up to the median step.
        """
        steps, self.taken = self.taken, []
        found = [summed_up(times) for times in zip(*steps, strict=True)]
        longer = median(map(sum, steps)) / sum(one.seconds for one in found)
        found = [replace(one, seconds=one.seconds * longer) for one in found]
        return dict(zip(self.turns, found, strict=True))


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
