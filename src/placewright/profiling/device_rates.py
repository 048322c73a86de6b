"""A site in, what it can do out: FLOP/s by dtype, memory bandwidth, the time to start an op."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from placewright.runtime.machine import load_torch

if TYPE_CHECKING:
    from collections.abc import Mapping

    from placewright.profiling.sites import Site
    from placewright.profiling.timing import Timing

DTYPES = ("float32", "bfloat16", "float16", "float64")
"""What a device's rates are measured for; others run as float32 (`Device.rate`)."""
_LONG = 4e-3  # a product that takes so many seconds shows the rate
_GROWING = 1.2  # times the rate of half the rows: the largest rate is not reached yet
_LARGEST = 8192  # rows of a product
_SMALLEST = 256


@dataclass(frozen=True)
class Ability:
    """What was measured of one device.

    Args:
        rates: FLOP/s of a large product, by dtype.
        bandwidth: Bytes a second of a large copy, those read and those written.
        launch: Seconds between the starts of small ops. On a GPU the host's time to start one.
        own: On a GPU, its own seconds for the smallest op, without the host's.
        spread: Of each figure, between the quartiles, as a share of the median.
    """

    rates: Mapping[str, float]
    bandwidth: float
    launch: float
    own: float
    spread: Mapping[str, float]


def measure_device(site: Site, seconds: float = 0.15) -> Ability:
    """Measure one device while the others rest.

    Args:
        seconds: For each figure, about.
    """
    return site.run(lambda: _measure(site, seconds))


def _measure(site: Site, seconds: float) -> Ability:
    torch = load_torch()
    rates, spread = {}, {}
    for dtype in DTYPES:
        with contextlib.suppress(RuntimeError):  # a dtype that this device cannot multiply
            rates[dtype], spread[dtype] = _rate(torch, site, dtype, seconds)
    bandwidth, spread["bandwidth"] = _bandwidth(torch, site, seconds)
    small = _small(torch, site, seconds)
    spread["launch"] = small.spread
    launch = max(small.issue, small.seconds)
    return Ability(rates, bandwidth, launch, small.seconds, spread)


def _rate(torch: Any, site: Site, dtype: str, seconds: float) -> tuple[float, float]:
    """FLOP/s of products that grow until one takes long enough to show it."""
    size, best, spread = _SMALLEST, 0.0, 0.0  # the first ones may be slow for other reasons
    while True:
        pairs = [
            tuple(
                torch.rand(size, size, device=site.device).to(getattr(torch, dtype))
                for _ in range(2)
            )
            for _ in range(2)
        ]
        took = site.time(partial(_multiply, torch, pairs), seconds / 3)
        rate, grew = 2 * size**3 / took.seconds, best * _GROWING
        if rate > best:
            best, spread = rate, took.spread
        if (took.seconds >= _LONG and rate < grew) or size >= _LARGEST or took.seconds > seconds:
            return best, spread
        size *= 2


def _multiply(torch: Any, pairs: list[tuple[Any, ...]], at: int) -> object:
    return torch.mm(*pairs[at % len(pairs)])


def _bandwidth(torch: Any, site: Site, seconds: float) -> tuple[float, float]:
    size = max(4 * site.cache, 128 << 20)
    source, target = (torch.zeros(size, dtype=torch.uint8, device=site.device) for _ in range(2))
    took = site.time(lambda _: target.copy_(source), seconds)
    return 2 * size / took.seconds, took.spread


def _small(torch: Any, site: Site, seconds: float) -> Timing:
    """The smallest op, called as a captured graph's ops are."""
    one = torch.ones(8, device=site.device)
    add = torch.ops.aten.add.Tensor
    return site.time(lambda _: add(one, one), seconds, as_in_step=True)
