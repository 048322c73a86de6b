"""A program and sites in, a cost Table out: every op measured on every device.

Equal ops are measured once: of each kind the heaviest, then those that matter most. What the time
does not allow, or a device cannot run, is worked out from the roofline, times the median of
measured over worked out of its kind; the table says so (`NOT_MEASURED`). To each op comes what the
runtime takes to run it.

Devices are measured one at a time, while the others rest: workers of one host that compute at the
same time share its memory, and are then slower than the table says. If a model's weights exceed the
GPUs, its host is measured while it feeds them (`company`). On a GPU that has the room a whole step
is run as one CUDA graph, and all ops are lengthened or shortened until they add up to it.
"""

from __future__ import annotations

import time
from collections import Counter, defaultdict
from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial
from statistics import median
from typing import TYPE_CHECKING, Any

import numpy as np

from placewright.costs import NOT_MEASURED, Roofline, Table
from placewright.errors import PlacewrightError
from placewright.graph import VIEW, Graph
from placewright.profiling.cache_model import coldness
from placewright.profiling.copy_load import Company, streams
from placewright.profiling.isolated import measure_op
from placewright.profiling.op_signatures import equal_ops
from placewright.profiling.overhead import OVERHEAD, measure_overhead
from placewright.profiling.timing import Timing
from placewright.profiling.timing_cache import Kept
from placewright.profiling.whole_step import (
    FEWEST,
    WARMING,
    Steps,
    may_run,
    shared,
    step_on_gpu,
)
from placewright.runtime.machine import load_torch

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from placewright.cluster import Cluster
    from placewright.profiling.sites import Site
    from placewright.runtime.machine import Machine
    from placewright.runtime.program.program import Program

BUDGET = 60.0
"""Seconds that measuring a graph may take where nobody says."""
SHORTEST, LONGEST = 0.01, 0.15
"""Seconds that one op is given, on one device."""
STEP_SHARE = 4
"""One part in so many of the budget may be taken by whole steps on a host."""
WHOLE = "a whole step of"
"""The name under which it is kept beside the ops' times, with the graph's."""
ATTAINED = Roofline(compute=1.0, memory=1.0)


@dataclass(frozen=True)
class OpProfile:
    """What measuring a graph gave.

    Args:
        different: How many ops differ from one another, times devices.
        measured: How many of them were measured now.
        known: How many had been measured before on this machine.
        failed: Ops that a device could not run, and why.
        overhead: Seconds that the runtime itself takes for each op, by model; the table has them.
    """

    table: Table
    different: int
    measured: int
    known: int
    failed: dict[str, str]
    seconds: float
    overhead: dict[str, float]

    @property
    def worked_out(self) -> int:
        """How many were worked out from those of their kind."""
        return self.different - self.measured - self.known


