"""Reachability: ancestors in any directed graph."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from placewright.scheduling.reachability import ancestors

torch = pytest.importorskip("torch")


@settings(max_examples=50, deadline=None)
@given(st.data())
def test_ancestors_are_what_powers_of_the_adjacency_reach_circles_included(data):
    count = data.draw(st.integers(1, 9))
    pairs = data.draw(st.sets(st.tuples(*[st.integers(0, count - 1)] * 2)))
    distinct = sorted((a, b) for a, b in pairs if a != b)
    edges = np.array(distinct, dtype=np.int64).reshape(-1, 2)
    step = np.zeros((count, count), dtype=int)
    step[edges[:, 1], edges[:, 0]] = 1
    expected = sum(np.linalg.matrix_power(step, power) for power in range(1, count + 1)) > 0
    np.fill_diagonal(expected, False)
    assert (ancestors(count, edges[:, 0], edges[:, 1]) == expected).all()
