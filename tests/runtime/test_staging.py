"""Places in a staging room: nothing is overwritten before its reader has ended."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from placewright.runtime.staging import ALIGNED, Copy, lay_out


def copies(sizes):
    return [
        Copy((at, number), at, size)
        for at, block in enumerate(sizes)
        for number, size in enumerate(block)
    ]


def test_two_blocks_take_turns():
    staging = lay_out(copies([[512], [512], [512], [512]]), 1024)
    assert [copy.offset for copy in staging.copies] == [0, 512, 0, 512]
    assert [copy.after for copy in staging.copies] == [0, 0, 1, 2]
    assert staging.room == 1024


def test_a_room_for_one_op_alone_waits_for_each():
    staging = lay_out(copies([[256, 256], [512], [256]]), 512)
    assert [copy.after for copy in staging.copies] == [0, 0, 1, 2]


@given(
    st.lists(st.lists(st.integers(1, 3000), min_size=1, max_size=3), min_size=1, max_size=12),
    st.floats(1, 4),
)
def test_what_is_still_read_is_never_overwritten(sizes, share):
    most = max(sum(block) for block in sizes)
    room = int(most * share)
    staging = lay_out(copies(sizes), room)
    assert staging.room <= room + ALIGNED * (2 + max(map(len, sizes)))
    afters = [copy.after for copy in staging.copies]
    assert afters == sorted(afters)  # strictly in the readers' order
    number = {reader: at for at, reader in enumerate(staging.readers)}
    for at, copy in enumerate(staging.copies):
        assert copy.offset % ALIGNED == 0
        assert copy.offset + copy.size <= staging.room
        assert copy.after <= number[copy.reader]  # or it would wait for itself
        for other in staging.copies[:at]:
            apart = (
                other.offset + other.size <= copy.offset or other.offset >= copy.offset + copy.size
            )
            assert apart or number[other.reader] < copy.after