def profile_ops(
    program: Program,
    machine: Machine,
    cluster: Cluster,
    sites: Sequence[Site],
    budget: float = BUDGET,
    again: bool = False,
    said: Callable[[str, float], None] = lambda text, share: None,
    limits: Mapping[str, int] | None = None,
) -> OpProfile:
    """Measure the ops of a program on every site.

    Args:
        cluster: What the sites can do, to tell which ops matter.
        budget: Seconds that it may take, about.
        again: Measure also what was measured before on this machine.
        said: Told what is being measured, and how much of the budget is used.
        limits: Bytes that may be used, by device, where that is less than it has.
    """
    began = time.monotonic()
    company = company_of(program.graph, cluster, sites, limits or {})
    kept = Kept(machine, {site.model: company.name for site in sites if not site.on_gpu})
    cold = coldness(program.graph, machine.cache)
    equal = equal_ops(program, cold)
    models = {site.model: site for site in reversed(sites)}  # equal hardware is measured once
    estimates = _estimates(program.graph, cluster, list(models.values()))
    found: dict[tuple[str, str], Timing] = {}
    jobs: list[tuple[float, str, str]] = []
    for text, positions in equal.items():
        for column, model in enumerate(models):
            known = None if again else kept.get(model, text)
            if known is not None:
                found[text, model] = known
            else:
                takes = float(estimates[positions[0], column])
                jobs.append((-takes * len(positions), text, model))
    before = len(found)
    failed: dict[str, str] = {}
    share = budget / STEP_SHARE
    short = estimates.sum(axis=0) * (WARMING + FEWEST) <= share
    asked = {model for _, _, model in jobs} if may_run(program, machine) else set()
    wholes: dict[str, Steps] = {}
    for (model, site), may in zip(models.items(), short, strict=True):
        if may and model in asked and not site.on_gpu:
            said(f"steps on {site.name}", 0.0)
            steps = Steps(program, site)
            if _ran(steps, share, company):
                wholes[model] = steps
    jobs = [job for job in jobs if job[2] not in wholes]
    each = min(LONGEST, max(SHORTEST, budget / max(len(jobs), 1)))
    for done, (text, model) in enumerate(_in_order(jobs, program.graph, equal)):
        spent = time.monotonic() - began
        position, site = equal[text][0], models[model]
        takes = float(estimates[position, list(models).index(model)])
        if spent + 3 * takes > budget:
            continue  # a shorter one may still fit
        name = program.graph.ops[position].name
        said(f"{name} on {site.name}", max(spent / budget, done / len(jobs)))
        try:
            with nullcontext() if site.on_gpu else company.kept():
                found[text, model] = site.run(
                    partial(measure_op, program, position, site, each, cold[position])
                )
        except Exception as error:  # no such kernel there, out of memory, a sample it refuses
            failed[f"{name} on {site.name}"] = _line(error)
            continue
        kept.put(model, text, found[text, model])
    for model, steps in wholes.items():
        spent = time.monotonic() - began
        if spent < budget:  # and others who share the processor may have come or gone
            said(f"steps on {models[model].name}", spent / budget)
            _ran(steps, min(share, budget - spent), company)
        taken = steps.timings()
        for text, positions in equal.items():
            if (text, model) not in found:
                found[text, model] = shared(taken, positions)
                kept.put(model, text, found[text, model])
    whole = {
        model: _whole(kept, program, site, again) for model, site in models.items() if site.on_gpu
    }
    if whole:
        from placewright.runtime.cuda.issuer import clear_workspaces

        clear_workspaces()
        load_torch().cuda.empty_cache()
    overhead = {}
    for model, site in models.items():
        try:
            overhead[model] = _overhead(kept, site, cluster, again)
        except (PlacewrightError, RuntimeError) as error:  # the runtime cannot run there
            failed[f"the runtime on {site.name}"], overhead[model] = _line(error), 0.0
    kept.save()
    table = _table(program.graph, equal, models, estimates, found, machine, overhead, whole)
    return OpProfile(
        table,
        len(equal) * len(models),
        len(found) - before,
        before,
        failed,
        time.monotonic() - began,
        overhead,
    )


def company_of(
    graph: Graph, cluster: Cluster, sites: Sequence[Site], limits: Mapping[str, int]
) -> Company:
    """The company that a host's ops have in plans of a graph: none where nothing need stream."""
    return Company.beside(sites) if streams(graph, cluster, limits) else Company(())


def _ran(steps: Steps, seconds: float, company: Company) -> bool:
    """Whether steps could be run with random numbers, and were short enough to time some."""
    try:
        with company.kept():
            return steps.site.run(partial(steps.run, seconds))
    except Exception:  # out of memory, a sample that an op refuses: then ops are timed one by one
        return False


def _in_order(
    jobs: list[tuple[float, str, str]], graph: Graph, equal: dict[str, list[int]]
) -> list[tuple[str, str]]:
    """What to measure: of each kind what matters most, since the rest is worked out from it."""
    first: list[tuple[str, str]] = []
    rest: list[tuple[str, str]] = []
    kinds = set()
    for _, text, model in sorted(jobs):
        kind = graph.ops[equal[text][0]].kind, model
        (rest if kind in kinds else first).append((text, model))
        kinds.add(kind)
    return first + rest


def _line(error: Exception) -> str:
    return str(error).strip().partition("\n")[0] or type(error).__name__


def _overhead(kept: Kept, site: Site, cluster: Cluster, again: bool) -> float:
    """What the runtime takes for an op on a model, measured once a machine."""
    known = None if again else kept.get(site.model, OVERHEAD)
    if known is None:
        known = Timing(measure_overhead(site, cluster), 0.0, 1)
        kept.put(site.model, OVERHEAD, known)
    return known.seconds


