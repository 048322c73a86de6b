"""Opens workers from a text such as `processes:8`."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

from placewright.errors import ConfigError
from placewright.workers.worker_pool import Workers
from placewright.workers.worker_spec import SPEC_EXAMPLES, WorkerSpec

if TYPE_CHECKING:
    from collections.abc import Iterator

    from placewright.workers.worker_backend import WorkerBackend

DEFAULT_TIMEOUT = 600.0  # seconds
DEFAULT_ATTEMPTS = 3
DEFAULT_MAX_BYTES = 2**30


def open_workers(
    spec: str | int | WorkerSpec,
    *,
    timeout: float = DEFAULT_TIMEOUT,
    attempts: int = DEFAULT_ATTEMPTS,
    max_message_bytes: int = DEFAULT_MAX_BYTES,
) -> Workers:
    """Open workers; use them in a `with` block, which ends them.

    Args:
        spec: `threads:2`, `processes:8`, `ray:8` (a Ray cluster on this machine alone), `ray:auto`
            or `ray://host:port` (a running one); a plain number means processes.
        timeout: Seconds after which a worker that runs a chunk is replaced.
        attempts: How often a chunk is given out before it fails with WorkerError.
        max_message_bytes: The most bytes that a problem, a chunk or its results may have.

    Raises:
        ConfigError: The text names no workers, or a number is out of range.
        MissingDependency: Ray is not installed.
    """
    if not isinstance(spec, (str, int, WorkerSpec)) or isinstance(spec, bool):
        raise ConfigError(f"workers {spec!r}: expected {SPEC_EXAMPLES}")
    if not timeout > 0:
        raise ConfigError(f"workers with a time-out of {timeout!r} s: expected more than 0")
    if attempts < 1 or max_message_bytes < 1:
        raise ConfigError(
            f"workers with {attempts!r} attempts and messages of {max_message_bytes!r} bytes: "
            "expected 1 or more of each"
        )
    parsed = spec if isinstance(spec, WorkerSpec) else WorkerSpec.parse(spec)
    backend = _make_backend(parsed, max_message_bytes)
    return Workers(backend, timeout, attempts, max_message_bytes)


@contextmanager
def as_workers(workers: Workers | str | int | None) -> Iterator[Workers | None]:
    """Workers for a `with` block: open ones stay open, a text opens some, None none."""
    if workers is None or isinstance(workers, Workers):
        yield workers
    else:
        with open_workers(workers) as opened:
            yield opened


def _make_backend(spec: WorkerSpec, max_bytes: int) -> WorkerBackend:
    # The kinds are imported where they are needed.
    if spec.kind == "threads":
        from placewright.workers.thread_workers import ThreadBackend

        return ThreadBackend(spec.count or 1)
    if spec.kind == "processes":
        from placewright.workers.process_workers import ProcessBackend

        return ProcessBackend(spec.count or 1, max_bytes)
    from placewright.workers.ray_workers import RayBackend

    return RayBackend.connect(spec, max_bytes)
