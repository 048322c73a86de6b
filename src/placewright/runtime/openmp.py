"""The calling thread in, its OpenMP team sent home out.

PyTorch's ops on the CPU are shared out to a team of threads, one team for each thread that asks.
Teams that wait for the next op spin for a moment, which is what makes small ops cheap, but only
while all teams of a process have no more threads than it has cores: one more, and all of them sleep
between any two ops. A team counts for as long as its thread lives, used or not. So the team of a
thread that only hands out work slows down all workers: small ops took 60 µs instead of 8 on two
cores, and 0.2 ms instead of 0.02 on fourteen.
"""

from __future__ import annotations

import ctypes
from functools import cache
from pathlib import Path
from typing import Any

_LIBRARIES = ("libgomp", "libomp", "libiomp")
_HARD = 2  # omp_pause_hard: give back all that can be made anew


def send_team_home() -> bool:
    """End the threads that wait for this thread's next op; its next op makes a team anew.

    Returns:
        Whether there is an OpenMP here that could be told.
    """
    told = [pause(_HARD) == 0 for pause in _pauses()]
    return bool(told) and all(told)


@cache
def _pauses() -> tuple[Any, ...]:
    """`omp_pause_resource_all` of every OpenMP that is loaded: there may be several."""
    try:
        mapped = Path("/proc/self/maps").read_text().splitlines()
    except OSError:  # not Linux: nothing is known of its teams
        return ()
    paths = {line.split()[-1] for line in mapped if any(name in line for name in _LIBRARIES)}
    found = []
    for path in sorted(paths):
        try:
            found.append(ctypes.CDLL(path).omp_pause_resource_all)
        except (OSError, AttributeError):  # deleted since, or older than OpenMP 5
            continue
    return tuple(found)
