"""OpenMP teams: ends the idle team threads of the calling thread, and runs work on them.

PyTorch runs an op on the CPU with a team of threads, one team for each thread that calls ops. A
team that waits for the next op spins for a moment, which makes small ops cheap, but only while all
teams of a process have no more threads than it has cores: with one more, all of them sleep between
any two ops. A team counts as long as its thread lives, used or not. So the team of a thread that
only dispatches work slows down all workers: small ops took 60 µs instead of 8 on two cores, and
0.2 ms instead of 0.02 on fourteen.
"""

from __future__ import annotations

import ctypes
from functools import cache
from pathlib import Path
from typing import Any

_LIBRARIES = ("libgomp", "libomp", "libiomp")
_PAUSE_HARD = 2  # omp_pause_hard: release all that can be created again


def release_openmp_team() -> bool:
    """End the threads that wait for this thread's next op; its next op creates a new team.

    Returns:
        Whether an OpenMP library was found and released them.
    """
    released = [pause(_PAUSE_HARD) == 0 for pause in _pause_functions()]
    return bool(released) and all(released)


@cache
def _pause_functions() -> tuple[Any, ...]:
    """`omp_pause_resource_all` of every loaded OpenMP library: there may be several."""
    try:
        mappings = Path("/proc/self/maps").read_text().splitlines()
    except OSError:  # not Linux: the libraries are unknown
        return ()
    paths = {line.split()[-1] for line in mappings if any(name in line for name in _LIBRARIES)}
    functions = []
    for path in sorted(paths):
        try:
            functions.append(ctypes.CDLL(path).omp_pause_resource_all)
        except (OSError, AttributeError):  # deleted, or older than OpenMP 5
            continue
    return tuple(functions)


@cache
def team_launcher() -> int:
    """The address of the function by which PyTorch's OpenMP library runs work on a team; or 0.

    Work that starts there runs on the threads that PyTorch's own ops use. All three libraries have
    it, under the name that GCC calls.
    """
    import torch

    library = Path(torch.__file__).parent / "lib" / "libtorch_cpu.so"
    try:
        function = ctypes.CDLL(str(library)).GOMP_parallel  # also of the libraries that it needs
    except (OSError, AttributeError):  # not Linux, or PyTorch without OpenMP
        return 0
    return ctypes.cast(function, ctypes.c_void_p).value or 0
