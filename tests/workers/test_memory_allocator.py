"""What a worker frees it uses again: the next chunk brings no new pages."""

from __future__ import annotations

import sys

import pytest
from worker_tasks import PageFaults

from placewright.workers import open_workers


@pytest.mark.skipif(sys.platform != "linux", reason="glibc only")
def test_arrays_of_later_chunks_are_made_in_memory_that_earlier_ones_have_freed():
    megabytes = 8
    with open_workers("processes:1") as workers:
        first, *later = workers.map(PageFaults(megabytes), range(6))
    assert first > megabytes * 2**20 / 4096 / 2  # it fetched most of its pages
    assert max(later) < first / 10