def _whole(kept: Kept, program: Program, site: Site, again: bool) -> float:
    """What a whole step takes on a GPU, measured once a machine; zero where that is not known."""
    name = f"{WHOLE} {program.graph.fingerprint}"
    known = None if again else kept.get(site.model, name)
    if known is None:
        known = site.run(partial(step_on_gpu, program, site))
        if known is None:  # not kept: there may be more memory free another time
            return 0.0
        kept.put(site.model, name, known)
    return known.seconds


def _estimates(
    graph: Graph, cluster: Cluster, sites: Sequence[Site]
) -> np.ndarray[Any, np.dtype[np.float64]]:
    """Ops × sites: the roofline's word; views take a start."""
    seconds = ATTAINED.op_seconds(graph, cluster)
    view = np.array([op.kind == VIEW for op in graph.ops])
    columns = []
    for site in sites:
        at = cluster.position[site.name]
        columns.append(np.where(view, cluster.devices[at].launch, seconds[:, at]))
    return np.stack(columns, axis=1)


def _table(
    graph: Graph,
    equal: dict[str, list[int]],
    models: dict[str, Site],
    estimates: np.ndarray[Any, np.dtype[np.float64]],
    found: dict[tuple[str, str], Timing],
    machine: Machine,
    overhead: dict[str, float],
    whole: dict[str, float],
) -> Table:
    shape = (len(graph), len(models))
    seconds, issue, spread = np.zeros(shape), np.zeros(shape), np.zeros(shape)
    for column, model in enumerate(models):
        scale = _Scale(graph, equal, model, estimates[:, column], found)
        for text, positions in equal.items():
            took = found.get((text, model))
            for position in positions:
                if took is not None:
                    seconds[position, column] = took.seconds
                    issue[position, column] = took.issue
                    spread[position, column] = took.spread
                else:
                    seconds[position, column], issue[position, column] = scale(position)
                    spread[position, column] = NOT_MEASURED
        run = [position for positions in equal.values() for position in positions]
        if models[model].on_gpu:
            if whole.get(model) and seconds[run, column].sum() > 0:
                seconds[run, column] *= whole[model] / seconds[run, column].sum()
            issue[run, column] += overhead[model]  # by the host, which both run on
        else:  # in a step that was run it is known op by op
            seconds[run, column] += np.where(
                issue[run, column], issue[run, column], overhead[model]
            )
            issue[:, column] = 0
    names = tuple(op.name for op in graph.ops)
    started = issue if issue.any() else None
    room = np.zeros(len(graph), dtype=np.int64)
    for (text, _), took in found.items():
        room[equal[text]] = np.maximum(room[equal[text]], took.workspace)
    return Table(
        names,
        tuple(models),
        seconds,
        issue=started,
        spread=spread,
        machine=machine.key,
        workspace=room if room.any() else None,
    )


class _Scale:
    """Works out the seconds of ops on one model from those that were measured there."""

    def __init__(
        self,
        graph: Graph,
        equal: dict[str, list[int]],
        model: str,
        estimates: np.ndarray[Any, np.dtype[np.float64]],
        found: dict[tuple[str, str], Timing],
    ) -> None:
        self.graph, self.estimates = graph, estimates
        ratios: dict[str, list[float]] = defaultdict(list)
        issues: dict[str, list[float]] = defaultdict(list)
        for text, positions in equal.items():
            took, kind = found.get((text, model)), graph.ops[positions[0]].kind
            if took is not None and estimates[positions[0]] > 0:
                ratios[kind].append(took.seconds / float(estimates[positions[0]]))
                issues[kind].append(took.issue)
        self.ratio = {kind: median(several) for kind, several in ratios.items()}
        self.issue = {kind: median(several) for kind, several in issues.items()}
        self.usual = median([one for several in ratios.values() for one in several] or [1.0])
        self.started = median([one for several in issues.values() for one in several] or [0.0])

    def __call__(self, position: int) -> tuple[float, float]:
        kind = self.graph.ops[position].kind
        seconds = float(self.estimates[position]) * self.ratio.get(kind, self.usual)
        return seconds, self.issue.get(kind, self.started)


def by_kind(graph: Graph, table: Table) -> dict[str, tuple[int, float]]:
    """How many ops of each kind there are, and their seconds on the table's first column."""
    count: Counter[str] = Counter()
    taken: Counter[str] = Counter()
    for position, op in enumerate(graph.ops):
        count[op.kind] += 1
        taken[op.kind] += table.seconds[position, 0]
    return {kind: (count[kind], float(taken[kind])) for kind, _ in taken.most_common()}
