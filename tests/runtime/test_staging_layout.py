"""Offsets in a staging buffer: nothing is overwritten before its reader has ended."""

from __future__ import annotations

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from placewright.runtime.staging_layout import (
    ALIGNMENT,
    StagedCopy,
    allocate_staging,
)


def copies(sizes):
    return [
        StagedCopy((at, number), at, size)
        for at, block in enumerate(sizes)
        for number, size in enumerate(block)
    ]


def test_two_blocks_alternate():
    staging = allocate_staging(copies([[512], [512], [512], [512]]), 1024)
    assert [copy.offset for copy in staging.copies] == [0, 512, 0, 512]
    assert [copy.readers_before for copy in staging.copies] == [0, 0, 1, 2]
    assert staging.capacity == 1024


def test_a_buffer_for_one_op_waits_for_each():
    staging = allocate_staging(copies([[256, 256], [512], [256]]), 512)
    assert [copy.readers_before for copy in staging.copies] == [0, 0, 1, 2]


@settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    st.lists(st.lists(st.integers(1, 3000), min_size=1, max_size=3), min_size=1, max_size=12),
    st.floats(1, 4),
)
def test_what_is_still_read_is_never_overwritten(sizes, share):
    most = max(sum(block) for block in sizes)
    room = int(most * share)
    staging = allocate_staging(copies(sizes), room)
    assert staging.capacity <= room + ALIGNMENT * (2 + max(map(len, sizes)))
    afters = [copy.readers_before for copy in staging.copies]
    assert afters == sorted(afters)  # strictly in the readers' order
    number = {reader: at for at, reader in enumerate(staging.readers)}
    for at, copy in enumerate(staging.copies):
        assert copy.offset % ALIGNMENT == 0
        assert copy.offset + copy.size <= staging.capacity
        assert copy.readers_before <= number[copy.reader]  # or it would wait for itself
        for other in staging.copies[:at]:
            apart = (
                other.offset + other.size <= copy.offset or other.offset >= copy.offset + copy.size
            )
            assert apart or number[other.reader] < copy.readers_before
