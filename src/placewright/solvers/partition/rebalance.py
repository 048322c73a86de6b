"""Rebalancing: moves groups off devices that are over capacity, at the least cost per byte.

The cost of a move is seconds of work and of transfers, per byte that it frees.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from placewright.solvers.balanced import folded_positions
from placewright.solvers.partition.affinity import Affinity, link_seconds
from placewright.solvers.partition.movable_groups import (
    Flags,
    Ints,
    MovableGroups,
    Seconds,
)
from placewright.solvers.partition.runs import RunCosts

if TYPE_CHECKING:
    from placewright.timeline import Timeline

_MOVES_PER_DEVICE = 4  # attempts per device in a round, for each device of the cluster
_SEARCH_BUDGET = 15_000_000  # runs evaluated, in all rounds: some seconds
_RUN_FRACTIONS = (1.0, 0.25)  # of the bytes to be freed, in one run
_MAX_FILL = 0.9  # share of the free bytes that a run may take, where these are fewer

_DeviceMove = tuple[
    NDArray[np.int64], int, NDArray[np.int64]
]  # groups that go, the target, groups that come back
_SingleMoves = tuple[
    Ints, int, Seconds
]  # groups that may go alone, the target, and their cost per byte


@dataclass(eq=False)
class Rebalancing:
    """Where the groups are, and where they may still go."""

    groups: MovableGroups
    affinity: Affinity
    link_cost: (
        Seconds  # devices × devices: the cost of an edge, relative to a link of average speed
    )
    orders: list[Ints]  # orders of the groups
    device_of: Ints  # groups: the device of each
    may_move: Flags  # groups × devices: where each may still go; it never goes back
    search_budget: int = _SEARCH_BUDGET  # runs that may still be evaluated

    @classmethod
    def of(cls, groups: MovableGroups) -> Rebalancing:
        problem = groups.problem
        devices = problem.arrays.devices
        links = link_seconds(problem)
        mean = links.sum() / max(1, devices * (devices - 1))
        positions = [groups.leader]
        if any(op.phase != "forward" for op in problem.graph.ops):
            positions.append(folded_positions(problem)[groups.leader])
        may_move = groups.allowed.copy()
        may_move[np.arange(len(groups)), groups.initial_device] = False
        return cls(
            groups,
            Affinity.between_groups(problem, groups.group_of, devices),
            links / mean if mean > 0 else 1.0 - np.eye(devices),
            [np.argsort(position, kind="stable") for position in positions],
            groups.initial_device.copy(),
            may_move,
        )

    def relieve(self, timeline: Timeline, memory_margin: NDArray[np.int64]) -> Flags:
        """Move groups off the overfull devices; which devices lost or got groups.

        Args:
            memory_margin: Bytes of each device to leave free.
        """
        held_bytes = self.groups.held_bytes(timeline)
        free_bytes = (timeline.capacity - timeline.peak - memory_margin).astype(np.float64)
        is_over = timeline.peak > timeline.capacity
        is_changed = np.zeros(len(free_bytes), dtype=bool)
        for _ in range(_MOVES_PER_DEVICE * len(free_bytes)):
            source = int(np.where(is_over, free_bytes, np.inf).argmin())
            if not is_over[source] or free_bytes[source] >= 0 or self.search_budget <= 0:
                break
            move_search = _MoveSearch(self, source, held_bytes, free_bytes)
            moves = move_search.best_run() or move_search.best_swap() or move_search.best_push()
            is_over[source] = bool(moves)  # else there is no move
            for outgoing, target, incoming in moves:
                self._move(outgoing, source, target)
                self._move(incoming, target, source)
                freed_bytes = float(held_bytes[outgoing].sum() - held_bytes[incoming].sum())
                free_bytes[source] += freed_bytes
                free_bytes[target] -= freed_bytes
                is_changed[[source, target]] = True
                is_over[target] |= free_bytes[target] < 0
        return is_changed

    def _move(self, groups: Ints, source: int, target: int) -> None:
        self.may_move[groups, source] = self.may_move[groups, target] = False
        self.device_of[groups] = target


class _MoveSearch:
    """The candidate moves off one overfull device."""

    def __init__(
        self, state: Rebalancing, source: int, held_bytes: Seconds, free_bytes: Seconds
    ) -> None:
        self.state, self.source, self.held_bytes, self.free_bytes = (
            state,
            source,
            held_bytes,
            free_bytes,
        )
        self.bytes_needed = -float(free_bytes[source])
        self.targets = [device for device in range(len(free_bytes)) if device != source]
        self.affinity_to = state.affinity.seconds_by_device(
            state.device_of, len(state.device_of), len(free_bytes)
        )
        self.pipelined = state.groups.problem.objective == "period"
        seconds = state.groups.seconds[np.arange(len(state.device_of)), state.device_of]
        self.loads = np.bincount(state.device_of, weights=seconds, minlength=len(free_bytes))

    def best_run(self) -> list[_DeviceMove]:
        """The run of the smallest cost per byte, or single groups that cost less."""
        state, affinity = self.state, self.state.affinity
        at_source = state.device_of == self.source
        is_inner = at_source[affinity.group] & at_source[affinity.other_group]
        inner_edges = (
            affinity.group[is_inner],
            affinity.other_group[is_inner],
            affinity.seconds[is_inner],
        )
        best: list[_DeviceMove] = []
        singles: list[_SingleMoves] = []
        best_score = np.inf
        for order in state.orders:
            for target in self.targets:
                groups = order[at_source[order] & state.may_move[order, target]]
                free_bytes = float(self.free_bytes[target])
                if not len(groups) or free_bytes <= 0:
                    continue
                costs = self._run_costs(groups, target, *inner_edges)
                state.search_budget -= len(groups) * (len(_RUN_FRACTIONS) + 1)
                for fraction in _RUN_FRACTIONS:
                    amount = min(self.bytes_needed * fraction, _MAX_FILL * free_bytes)
                    end, score = costs.scores(self.bytes_needed, amount, free_bytes)
                    begin = int(score.argmin())
                    if score[begin] < best_score:
                        run = groups[begin : end[begin]]
                        best, best_score = [(run, target, groups[:0])], float(score[begin])
                if order is state.orders[0]:
                    singles.append(
                        (groups, target, costs.scores(self.bytes_needed, 0.0, free_bytes)[1])
                    )
        return self._single_moves(singles, best_score) or best

    def _run_costs(
        self, groups: Ints, target: int, node: Ints, neighbour: Ints, seconds: Seconds
    ) -> RunCosts:
        link_cost, position = self.state.link_cost, np.full(len(self.state.device_of), -1)
        position[groups] = np.arange(len(groups))
        low, high = (
            np.minimum(position[node], position[neighbour]),
            np.maximum(position[node], position[neighbour]),
        )
        is_inside = low >= 0
        return RunCosts(
            self.held_bytes[groups],
            self.affinity_to[groups] @ (link_cost[target] - link_cost[self.source]),
            self._extra_work(groups, self.source, target),
            self._spare_work(target),
            low[is_inside],
            high[is_inside],
            seconds[is_inside] * link_cost[target, self.source],
        )

    def _single_moves(self, singles: list[_SingleMoves], best_score: float) -> list[_DeviceMove]:
        """Groups that cost less per byte than `best_score`, best first, until enough is freed."""
        better = [
            (groups[scores < best_score], target, scores[scores < best_score])
            for groups, target, scores in singles
        ]
        if not any(len(groups) for groups, _, _ in better):
            return []
        group_at = np.concatenate([groups for groups, _, _ in better])
        target_at = np.concatenate([np.full(len(groups), target) for groups, target, _ in better])
        order = np.argsort(np.concatenate([score for _, _, score in better]), kind="stable")
        spare_work = [self._spare_work(target) for target in range(len(self.free_bytes))]
        free_bytes, added_work, bytes_needed = (
            self.free_bytes.tolist(),
            [0.0] * len(spare_work),
            self.bytes_needed,
        )
        chosen: dict[int, int] = {}
        for at in order.tolist():
            group, target = int(group_at[at]), int(target_at[at])
            size = float(self.held_bytes[group])
            work_limit = spare_work[target]
            seconds = float(self.state.groups.seconds[group, target])
            is_busy = (
                work_limit is not None
                and added_work[target] > 0
                and added_work[target] + seconds > work_limit
            )
            if group in chosen or size > free_bytes[target] or is_busy:
                continue
            chosen[group] = target
            free_bytes[target] -= size
            added_work[target] += seconds
            bytes_needed -= size
            if bytes_needed <= 0:
                break
        return [
            (np.array([group for group in chosen if chosen[group] == target]), target, group_at[:0])
            for target in dict.fromkeys(chosen.values())
        ]

    def best_swap(self) -> list[_DeviceMove]:
        """A group that goes and one that comes back, where no device has enough free bytes."""
        state, held_bytes = self.state, self.held_bytes
        best: list[_DeviceMove] = []
        best_score = np.inf
        for target in self.targets:
            outgoing = np.flatnonzero((state.device_of == self.source) & state.may_move[:, target])
            incoming = np.flatnonzero((state.device_of == target) & state.may_move[:, self.source])
            if not len(outgoing) or not len(incoming):
                continue
            incoming = incoming[np.argsort(held_bytes[incoming], kind="stable")]
            # The smallest that frees enough there.
            index = np.searchsorted(
                held_bytes[incoming], held_bytes[outgoing] - self.free_bytes[target], side="left"
            )
            chosen = incoming[np.minimum(index, len(incoming) - 1)]
            freed_bytes = held_bytes[outgoing] - held_bytes[chosen]
            link_difference = state.link_cost[target] - state.link_cost[self.source]
            cost = (
                self.affinity_to[outgoing] @ link_difference
                - self.affinity_to[chosen] @ link_difference
            )
            cost += self._extra_work(outgoing, self.source, target)
            cost += self._extra_work(chosen, target, self.source)
            is_valid = (index < len(incoming)) & (freed_bytes > 0)
            score = np.where(is_valid, cost, np.inf) / np.where(
                is_valid, np.minimum(freed_bytes, self.bytes_needed), 1.0
            )
            best_index = int(score.argmin())
            if score[best_index] < best_score:
                best, best_score = (
                    [(outgoing[[best_index]], target, chosen[[best_index]])],
                    float(score[best_index]),
                )
        return best

    def best_push(self) -> list[_DeviceMove]:
        """A group that overfills another device, from which smaller groups then move.

        The last resort where free memory is too fragmented: the overflow may rise for a while, but
        must fit into the free bytes of all devices together.
        """
        state, free_bytes = self.state, np.maximum(self.free_bytes, 0.0)
        best: list[_DeviceMove] = []
        best_score = np.inf
        for target in self.targets:
            outgoing = np.flatnonzero((state.device_of == self.source) & state.may_move[:, target])
            size = self.held_bytes[outgoing]
            excess = np.maximum(0.0, size - free_bytes[target])
            spare = (
                free_bytes.sum() - free_bytes[target] + np.maximum(0.0, size - self.bytes_needed)
            )
            fits = (size <= state.groups.problem.arrays.capacity[target]) & (excess < spare)
            score = np.where(fits, excess + np.maximum(0.0, self.bytes_needed - size), np.inf)
            if score.min(initial=np.inf) < best_score:
                best_index = int(score.argmin())
                best, best_score = (
                    [(outgoing[[best_index]], target, outgoing[:0])],
                    float(score[best_index]),
                )
        return best

    def _extra_work(self, groups: Ints, source: int, target: int) -> Seconds:
        """Additional seconds of work; for the period, all work that comes to the target."""
        seconds = self.state.groups.seconds[groups]
        return np.asarray(seconds[:, target] - (0.0 if self.pipelined else seconds[:, source]))

    def _spare_work(self, target: int) -> float | None:
        """For the period, the work that a device can take without becoming the busiest."""
        return float(self.loads.max() - self.loads[target]) if self.pipelined else None
