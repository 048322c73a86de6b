"""How batches are cut."""

from __future__ import annotations

import pytest

from placewright.workers.chunk_sizes import ChunkSizes


def sizes(cuts):
    return [cut.stop - cut.start for cut in cuts]


@pytest.mark.parametrize("items", [0, 1, 2, 7, 8, 9, 1000])
def test_chunks_follow_one_another_and_are_of_nearly_equal_size(items):
    chunk_sizes = ChunkSizes(4, 1e-3, 2**30)
    for seconds in (None, 1e-6, 1e-2):
        if seconds is not None:
            chunk_sizes.record("task", 1, seconds)
        cuts = chunk_sizes.cut("task", items, 10)
        assert [at for cut in cuts for at in range(items)[cut]] == list(range(items))
        largest = max(sizes(cuts), default=0)
        assert not cuts or largest - min(sizes(cuts)) <= (1 if largest < 128 else 16 + 15)


def test_a_task_of_unknown_length_gets_one_chunk_for_each_worker():
    assert sizes(ChunkSizes(4, 1e-3, 2**30).cut("task", 100, 10)) == [25] * 4


def test_long_items_are_cut_finer_so_that_workers_balance():
    chunk_sizes = ChunkSizes(2, 1e-3, 2**30)
    chunk_sizes.record("task", 10, 10.0)  # 1 s each, so that an exchange costs nothing
    assert sizes(chunk_sizes.cut("task", 80, 10)) == [10] * 8
    assert sizes(chunk_sizes.cut("other task", 80, 10)) == [40] * 2


def test_short_items_share_an_exchange():
    chunk_sizes = ChunkSizes(2, 1e-3, 2**30)
    chunk_sizes.record("task", 100, 0.01)  # 0.1 ms each: an exchange of 1 ms is worth 200 of them
    assert sizes(chunk_sizes.cut("task", 150, 10)) == [150]
    assert sizes(chunk_sizes.cut("task", 240, 10)) == [112, 128]


def test_each_worker_gets_as_many_chunks_in_multiples_of_the_lanes():
    chunk_sizes = ChunkSizes(2, 1e-3, 2**30)
    chunk_sizes.record("task", 100, 0.01)  # 1000 items make 5 worthwhile chunks: 2 for each worker
    assert sizes(chunk_sizes.cut("task", 1000, 10)) == [240, 256, 240, 264]
    assert sizes(chunk_sizes.cut("task", 4005, 10)) == [496, 496, 496, 512, 496, 496, 496, 517]


def test_a_chunk_has_at_most_64_mib_and_half_of_a_message():
    assert len(ChunkSizes(1, 1e-3, 2**30).cut("task", 100, 2**20)) == 2  # 64 and 36 MiB, balanced
    assert len(ChunkSizes(1, 1e-3, 2**20).cut("task", 10, 2**18)) == 5  # two of 256 KiB each
    assert len(ChunkSizes(1, 1e-3, 2**20).cut("task", 10, 2**30)) == 10
