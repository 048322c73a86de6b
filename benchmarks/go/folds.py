"""GO trained on each half of the paper's networks, for tests on the other half."""

from __future__ import annotations

from pathlib import Path

FOLD_WEIGHTS = Path(__file__).parent / "weights"
"""The folder of `go-a.json` and `go-b.json`, which `benchmarks.train.train_go` writes."""


def fold_policy(fold: str) -> Path:
    """The file of the policy that was trained on that fold, `a` or `b`."""
    return FOLD_WEIGHTS / f"go-{fold}.json"
