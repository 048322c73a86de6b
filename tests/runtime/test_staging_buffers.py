"""Staging buffers that executors share."""

from __future__ import annotations

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from placewright import Plan  # noqa: E402
from placewright.runtime.staging_buffers import StagingBuffers, planned_sizes  # noqa: E402

CPU = torch.device("cpu")


def plan(*staging):
    sizes = None if not staging else np.array(staging, dtype=np.int64)
    return Plan(("a",), ("cpu", "gpu0"), np.zeros(1, dtype=np.int32), staging=sizes)


def test_the_first_buffer_is_as_large_as_any_will_be():
    sizes = planned_sizes([plan(-1, 1000), plan(), plan(-1, 5000)])
    buffers = StagingBuffers(sizes)
    assert set(sizes) == {"gpu0"}
    first = buffers.take("gpu0", 1000, CPU)
    assert buffers.take("gpu0", 5000 + 256, CPU) is first
    assert buffers.find("gpu0") is first
    assert buffers.find("cpu") is None


def test_readers_let_go_of_a_buffer_before_there_is_a_larger_one():
    buffers, readers = StagingBuffers(), []
    readers.append(buffers.take("gpu0", 100, CPU))
    found = []

    def let_go():
        readers.clear()
        found.append(buffers.find("gpu0"))

    buffers.on_replace = let_go
    assert len(buffers.take("gpu0", 200, CPU)) == 200
    assert found == [None]
    assert not readers
    assert len(buffers.take("gpu0", 50, CPU)) == 200
