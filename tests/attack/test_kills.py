"""Kills at drawn moments, with fixed seeds; the moment itself depends on the machine."""

from __future__ import annotations

import os

import pytest

pytest.importorskip("torch")
pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="forks children")
KINDS = ("train", "place", "interrupt", "capture", "exact", "train on workers")


def kill(kind: str, seed: int) -> None:
    from attack import kills

    assert list(kills.KINDS) == list(KINDS)
    outcome = kills.attempt(seed * len(KINDS) + KINDS.index(kind))
    assert outcome.startswith(f"{kind}: ")


@pytest.mark.parametrize("kind", KINDS[:3])
def test_files_are_whole_or_absent_and_runs_end_the_same(kind):
    kill(kind, 0)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(1, 9))
@pytest.mark.parametrize("kind", KINDS)
def test_the_same_at_many_moments(kind, seed):
    if kind == "exact":
        pytest.importorskip("ortools")
    kill(kind, seed)
