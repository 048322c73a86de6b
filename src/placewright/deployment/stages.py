"""What `place` says of its stages: a line for each, with its time."""

from __future__ import annotations

import contextlib
import sys
import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    import torch

    from placewright.deployment.call_capture import CapturedCall
    from placewright.workload_result import WorkloadResult


class Stages:
    """Says in a line what each stage did, and how long it took."""

    def __init__(self, notify: Callable[[str], None]) -> None:
        self.notify = notify

    @contextlib.contextmanager
    def line(self, name: str) -> Iterator[Callable[[str], None]]:
        texts: list[str] = []
        start = time.perf_counter()
        yield texts.append
        self.notify(f"{name}: {' '.join(texts)} ({time.perf_counter() - start:.1f} s)")


def print_line(text: str) -> None:
    print(f"placewright: {text}", file=sys.stderr, flush=True)


def call_text(call: CapturedCall) -> str:
    times = "" if call.count == 1 else f" x{call.count:g}"
    return f"{call.name}{times} ({len(call.program.graph):,} ops)"


def result_text(result: WorkloadResult) -> str:
    parts = ", ".join(
        f"{name} {call.objective_value * 1e3:.4g} ms"
        for name, call in zip(result.plan.calls, result.calls, strict=True)
    )
    return f"{parts}; {result.objective_value:.4g} s in all, gap {result.gap:.1%}"


def weights_text(model: torch.nn.Module) -> str:
    """How many bytes of weights are on which device."""
    sizes: dict[str, int] = {}
    for tensor in {*model.parameters(), *model.buffers()}:
        sizes[str(tensor.device)] = sizes.get(str(tensor.device), 0) + tensor.nbytes
    return ", ".join(f"{size / 2**30:.2f} GiB on {name}" for name, size in sizes.items())
