"""How long a piece of work takes, in lengths of a fixed piece: a limit that holds on any machine.

One length is about 0.1 s of one core of a server of 2022. A limit in lengths is to be a few times
what the work takes, for machines differ in more than one number, and still far below what it would
take with one more factor of its size.
"""

from __future__ import annotations

import gc
import time
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Callable


def fixed_work() -> None:
    """Objects, names, dictionaries and arrays, as in the code whose time is told by it."""
    for _ in range(2):
        made = [(f"op{at}", (at - 1, 0), float(at)) for at in range(40_000)]
        found = {name: (number, source) for name, source, number in made}
        total = 0
        for name, (source, _), number in made:
            total += source if found[name][0] == number else 0
        sorted(found, reverse=True)
        numbers = np.arange(500_000) % 7919
        numbers[np.argsort(numbers, kind="stable")].cumsum()


def seconds(work: Callable[[], object]) -> float:
    """Of the processor, not of the clock on the wall: the machine may be busy."""
    start = time.process_time()
    work()
    return time.process_time() - start


def lengths(work: Callable[[], object], limit: float, tries: int = 3) -> float:
    """The time of `work` over that of `fixed_work` done before and after it: the least of a few.

    Args:
        work: What is timed, once or more.
        limit: Below it no further try is made.
        tries: How many tries at most.
    """
    gc.freeze()  # what the tests before have left is not searched again while the clock runs
    try:
        least, before = float("inf"), seconds(fixed_work)
        for _ in range(tries):
            took, after = seconds(work), seconds(fixed_work)
            least, before = min(least, 2 * took / (before + after)), after
            if least < limit:
                break
    finally:
        gc.unfreeze()
    return least
