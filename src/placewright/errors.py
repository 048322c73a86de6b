"""The errors that Placewright raises deliberately.

PlacewrightError
├── GraphError          a graph is malformed, or a frontend met an op it cannot read
├── ClusterError        a cluster is malformed, or its name is unknown
├── ProblemError        graph, cluster, costs and constraints do not go together
├── PlanError           a plan does not fit its problem
├── FileError           a file is missing, truncated, or of another kind or version
├── ConfigError         an option or key is unknown or ill-typed
├── ExecutionError      a plan could not be run on the devices of this machine
├── VerifyError         a plan was run, and its outputs, devices or memory are not as promised
├── StoreError          the store of plans cannot be read or written
├── WorkerError         workers could not finish a task: they died, hung or could not be started
└── MissingDependency   an optional package is not installed (also an ImportError)

A plan that does not fit in memory is not an error: see `Timeline.fits`.
"""

from __future__ import annotations

import difflib
import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable


# C0 and C1 controls, ends of lines, and marks that turn the direction of text
_CONTROLS = re.compile("[\x00-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069]")


def printable(text: str) -> str:
    """A text for a terminal, with its control characters escaped.

    Names come from files, and a terminal obeys what is in them.
    """
    return _CONTROLS.sub(lambda match: repr(match[0])[1:-1], text)


class PlacewrightError(Exception):
    """The root of all errors raised on purpose; its text is one line for a person."""

    def __str__(self) -> str:
        return printable(super().__str__())


class GraphError(PlacewrightError):
    """A graph is malformed, or a frontend met an op it cannot read."""


class ClusterError(PlacewrightError):
    """A cluster is malformed, or its name is unknown."""


class ProblemError(PlacewrightError):
    """Graph, cluster, costs and constraints do not go together."""


class PlanError(PlacewrightError):
    """A plan does not fit its problem."""


class FileError(PlacewrightError):
    """A file is missing, truncated, or of another kind or version."""


class ConfigError(PlacewrightError):
    """An option or key is unknown or ill-typed."""


class ExecutionError(PlacewrightError):
    """A plan could not be run on the devices of this machine."""


class VerifyError(PlacewrightError):
    """A plan was run, and its outputs, devices or memory are not as promised."""


class StoreError(PlacewrightError):
    """The store of plans cannot be read or written."""


class WorkerError(PlacewrightError):
    """Workers could not finish a task: they died, hung, or could not be started."""


class MissingDependency(PlacewrightError, ImportError):
    """An optional package is not installed."""

    def __init__(self, package: str, extra: str) -> None:
        super().__init__(f"{package} is not installed: pip install 'placewright[{extra}]'")
        self._arguments = (package, extra)

    def __reduce__(self) -> tuple[type[MissingDependency], tuple[str, str]]:
        """Another process gets it from the same arguments, which are not `args`."""
        return type(self), self._arguments


def nearest(word: str, known: Iterable[str]) -> str:
    """The end of a message about an unknown word: the nearest known word, or all of them."""
    words = [str(name) for name in known]
    if len(words) > 2_000:  # the comparison is slow: keep those that begin alike
        words = [name for name in words if name[:2] == word[:2]] or words[:2_000]
    matches = difflib.get_close_matches(word, words, n=1, cutoff=0.5)
    if matches:
        return f"did you mean {matches[0]!r}?"
    if not words:
        return "none is known"
    listing = ", ".join(words[:8]) + (", ..." if len(words) > 8 else "")
    return f"known: {listing}"
