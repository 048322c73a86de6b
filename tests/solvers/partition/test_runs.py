"""Stretches: the harm of moving each is what adding it up one by one gives."""

from __future__ import annotations

import numpy as np
import pytest

from placewright.solvers.partition.runs import RunCosts


def made(seed: int, count: int, slack: float | None) -> RunCosts:
    rng = np.random.default_rng(seed)
    ends = rng.integers(0, count, (3 * count, 2))
    ends = ends[ends[:, 0] != ends[:, 1]]
    return RunCosts(
        held_bytes=rng.integers(0, 6, count).astype(float),
        cut_seconds=rng.normal(size=count),
        work_seconds=rng.normal(size=count),
        spare_work=slack,
        first_end=ends.min(axis=1),
        last_end=ends.max(axis=1),
        edge_seconds=rng.random(len(ends)),
    )


@pytest.mark.parametrize("slack", [None, 0.5])
@pytest.mark.parametrize("amount", [0.0, 4.0, 15.0])
@pytest.mark.parametrize("seed", range(5))
def test_scores_are_those_of_adding_up(seed: int, amount: float, slack: float | None) -> None:
    line, need, room = made(seed, 25, slack), 12.0, 18.0
    ends, scores = line.scores(need, amount, room)
    for first, (last, score) in enumerate(zip(ends.tolist(), scores.tolist(), strict=True)):
        held = line.held_bytes[first:last].sum()
        # The shortest that holds the amount, or the piece alone; there may be none.
        assert last == first + 1 or line.held_bytes[first : last - 1].sum() < amount
        if held < amount or held == 0 or held > room:
            assert score == np.inf
            continue
        inside = (line.first_end >= first) & (line.last_end < last)
        more = line.work_seconds[first:last].sum()
        harm = line.cut_seconds[first:last].sum() - 2 * line.edge_seconds[inside].sum()
        harm += more if slack is None else max(0.0, more - slack)
        useful = min(held, need)
        expected = harm / useful if harm > 0 else harm * useful / need**2
        assert score == pytest.approx(expected)
