"""A program in, the seconds of each of its ops in a step on a worker of the host out.

An op that is called again and again alone finds its code, and the parts of its tensors that each
core needs, where the last call left them. In a step other ops come in between: the same op takes a
tenth longer, and a small one half as long again. So where a step is short, it is run as it is. Of a
GPU a whole step tells how much longer ops take in it, all together.
"""

from __future__ import annotations

import math
import time
from dataclasses import replace
from statistics import fmean, median
from typing import TYPE_CHECKING, Any

from placewright.graph import WEIGHT
from placewright.profiling.op_signatures import STORED
from placewright.profiling.timing import (
    Timing,
    summed_up,
    time_replayed,
)
from placewright.runtime.instructions import ENV, write_script
from placewright.runtime.machine import load_torch

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from placewright.graph import Tensor
    from placewright.profiling.sites import Site
    from placewright.runtime.cpu_worker import (
        Done,
        Note,
        Worker,
    )
    from placewright.runtime.instructions import Part
    from placewright.runtime.machine import Machine
    from placewright.runtime.program.program import Program

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


class _TooLongError(Exception):
    """The time is up, and no step is over yet."""


class Steps:
    """A program's steps on a worker, to be run now and again; what they take adds up.

    They are run as a worker of the runtime runs them, which takes time of its own between ops:
    after a large op its code and data are in no near cache, and it takes three times as long as in
    a row of small ones. Others who share a processor come and go, so steps of several moments say
    more than of one.
    """

    def __init__(self, program: Program, site: Site) -> None:
        self.program, self.site = program, site
        self.part = whole_part(program)
        self.turns = [turn.position for turn in self.part.turns]
        self.worker: Worker | None = None
        self.begins: dict[Tensor, Any] = {}
        self.until = math.inf
        self.spans: list[tuple[float, float]] = []
        self.taken: list[list[tuple[float, float]]] = []
        """Seconds before and of each op, step by step."""

    def run(self, seconds: float, most: int = MOST) -> bool:
        """Time some steps; to be called within `site.run`.

        Args:
            seconds: That it may take, about.

        Returns:
            Whether there was time for a few.
        """
        until = time.perf_counter() + seconds
        if self.worker is None:
            self.worker = self._worker()
        for step in range(WARMING + most):
            self.until = until if step < WARMING else math.inf
            try:
                self._step(self.worker)
            except _TooLongError:
                self.worker = None
                return False
            if step >= WARMING:
                ends = [self.spans[0][0], *(end for _, end in self.spans)]
                self.taken.append(
                    [
                        (begin - before, end - begin)
                        for before, (begin, end) in zip(ends, self.spans, strict=False)
                    ]
                )
            if time.perf_counter() > until:
                break
        return step + 1 - WARMING >= FEWEST

    def _worker(self) -> Worker:
        """A worker whose thread is not started: it serves in the thread of who asks."""
        from placewright.runtime.cpu_worker import Job, Worker
        from placewright.runtime.micro_batches import runners_of
        from placewright.runtime.real_devices import Place
        from placewright.runtime.weight_storage import add_views

        program, part, place = self.program, self.part, Place(self.site.name)
        home = _sources(program, self.site)
        self.begins = {tensor: home.pop(tensor) for tensor in part.inputs}
        add_views(program, part, place, home)
        names = [program.graph.ops[position].name for position in self.turns]
        runners = runners_of(program, part, place)
        return Worker(
            Job(0, place, part, home, runners, names, _nowhere, self._over, record=self._record)
        )

    def _step(self, worker: Worker) -> None:
        from placewright.runtime.cpu_worker import Note

        self.spans.clear()
        worker.inbox.put(Note("begin", 0, None, self.begins))
        worker.serve()

    def _record(self, position: int, begin: float, end: float) -> None:
        self.spans.append((begin, end))
        if end > self.until:
            raise _TooLongError

    def _over(self, done: Done) -> None:
        from placewright.runtime.cpu_worker import Note

        if done.failure is not None:
            raise done.failure
        assert self.worker is not None
        self.worker.inbox.put(Note("stop"))

    def timings(self) -> dict[int, Timing]:
        """What each op takes; steps that come after this are counted anew.

        A core that is taken away for a moment delays one op of many, so no op's median shows it,
        and nearly every step's does: all are lengthened until they add up to the median step.
        """
        steps, self.taken = self.taken, []
        found = []
        for several in zip(*steps, strict=True):
            before, own = zip(*several, strict=True)
            found.append(summed_up(own, median(before)))
        whole = median(sum(before + own for before, own in step) for step in steps)
        longer = whole / sum(one.seconds + one.issue for one in found)
        return {
            position: replace(one, seconds=one.seconds * longer, issue=one.issue * longer)
            for position, one in zip(self.turns, found, strict=True)
        }


def step_on_gpu(program: Program, site: Site) -> Timing | None:
    """A step as one CUDA graph; to be called within `site.run`.

    Returns:
        None where it cannot be captured, or there may be no room for it.
    """
    from placewright.runtime.micro_batches import runners_of
    from placewright.runtime.real_devices import Place
    from placewright.runtime.weight_storage import add_views

    torch = load_torch()
    most = sum(sum(op.outputs) for op in program.graph.ops)
    if most > torch.cuda.mem_get_info(site.index)[0] // 2:
        return None
    part = whole_part(program)
    place = Place(site.name, site.device.type, site.index)
    try:
        home = _sources(program, site)
        begins = {tensor: home.pop(tensor) for tensor in part.inputs}
        add_views(program, part, place, home)
        runners = runners_of(program, part, place)

        def step(_: int) -> None:
            env = dict(begins)
            for turn, run in zip(part.turns, runners, strict=True):
                made = run([env[key] if where == ENV else home[key] for where, key in turn.inputs])
                env |= {(turn.position, output): value for output, value in enumerate(made)}
                for tensor in turn.frees:
                    env.pop(tensor, None)

        return time_replayed(torch, site.index, step, 1)
    except Exception:  # out of memory, a sample that an op refuses
        return None


def whole_part(program: Program) -> Part:
    """What a device does in a step that does all of it."""
    graph = program.graph
    return write_script(graph, [0] * len(graph), 1, changes=program.changes).parts[0]


def shared(taken: Mapping[int, Timing], positions: Sequence[int]) -> Timing:
    """One timing of ops that are equal: their mean, so that a step of them stays as long.

    Views of nothing but weights take no turn in a step, and no time.
    """
    several = [taken.get(at, Timing(0.0, 0.0, 0)) for at in positions]
    return Timing(
        fmean(one.seconds for one in several),
        fmean(one.spread for one in several),
        min(one.samples for one in several),
        fmean(one.issue for one in several),
    )


def _nowhere(target: int, note: Note) -> None:
    """There is no other device."""


def _sources(program: Program, site: Site) -> dict[Tensor, Any]:
    """Tensors for all that a step begins with; weights are small, so that no number overflows."""
    from placewright.profiling.sample_inputs import (
        distinct,
        index_limits,
        sample,
    )

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
