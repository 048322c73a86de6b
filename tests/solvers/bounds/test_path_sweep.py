"""The compiled sweep of the longest-path bound equals plain Python, bit for bit."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from path_sweep_reference import earliest_begins as reference

from placewright import Cluster, Problem
from placewright.solvers.bounds import longest_path
from placewright.solvers.bounds._path_sweep import earliest_begins
from placewright.solvers.bounds.aggregates import Aggregates
from placewright.zoo import load

FORBIDDEN = 1e300


@st.composite
def sweeps(draw) -> tuple:
    """Small graphs with few distinct numbers, so that ties are common."""
    ops, groups = draw(st.integers(1, 24)), draw(st.integers(1, 3))
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    parents = [
        sorted(rng.integers(op, size=rng.integers(0, min(op, 4) + 1)).tolist()) if op else []
        for op in range(ops)
    ]
    edges = sum(map(len, parents))
    seconds = rng.integers(0, 4, size=(ops, groups)) * rng.choice([1.0, 0.1, 1e-3])
    forbidden = rng.random((ops, groups)) < 0.1
    forbidden[:, 0] = False
    tensors = max(1, ops)
    rows = draw(st.integers(1, 3))
    return (
        np.concatenate([[0], np.cumsum([len(each) for each in parents])]).astype(np.int64),
        np.array([parent for each in parents for parent in each], dtype=np.int64),
        rng.integers(tensors, size=edges),
        np.where(forbidden, FORBIDDEN, seconds),
        seconds.min(axis=1) / 2,
        (rng.random(ops) < 0.85).astype(np.uint8),
        rng.integers(-1, rows, size=(groups, groups)),
        rng.integers(0, 3, size=(rows, tensors)) * rng.choice([1.0, 0.1]),
        draw(st.sampled_from([0, 1, 3, 500])),
        FORBIDDEN,
    )


@given(sweeps())
@settings(max_examples=300, deadline=None)
def test_the_compiled_sweep_is_the_reference(arguments: tuple):
    np.testing.assert_array_equal(earliest_begins(*arguments), reference(*arguments))


@pytest.mark.parametrize(
    ("network", "cluster"),
    [
        ("layered:ops=300,weights=true", "2xV100+2xP100+cpu"),
        ("series-parallel:ops=400", "2x(2xP100+cpu)@25GbE"),
        ("transformer:blocks=6,tokens=64", "V100+cpu"),
    ],
)
def test_a_real_graph_has_the_same_sweep_both_ways(network, cluster, monkeypatch):
    aggregates = Aggregates.of(Problem(load(network), Cluster.parse(cluster)))
    prices = np.full(aggregates.groups, 1 / aggregates.device_count.sum())
    compiled = longest_path.earliest_times(aggregates, prices, 40_000_000)
    monkeypatch.setattr(longest_path, "earliest_begins", reference)
    plain = longest_path.earliest_times(aggregates, prices, 40_000_000)
    np.testing.assert_array_equal(compiled.begin, plain.begin)
    np.testing.assert_array_equal(compiled.tail, plain.tail)


def test_arrays_that_do_not_match_are_refused():
    seconds, row = np.ones((2, 1)), np.zeros((1, 1), dtype=np.int64)
    first_edge, parents = np.array([0, 0, 1]), np.array([1])  # the op would be its own parent
    with pytest.raises(ValueError, match="do not match"):
        earliest_begins(
            first_edge,
            parents,
            np.array([0]),
            seconds,
            np.ones(2),
            np.ones(2, dtype=np.uint8),
            row,
            np.ones((1, 1)),
            500,
            FORBIDDEN,
        )
