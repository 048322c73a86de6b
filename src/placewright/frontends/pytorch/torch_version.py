"""The versions of PyTorch that planning and running work with.

Both use private functions of PyTorch, which change from version to version;
`benchmarks/compat/torch_versions.py` runs the tests of both with each version.
"""

from __future__ import annotations

from placewright.errors import ExecutionError, GraphError

Release = tuple[int, int]

PLANNING: tuple[Release, Release] = (2, 10), (2, 15)
"""The oldest and the newest release that models are captured with."""
RUNNING: tuple[Release, Release] = (2, 11), (2, 15)
"""The oldest and the newest release that plans run with."""


def check_planning(version: str) -> None:
    """Refuse a version of PyTorch whose private functions are not known to capture models.

    Raises:
        GraphError: It is older or newer than those that were tried.
    """
    if not _is_in(version, PLANNING):
        raise GraphError(_message(version, "from_torch works", PLANNING))


def check_running(version: str) -> None:
    """Refuse a version of PyTorch whose private functions are not known to run plans.

    Raises:
        ExecutionError: It is older or newer than those that were tried.
    """
    if not _is_in(version, RUNNING):
        raise ExecutionError(_message(version, "plans run", RUNNING))


def _is_in(version: str, releases: tuple[Release, Release]) -> bool:
    major, minor = (int(part) for part in version.split(".")[:2])
    return releases[0] <= (major, minor) <= releases[1]


def _message(version: str, what: str, releases: tuple[Release, Release]) -> str:
    oldest, newest = (f"{major}.{minor}" for major, minor in releases)
    return f"torch {version} is installed: {what} with torch {oldest} to {newest}"
