"""Measures a device: FLOP/s by dtype, memory bandwidth and launch overhead."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from placewright.profiling.timing import time_call
from placewright.runtime.machine import load_torch

if TYPE_CHECKING:
    from collections.abc import Mapping

    from placewright.profiling.timing import Timing
    from placewright.runtime.real_devices import RealDevice

DTYPES = ("float32", "bfloat16", "float16", "float64")
"""Dtypes that are measured; others count as float32 (`Device.rate`)."""
_MIN_SECONDS = 4e-3  # seconds of a product that is long enough to show the rate
_GROWTH = 1.2  # a larger product that is faster by this factor: the peak is not reached yet
_MAX_SIZE = 8192  # rows of a product
_MIN_SIZE = 256


@dataclass(frozen=True)
class DeviceRates:
    """The measured rates of one device.

    Args:
        rates: FLOP/s of a large matrix product, by dtype.
        bandwidth: Bytes per second of a large copy, read and written.
        launch: Seconds between the starts of small ops; on a GPU the host's time to launch one.
        own: On a GPU, its own seconds for the smallest op, without the host's.
        spread: The interquartile range of each figure, as a share of the median.
    """

    rates: Mapping[str, float]
    bandwidth: float
    launch: float
    own: float
    spread: Mapping[str, float]


def measure_device(device: RealDevice, seconds: float = 0.15) -> DeviceRates:
    """Measure one device while the others are idle.

    Args:
        seconds: Seconds spent on each figure, about.
    """
    return device.run(lambda: _measure_rates(device, seconds))


def _measure_rates(device: RealDevice, seconds: float) -> DeviceRates:
    torch = load_torch()
    rates, spread = {}, {}
    for dtype in DTYPES:
        with contextlib.suppress(RuntimeError):  # a dtype that the device does not support
            rates[dtype], spread[dtype] = _matmul_rate(torch, device, dtype, seconds)
    bandwidth, spread["bandwidth"] = _copy_bandwidth(torch, device, seconds)
    small_op = _time_small_op(torch, device, seconds)
    spread["launch"] = small_op.spread
    launch = max(small_op.issue, small_op.seconds)
    return DeviceRates(rates, bandwidth, launch, small_op.seconds, spread)


def _matmul_rate(torch: Any, device: RealDevice, dtype: str, seconds: float) -> tuple[float, float]:
    """FLOP/s of matrix products of growing size, until the rate stops growing; and its spread."""
    size, best, spread = _MIN_SIZE, 0.0, 0.0  # the first ones may be slow for other reasons
    while True:
        pairs = [
            tuple(
                torch.rand(size, size, device=device.torch_device).to(getattr(torch, dtype))
                for _ in range(2)
            )
            for _ in range(2)
        ]
        timing = time_call(device, partial(_multiply, torch, pairs), seconds / 3)
        rate, growth_limit = 2 * size**3 / timing.seconds, best * _GROWTH
        if rate > best:
            best, spread = rate, timing.spread
        if (
            (timing.seconds >= _MIN_SECONDS and rate < growth_limit)
            or size >= _MAX_SIZE
            or timing.seconds > seconds
        ):
            return best, spread
        size *= 2


def _multiply(torch: Any, pairs: list[tuple[Any, ...]], at: int) -> object:
    return torch.mm(*pairs[at % len(pairs)])


def _copy_bandwidth(torch: Any, device: RealDevice, seconds: float) -> tuple[float, float]:
    size = max(4 * device.cache, 128 << 20)
    source, target = (
        torch.zeros(size, dtype=torch.uint8, device=device.torch_device) for _ in range(2)
    )
    timing = time_call(device, lambda _: target.copy_(source), seconds)
    return 2 * size / timing.seconds, timing.spread


def _time_small_op(torch: Any, device: RealDevice, seconds: float) -> Timing:
    """Time the smallest op, called as a program calls it."""
    tensor = torch.ones(8, device=device.torch_device)
    add = torch.ops.aten.add.Tensor
    return time_call(device, lambda _: add(tensor, tensor), seconds, as_in_step=True)
