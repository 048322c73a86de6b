"""The problems that a worker has: each is sent once, and the least recently used one is dropped."""

from __future__ import annotations

import hashlib
import threading
import weakref
from collections import OrderedDict
from dataclasses import dataclass
from typing import Any

from placewright.problem import Problem
from placewright.workers.messages import encode

MAX_PROBLEMS = 4


class RecentProblems:
    """The last few problems by key. A driver that does the same calls knows what its worker has."""

    def __init__(self, max_problems: int = MAX_PROBLEMS) -> None:
        self._max_problems = max_problems
        self._problems: OrderedDict[str, Any] = OrderedDict()

    def __contains__(self, key: str) -> bool:
        return key in self._problems

    def get(self, key: str) -> Any:
        """The problem of this key, which is now the most recent one."""
        self._problems.move_to_end(key)
        return self._problems[key]

    def clear(self) -> None:
        """Drop all of them."""
        self._problems.clear()

    def add(self, key: str, problem: Any) -> None:
        """Add the most recent problem, or make a known one the most recent."""
        self._problems[key] = problem
        self._problems.move_to_end(key)
        while len(self._problems) > self._max_problems:
            self._problems.popitem(last=False)


@dataclass(frozen=True, eq=False)
class EncodedProblem:
    """A problem as a worker gets it; the key is a hash of its bytes, `""` for none."""

    problem: Any
    key: str = ""
    data: bytes = b""


class ProblemEncoder:
    """Encodes each problem once, for as long as it lives."""

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._encoded: weakref.WeakKeyDictionary[Any, tuple[str, bytes]] = (
            weakref.WeakKeyDictionary()
        )
        self._lock = threading.Lock()

    def __call__(self, problem: Any) -> EncodedProblem:
        """The problem with its key and bytes.

        Raises:
            MessageTooLarge: It takes more bytes than a message may have.
        """
        if problem is None:
            return EncodedProblem(None)
        with self._lock:
            try:
                known = self._encoded.get(problem)
            except TypeError:  # it has no weak reference or no hash, so it is encoded each time
                return EncodedProblem(problem, *self._encode(problem))
            if known is None:
                self._encoded[problem] = known = self._encode(problem)
        return EncodedProblem(problem, *known)

    def _encode(self, problem: Any) -> tuple[str, bytes]:
        if isinstance(problem, Problem):
            _ = problem.arrays  # packed here once, not in each worker
        data = encode(problem, self._max_bytes)
        return hashlib.blake2b(data, digest_size=16).hexdigest(), data
