"""Pessimistic costs: does a split plan still gain where hand-overs and hosts are slow?

Estimates know neither what it takes to hand a tensor from one thread to another nor that a host
wakes late. Where a model fits one device, a split that gains a little by an estimate therefore
loses on a real machine: plans of `auto` for such models ran at 0.38 to 0.81 of the predicted speed
(`benchmarks/results/2026-11-runtime.md`). So a plan that uses several devices has to be faster than
each single device also by costs that are against it; and one that leaves ops to a host has to be
faster than the same plan with these ops on the devices beside it.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from placewright import simulator
from placewright.costs import Roofline
from placewright.device import HOST
from placewright.plan import Plan
from placewright.transforms.bundles import accelerators

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from placewright.cluster import Cluster
    from placewright.device import Link
    from placewright.problem import Problem
    from placewright.result import Result

HOST_SLOWDOWN = 3.0
"""Times the seconds of a host's ops: frameworks take microseconds to start one, and a host that
feeds a GPU computes with the cores and the memory bandwidth that are left."""
HOST_TRANSFER_SLOWDOWN, TRANSFER_SLOWDOWN = 1.5, 1.15
"""Times the seconds of a byte: from and to a host, whose activations are in pageable memory, and
between other devices."""
HOST_DELAY, DELAY = 2e-4, 5e-5
"""Seconds by which a tensor arrives later from or at a host, and between other devices. Where host
and GPU met, steps took 0.1 to 0.5 ms longer than predicted each time."""


@dataclass(frozen=True, eq=False)
class PessimisticCosts:
    """Evaluates plans of one problem by costs that are against a split."""

    problem: Problem
    _values: dict[Plan, float] = field(default_factory=dict)

    @classmethod
    def of(cls, problem: Problem) -> PessimisticCosts | None:
        """For a problem with estimated costs whose model fits one device; None for others.

        A model that fits a host alone, but no device beside it, has to be split.
        """
        if not isinstance(problem.costs, Roofline) or len(problem.cluster) < 2:
            return None
        costs = cls(problem)
        return costs if np.isin(costs.fitting_devices, accelerators(problem)).any() else None

    @cached_property
    def fitting_devices(self) -> NDArray[np.int64]:
        """The devices on which the whole model fits."""
        placements = self.problem.single_device_placements()
        verdict = simulator.judge(self.problem, placements)
        return np.flatnonzero(verdict.overflow == 0)

    @cached_property
    def slow_problem(self) -> Problem:
        """The problem with slow hand-overs and slow hosts."""
        return replace(self.problem, cluster=_slow_cluster(self.problem.cluster))

    @cached_property
    def single_device_value(self) -> float:
        """The objective of the best single device by pessimistic costs."""
        placements = self.problem.single_device_placements()[self.fitting_devices]
        return float(simulator.judge(self.slow_problem, placements).value.min())

    def value(self, plan: Plan) -> float:
        """The objective of a plan by pessimistic costs."""
        if plan not in self._values:
            timeline = simulator.simulate(self.slow_problem, plan)
            is_step = self.problem.objective == "step"
            self._values[plan] = timeline.step_time if is_step else timeline.period
        return self._values[plan]

    def survives(self, plan: Plan) -> bool:
        """Whether a plan uses one device, or gains by pessimistic costs too."""
        if len(self.computing_devices(plan)) < 2:
            return True
        if not self.value(plan) < self.single_device_value:
            return False
        variant = self.without_hosts(plan)
        return variant is None or self.value(plan) < self.value(variant)

    def rank(self, result: Result) -> tuple[float, ...]:
        """A key by which results are compared: those whose gain survives come first."""
        return result.overflow, not self.survives(result.plan), result.objective_value

    def computing_devices(self, plan: Plan) -> NDArray[np.int32]:
        """The devices that run ops by choice; one that only holds weights or inputs is none."""
        a = self.problem.arrays
        return np.unique(plan.placement[a.scheduled & (a.allowed.sum(axis=1) > 1)])

    def without_hosts(self, plan: Plan) -> Plan | None:
        """The plan with the hosts' ops on the devices that they exchange most bytes with.

        None where no op can be moved, where the plan computes on hosts alone, where ops are fused
        or where the result does not fit.
        """
        a = self.problem.arrays
        is_moved = a.is_host[plan.placement] & a.scheduled
        if plan.fusion is not None or not is_moved.any() or is_moved[a.scheduled].all():
            return None
        placement = plan.placement.copy()
        targets = accelerators(self.problem)
        is_movable = a.is_host[placement] & a.allowed[:, targets].any(axis=1)
        members = _members_by_leader(a.leader, is_moved & is_movable, is_movable)
        for leader, device in self._neighbour_devices(placement, members, targets).items():
            placement[members[leader]] = device
        if (placement == plan.placement).all():
            return None
        variant = Plan.of(self.problem, placement, plan.priority, None, plan.staging)
        return variant if simulator.simulate(self.problem, variant).fits else None

    def _neighbour_devices(
        self,
        placement: NDArray[np.int32],
        members: dict[int, NDArray[np.int64]],
        targets: NDArray[np.int64],
    ) -> dict[int, int]:
        """The device of each group of ops that moves: the one that most of its bytes are from.

        Groups between others that move take the device of those before them, in graph order.
        """
        a = self.problem.arrays
        home = {int(op): leader for leader, group in members.items() for op in group}
        votes = {leader: np.zeros(a.devices) for leader in members}
        links: dict[int, list[tuple[int, float]]] = {leader: [] for leader in members}
        for reader, tensor in zip(a.reader.tolist(), a.inputs.tolist(), strict=True):
            source, size = int(a.producer[tensor]), float(a.sizes[tensor]) + 1.0
            for mine, other in ((reader, source), (source, reader)):
                leader = home.get(mine)
                if leader is None or home.get(other) == leader:
                    continue
                if other in home:
                    links[leader].append((home[other], size))
                elif a.scheduled[other]:
                    votes[leader][placement[other]] += size
        chosen: dict[int, int] = {}
        default = int(targets[0])
        for leader in sorted(members):
            options = [
                int(device) for device in targets if a.allowed[members[leader], device].all()
            ]
            if not options:
                continue
            weight = votes[leader].copy()
            for other, size in links[leader]:
                if other in chosen:
                    weight[chosen[other]] += size
            best = max(options, key=lambda device: weight[device])
            chosen[leader] = best if weight[best] > 0 or default not in options else default
        return chosen


def _members_by_leader(
    leader: NDArray[np.int32], is_moved: NDArray[np.bool_], is_movable: NDArray[np.bool_]
) -> dict[int, NDArray[np.int64]]:
    """Ops that move together, by their leader: units, and weights beside their readers."""
    movable = np.flatnonzero(is_movable)
    return {int(each): movable[leader[movable] == each] for each in np.unique(leader[is_moved])}


def _slow_cluster(cluster: Cluster) -> Cluster:
    hosts = {device.name for device in cluster.devices if device.kind == HOST}
    devices = [
        replace(
            device,
            rates={dtype: rate / HOST_SLOWDOWN for dtype, rate in device.rates.items()},
            memory_bandwidth=device.memory_bandwidth / HOST_SLOWDOWN,
            launch_overhead=device.launch_overhead * HOST_SLOWDOWN,
        )
        if device.name in hosts and len(hosts) < len(cluster)
        else device
        for device in cluster.devices
    ]
    links = {
        pair: _slow_link(link, bool(hosts & set(pair))) for pair, link in cluster.links.items()
    }
    return replace(cluster, devices=tuple(devices), links=links)


def _slow_link(link: Link, at_host: bool) -> Link:
    slowdown = HOST_TRANSFER_SLOWDOWN if at_host else TRANSFER_SLOWDOWN
    pageable = link.pageable_bandwidth
    return replace(
        link,
        bandwidth=link.bandwidth / slowdown,
        pageable_bandwidth=None if pageable is None else pageable / slowdown,
        handoff_latency=max(link.latency, link.handoff_latency or 0.0)
        + (HOST_DELAY if at_host else DELAY),
    )
