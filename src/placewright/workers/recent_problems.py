"""The problems that a worker has: each is sent once, and the least recently used are dropped."""

from __future__ import annotations

import hashlib
import threading
import weakref
from collections import OrderedDict
from dataclasses import dataclass
from typing import Any

from placewright.problem import Problem
from placewright.workers.messages import encode

MAX_PROBLEM_BYTES = 64 * 2**20
"""Bytes of the problems that a worker has, as they were sent: 50 of 5,000 ops."""


class RecentProblems:
    """The last problems by key, up to some bytes; the last one of all whatever its size.

    A driver that does the same calls knows what its worker has.
    """

    def __init__(self, max_bytes: int = MAX_PROBLEM_BYTES) -> None:
        self._max_bytes, self._bytes = max_bytes, 0
        self._problems: OrderedDict[str, tuple[Any, int]] = OrderedDict()

    def __contains__(self, key: str) -> bool:
        return key in self._problems

    def get(self, key: str) -> Any:
        """The problem of this key, which is now the most recent one."""
        self._problems.move_to_end(key)
        return self._problems[key][0]

    def clear(self) -> None:
        """Drop all of them."""
        self._problems.clear()
        self._bytes = 0

    def add(self, key: str, problem: Any, size: int) -> None:
        """Add the most recent problem, or make a known one the most recent.

        Args:
            size: Its bytes, as it is sent.
        """
        self._bytes += size - self._problems.pop(key, (None, 0))[1]
        self._problems[key] = problem, size
        while self._bytes > self._max_bytes and len(self._problems) > 1:
            _, (_, dropped) = self._problems.popitem(last=False)
            self._bytes -= dropped


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
