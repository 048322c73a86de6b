"""A batch of plans as rows of arrays: what kernels evaluate and searches change."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from placewright.plan import NO_STAGING, Plan

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from placewright.problem import Problem

_Number = TypeVar("_Number", np.int32, np.int64, np.float64)


@dataclass(frozen=True, eq=False)
class PlanBatch:
    """Plans side by side, one per row; None stands for a part that no plan of the batch has.

    Args:
        placement: Plans × ops: the device of each op.
        priority: Plans × ops; None means the graph's order.
        staging: Plans × devices: bytes of each staging buffer, -1 for none.
        fusion: Plans × ops: groups as in a plan.
    """

    placement: NDArray[np.int32]
    priority: NDArray[np.float64] | None = None
    staging: NDArray[np.int64] | None = None
    fusion: NDArray[np.int32] | None = None

    @classmethod
    def of(
        cls, problem: Problem, plans: Sequence[Plan], with_priorities: bool, with_staging: bool
    ) -> PlanBatch:
        """Plans as rows, without their fused groups.

        Args:
            with_priorities: Keep priorities; a plan that has none gets the graph's order.
            with_staging: Keep staging buffers; a plan that has none gets a row of -1.
        """
        a = problem.arrays
        graph_order = np.arange(a.ops, dtype=np.float64)
        no_staging = np.full(a.devices, NO_STAGING, dtype=np.int64)
        return cls(
            np.stack([plan.placement for plan in plans]).astype(np.int32),
            np.stack([graph_order if p.priority is None else p.priority for p in plans])
            if with_priorities
            else None,
            np.stack([no_staging if p.staging is None else p.staging for p in plans])
            if with_staging
            else None,
        )

    @classmethod
    def repeat(cls, plan: Plan, count: int = 1) -> PlanBatch:
        """One plan in `count` rows, which may be changed."""
        rows = np.zeros(count, dtype=np.intp)
        return cls(
            plan.placement[None][rows],
            _select(_as_row(plan.priority), rows),
            _select(_as_row(plan.staging), rows),
            _select(_as_row(plan.fusion), rows),
        )

    def __len__(self) -> int:
        return len(self.placement)

    def __reduce__(self) -> tuple[Any, ...]:
        """Batches go to workers in few bytes: small numbers of devices, and equal rows once."""
        columns = (self.placement, self.priority, self.staging, self.fusion)
        return _unpack_rows, (len(self), *map(_pack_rows, columns))

    def __getitem__(self, rows: slice | Sequence[int] | NDArray[Any]) -> PlanBatch:
        """Some of the plans; a list or an array of rows copies them."""
        return PlanBatch(
            self.placement[rows],
            _select(self.priority, rows),
            _select(self.staging, rows),
            _select(self.fusion, rows),
        )

    def plan(self, problem: Problem, row: int) -> Plan:
        """One row as a checked plan."""
        return Plan.of(
            problem,
            self.placement[row],
            _select(self.priority, row),
            _select(self.fusion, row),
            _select(self.staging, row),
        )

    def replace_rows(self, other: PlanBatch, rows: Sequence[int]) -> PlanBatch:
        """The same plans, but some rows from another batch that has the same parts."""
        return PlanBatch(
            _merge(self.placement, other.placement, rows),
            _merge_optional(self.priority, other.priority, rows),
            _merge_optional(self.staging, other.staging, rows),
            _merge_optional(self.fusion, other.fusion, rows),
        )


def _pack_rows(values: NDArray[Any] | None) -> tuple[NDArray[Any], str] | None:
    """Rows in the smallest type that holds them, one if all are equal; and their own type."""
    if values is None:
        return None
    rows = values
    if len(rows) > 1 and np.array_equal(rows[0], rows[-1]) and (rows == rows[0]).all():
        rows = rows[:1]
    packed: NDArray[Any] = rows
    if rows.dtype == np.int32 and rows.size:
        largest = rows.view(np.uint32).max()  # one pass: negative numbers are large ones
        for small in (np.uint8, np.uint16):
            if largest <= np.iinfo(small).max:
                packed = rows.astype(small)
                break
    return packed, values.dtype.str


def _unpack_rows(count: int, *columns: tuple[NDArray[Any], str] | None) -> PlanBatch:
    rows = [
        None
        if column is None
        else np.ascontiguousarray(
            np.broadcast_to(column[0], (count, column[0].shape[1])), dtype=column[1]
        )
        for column in columns
    ]
    placement, priority, staging, fusion = rows
    assert placement is not None
    return PlanBatch(placement, priority, staging, fusion)


def _as_row(values: NDArray[_Number] | None) -> NDArray[_Number] | None:
    return None if values is None else values[None]


def _select(values: NDArray[_Number] | None, rows: Any) -> NDArray[_Number] | None:
    return None if values is None else values[rows]


def _merge(
    mine: NDArray[_Number], theirs: NDArray[_Number], rows: Sequence[int]
) -> NDArray[_Number]:
    merged = mine.copy()
    merged[rows] = theirs[rows]
    return merged


def _merge_optional(
    mine: NDArray[_Number] | None, theirs: NDArray[_Number] | None, rows: Sequence[int]
) -> NDArray[_Number] | None:
    return None if mine is None or theirs is None else _merge(mine, theirs, rows)
