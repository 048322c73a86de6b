"""Reads which workers are wanted from a text: `threads:2`, `processes:8`, `ray:8`, `ray://host:port`."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from typing import Literal
from urllib.parse import parse_qs, urlsplit

from placewright.errors import ConfigError

WorkerKind = Literal["threads", "processes", "ray"]

SPEC_EXAMPLES = "'2', 'threads:2', 'processes:8', 'ray:8', 'ray:auto' or 'ray://host:port'"

_MAX_COUNT = 4096  # the driver has a thread for each worker


@dataclass(frozen=True)
class WorkerSpec:
    """Which workers are wanted.

    Args:
        count: How many; None means one for each CPU of the Ray cluster.
        address: The address of a running Ray cluster, `auto` to find it; None means none is needed.
    """

    kind: WorkerKind
    count: int | None
    address: str | None = None

    @classmethod
    def parse(cls, text: str | int) -> WorkerSpec:
        """Read a text; a plain number means that many local processes.

        Raises:
            ConfigError: The text names no workers.
        """
        text = str(text).strip()
        if text.startswith(("ray://", "ray:auto")):
            return cls._parse_cluster(text)
        match = re.fullmatch(r"(threads|processes|ray)(?::(\d+))?|(\d+)", text)
        if match is None:
            raise _error(text)
        kind, count = match[1] or "processes", match[2] or match[3]
        return cls(kind, usable_cores() if count is None else _checked_count(text, count))  # type: ignore[arg-type]

    @classmethod
    def _parse_cluster(cls, text: str) -> WorkerSpec:
        try:
            parts = urlsplit(text)
            query = parse_qs(parts.query, keep_blank_values=True, strict_parsing=bool(parts.query))
            is_complete = parts.port is not None and bool(parts.hostname)
        except ValueError:
            raise _error(text) from None
        if text.startswith("ray://"):
            is_valid, address = is_complete and not parts.path, f"ray://{parts.netloc}"
        else:
            is_valid, address = parts.path == "auto", "auto"
        counts = query.pop("workers", [])
        if not is_valid or query or len(counts) > 1:
            raise _error(text)
        return cls("ray", _checked_count(text, counts[0]) if counts else None, address)

    def __str__(self) -> str:
        if self.address is None:
            return f"{self.kind}:{self.count}"
        base = "ray:auto" if self.address == "auto" else self.address
        return base if self.count is None else f"{base}?workers={self.count}"


def usable_cores() -> int:
    """The cores that this process may run on."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _checked_count(text: str, count: str) -> int:
    if not count.isdecimal() or not 1 <= int(count) <= _MAX_COUNT:
        raise ConfigError(f"workers {text!r}: expected a count from 1 to {_MAX_COUNT}")
    return int(count)


def _error(text: str) -> ConfigError:
    return ConfigError(f"workers {text!r}: expected {SPEC_EXAMPLES}")
