"""The sweep of the longest-path bound in plain Python: what `cpp/bounds/path_sweep.cpp` follows."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

Seconds = NDArray[np.float64]


def earliest_begins(
    first_edge: NDArray[np.int64],
    parents: NDArray[np.int64],
    tensors: NDArray[np.int64],
    seconds: Seconds,
    min_cost: Seconds,
    scheduled: NDArray[np.uint8],
    transfer_row: NDArray[np.int64],
    transfer: Seconds,
    window: int,
    forbidden_seconds: float,
) -> Seconds:
    """Ops × groups, as the compiled function of this name."""
    sweep = PathSweep()
    sweep.ops, sweep.groups = seconds.shape
    sweep.first_edge, sweep.parents, sweep.tensor = first_edge.tolist(), parents, tensors
    sweep.seconds, sweep.min_cost = seconds, min_cost
    sweep.scheduled, sweep.transfer_row, sweep.transfer = scheduled, transfer_row, transfer
    sweep.window, sweep.forbidden_seconds = window, forbidden_seconds
    sweep.pending_readers = np.bincount(parents, minlength=sweep.ops).tolist()
    sweep.begin = np.zeros((sweep.ops, sweep.groups))
    sweep.earliest = np.zeros(sweep.ops)
    sweep.arrival_rows = {}
    return sweep.earliest_begins()


class PathSweep:
    """One sweep; `longest_path.py` has the proof."""

    def earliest_begins(self) -> Seconds:
        """Op after op: each input by itself, then arrivals and work."""
        groups = range(self.groups)
        links_into = [
            [
                (source_group, int(transfer_row))
                for source_group, transfer_row in enumerate(column)
                if transfer_row >= 0
            ]
            for column in self.transfer_row.T
        ]
        transfer_rows = [transfer_row.tolist() for transfer_row in self.transfer]
        seconds, parents, tensors = (
            self.seconds.tolist(),
            self.parents.tolist(),
            self.tensor.tolist(),
        )
        begins: list[list[float]] = []
        ends: list[list[float]] = []
        for op in range(self.ops):
            op_seconds, edges = seconds[op], slice(self.first_edge[op], self.first_edge[op + 1])
            begin = [0.0] * self.groups
            remote = []
            for parent, tensor in zip(parents[edges], tensors[edges], strict=True):
                end = ends[parent]
                remote_arrival = [
                    min(
                        [
                            end[source_group] + transfer_rows[transfer_row][tensor]
                            for source_group, transfer_row in links
                        ],
                        default=math.inf,
                    )
                    for links in links_into
                ]
                remote.append(remote_arrival)
                for group in groups:
                    arrival = min(remote_arrival[group], end[group])
                    if arrival > begin[group]:
                        begin[group] = arrival
            if self.window and remote:
                remote_arrivals = np.array(remote).T
                begin = self._arrivals(
                    op, parents[edges], remote_arrivals, np.array(begin)
                ).tolist()
            for group in groups:
                if op_seconds[group] >= self.forbidden_seconds:
                    begin[group] = math.inf
            begins.append(begin)
            ends.append(
                [begin_at + duration for begin_at, duration in zip(begin, op_seconds, strict=True)]
            )
            if self.window:
                self.begin[op] = begin
                self.earliest[op] = min(begin)
        return np.array(begins).reshape(self.ops, self.groups)

    def _arrivals(self, op: int, parents: list[int], remote: Seconds, base: Seconds) -> Seconds:
        """The op's earliest begin by group, given that no tensor is there before `base`."""
        window_start = op - self.window if op > self.window else 0
        oldest = min(
            self.arrival_rows[parent][0] if parent in self.arrival_rows else parent
            for parent in parents
        )
        window_start = max(window_start, oldest)
        row = np.full((self.groups, op - window_start), -np.inf)
        scheduled_parents = 0
        for column, parent in enumerate(parents):
            if self.scheduled[parent]:
                scheduled_parents += 1
                remote_arrival = remote[:, column, None]
                if parent in self.arrival_rows:
                    row_start, parent_row = self.arrival_rows[parent]
                    skipped = max(0, window_start - row_start)
                    if skipped < parent_row.shape[1]:
                        window_row = row[
                            :,
                            row_start + skipped - window_start : row_start
                            + parent_row.shape[1]
                            - window_start,
                        ]
                        local_arrival = parent_row[:, skipped:] + self.seconds[parent][:, None]
                        np.maximum(
                            window_row,
                            np.minimum(local_arrival, remote_arrival, out=local_arrival),
                            out=window_row,
                        )
                if parent >= window_start:
                    np.maximum(
                        row[:, parent - window_start],
                        remote_arrival[:, 0],
                        out=row[:, parent - window_start],
                    )
            self.pending_readers[parent] -= 1
            if not self.pending_readers[parent]:
                self.arrival_rows.pop(parent, None)
        if self.pending_readers[op]:
            self.arrival_rows[op] = (window_start, row)
        if scheduled_parents > 1:
            base = np.maximum(base, self._work(window_start + np.flatnonzero(row[0] > -np.inf)))
        for group in np.flatnonzero((row > base[:, None]).any(axis=1)):
            forced = np.flatnonzero(row[group] > base[group])
            forced = forced[np.argsort(-row[group, forced], kind="stable")]
            begin = np.minimum.accumulate(self.begin[window_start + forced, group])
            local_end = np.cumsum(self.seconds[window_start + forced, group]) + begin
            local_end = np.concatenate([[base[group]], np.maximum.accumulate(local_end)])
            arrival = np.concatenate([row[group, forced], [base[group]]])
            base[group] = np.maximum(local_end, arrival).min()
        return base

    def _work(self, ancestors: NDArray[np.int64]) -> float:
        """The earliest end of these ops."""
        begin = self.earliest[ancestors]
        order = np.argsort(-begin, kind="stable")
        ends = begin[order] + np.cumsum(self.min_cost[ancestors[order]])
        return float(ends.max(initial=0.0))
