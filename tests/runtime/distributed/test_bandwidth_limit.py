"""A bandwidth limit lets frames leave one after the other, as through one network card."""

from __future__ import annotations

import pytest

from placewright.errors import ConfigError
from placewright.runtime.distributed.bandwidth_limit import BandwidthLimit


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def sleep(self, seconds: float) -> None:
        self.now += seconds


def test_a_frame_leaves_after_its_bytes_and_those_before_it():
    clock = Clock()
    limit = BandwidthLimit(100.0, lambda: clock.now, clock.sleep)
    limit.wait(50)
    assert clock.now == pytest.approx(0.5)
    limit.wait(100, ready_at=0.25)  # it waited for the first: 0.5 s + 1 s
    assert clock.now == pytest.approx(1.5)
    clock.now = 5.0
    limit.wait(100)
    assert clock.now == pytest.approx(6.0)


def test_a_frame_that_was_ready_long_ago_leaves_at_once():
    clock = Clock()
    limit = BandwidthLimit(100.0, lambda: clock.now, clock.sleep)
    clock.now = 3.0
    limit.wait(100, ready_at=1.0)
    assert clock.now == 3.0


def test_a_limit_of_nothing_is_an_error():
    with pytest.raises(ConfigError, match="expected > 0"):
        BandwidthLimit(0.0)
