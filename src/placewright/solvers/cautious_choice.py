"""Selects a plan cautiously: with slow hand-overs and a slow host in mind.

Next to a GPU, what a host computes is the least certain of all predictions: it shares memory with
the copies to the GPU, and cores with other processes, and those copies are slower than alone.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from placewright import simulator
from placewright.costs import Table
from placewright.device import HOST
from placewright.plan import Plan
from placewright.solvers.best_plans import Candidate
from placewright.solvers.pessimistic_costs import PessimisticCosts
from placewright.units import format_seconds

if TYPE_CHECKING:
    from placewright.problem import Problem
    from placewright.solvers.search import Search

SLOW_HOST = 1.6, 1.15, 1.0, 2e-4
"""Arguments of `scale_host` for a host that may be slower than measured. The last are the seconds
by which it wakes late when a tensor is handed to it or awaited from it.

Where `auto` left a few ops of a step of 3 to 10 ms to the host, each time that host and GPU met
took 0.1 to 0.5 ms longer than predicted (`benchmarks/results/2026-11-runtime.md`).
"""


@dataclass(frozen=True)
class CautiousChoice:
    """Chooses one of the best plans of a search, or a single device, without measuring them.

    Where costs are estimates and the model fits one device, the best plan is taken whose gain
    survives pessimistic costs (`pessimistic_costs.py`). The candidates are the best plans of the
    search, the best of each of its phases, and what is left of them without hosts; so the choice is
    no worse than any method that ran, by the same rule.

    Where op times were measured: next to a GPU a host is the least certain. It is slower than
    measured where it waits and wakes, and it breaks what would be one CUDA graph into many. So a
    plan that leaves ops to the host must gain enough: plans are compared by the geometric mean of
    their time with the host as measured and with a slower host. Without a host next to other
    devices the best plan is taken.
    """

    def __call__(self, search: Search) -> Candidate:
        problem = search.problem
        candidates = sorted(search.top_plans, key=lambda candidate: candidate.key)
        pessimistic = PessimisticCosts.of(problem)
        if pessimistic is not None:
            return _surviving_candidate(pessimistic, search)
        if not host_matters(problem):
            return candidates[0]
        slow_problem = scale_host(problem, *SLOW_HOST)

        def cautious_key(candidate: Candidate) -> tuple[float, float]:
            return candidate.key[0], math.sqrt(
                candidate.key[1] * simulated_key(slow_problem, candidate.plan)[1]
            )

        return min([*candidates, *single_device_candidates(problem)], key=cautious_key)


def _surviving_candidate(costs: PessimisticCosts, search: Search) -> Candidate:
    """The best candidate whose gain survives pessimistic costs."""
    problem = costs.problem
    candidates = all_candidates(search)
    best, survivors = candidates[0], []
    if best.key[0] > 0:  # no plan fits
        return best
    for candidate in candidates:
        if costs.survives(candidate.plan):
            survivors.append(candidate)
            break  # a single device always survives
        variant = costs.without_hosts(candidate.plan)
        if variant is not None and costs.survives(variant):
            survivors.append(plan_candidate(problem, variant, f"{candidate.found_by}, no host"))
    chosen = min(survivors, key=lambda candidate: candidate.key)
    if chosen.key == best.key:
        return chosen
    devices = problem.cluster.devices
    names = [devices[at].name for at in costs.computing_devices(chosen.plan)]
    note = (
        f"a split predicted {chosen.key[1] / best.key[1]:.2f}× faster was not taken: with slow "
        f"hand-overs and a slow host it would take {format_seconds(costs.value(best.plan))}, this "
        f"plan on {', '.join(names)} {format_seconds(costs.value(chosen.plan))}"
    )
    return replace(chosen, note=note)


def host_matters(problem: Problem) -> bool:
    """Whether op times were measured, and a host computes next to other devices."""
    kinds = {device.kind for device in problem.cluster.devices}
    return isinstance(problem.costs, Table) and HOST in kinds and len(kinds) > 1


def scale_host(
    problem: Problem,
    compute_factor: float,
    transfer_factor: float = 1.0,
    memory_share: float = 1.0,
    wake_delay: float = 0.0,
) -> Problem:
    """The problem with a host that is slower or faster than measured.

    Args:
        compute_factor: Times the seconds of the host's ops.
        transfer_factor: Times the seconds of a byte on the host's links.
        memory_share: The share of other devices' memory that may be used.
        wake_delay: Seconds by which a tensor arrives later over the host's links.
    """
    costs, cluster = problem.costs, problem.cluster
    if not isinstance(costs, Table) or (
        compute_factor == transfer_factor == memory_share == 1.0 and not wake_delay
    ):
        return problem
    hosts = [device for device in cluster.devices if device.kind == HOST]
    host_names = {device.name for device in hosts}
    columns = host_names | {device.model for device in hosts} | {HOST}
    column_scale = np.array(
        [compute_factor if column in columns else 1.0 for column in costs.columns]
    )
    links = {
        pair: replace(
            link,
            bandwidth=link.bandwidth / transfer_factor,
            handoff_latency=max(link.latency, link.handoff_latency or 0.0) + wake_delay
            if wake_delay
            else link.handoff_latency,
        )
        if host_names & set(pair)
        else link
        for pair, link in cluster.links.items()
    }
    costs = replace(costs, seconds=costs.seconds * column_scale)
    limits = dict(problem.constraints.limits)
    for device in cluster.devices:
        if memory_share < 1 and device.name not in host_names:
            limits[device.name] = int(memory_share * limits.get(device.name, device.memory))
    constraints = replace(problem.constraints, limits=limits)
    cluster = replace(cluster, links=links)
    return replace(problem, cluster=cluster, costs=costs, constraints=constraints)


def plan_candidate(problem: Problem, plan: Plan, source: str) -> Candidate:
    """A plan with its simulated key; `source` says what made it."""
    return Candidate(simulated_key(problem, plan), source, lambda: plan)


def all_candidates(search: Search) -> list[Candidate]:
    """The best plans of a search and of each of its phases, and single devices; best first."""
    found = [*search.top_plans, *search.best_by_phase.values()]
    distinct = {id(candidate): candidate for candidate in found}.values()
    candidates = [*distinct, *single_device_candidates(search.problem)]
    return sorted(candidates, key=lambda candidate: candidate.key)


def single_device_candidates(problem: Problem) -> list[Candidate]:
    """Everything on one device, for each device that it fits on."""
    candidates = []
    placements = problem.single_device_placements()
    for device, placement in zip(problem.cluster.devices, placements, strict=True):
        plan = Plan.of(problem, placement)
        candidates.append(plan_candidate(problem, plan, f"all on {device.name}"))
    return [candidate for candidate in candidates if candidate.key[0] == 0]


def simulated_key(problem: Problem, plan: Plan) -> tuple[float, float]:
    """Bytes over the memory and the objective of a plan."""
    timeline = simulator.simulate(problem, plan)
    value = timeline.step_time if problem.objective == "step" else timeline.period
    return timeline.overflow, value
