"""No shipped weights have seen a test graph: not even its wiring at other sizes."""

from __future__ import annotations

import pytest

from benchmarks.proposers.problems import held_out, training
from benchmarks.train.train_go import FOLDS
from placewright import zoo
from placewright.transforms import wiring_fingerprint
from placewright.zoo.families import family

FAMILIES = ("cifar10", "ptb", "nmt")
GENERATED = ("layered", "series-parallel", "fork-join")


def wirings(networks: list[str]) -> set[str]:
    """Of those networks that need no capture."""
    return {
        wiring_fingerprint(zoo.load(network))
        for network in networks
        if network.partition(":")[0] in (*FAMILIES, *GENERATED)
    }


@pytest.fixture(scope="module")
def test_graphs() -> set[str]:
    return {wiring_fingerprint(graph) for name in FAMILIES for graph in family(name, "test")}


def test_pair_and_placeto_have_not(test_graphs: set[str]):
    seen = {wiring_fingerprint(graph) for name in FAMILIES for graph in family(name, "train")}
    assert not seen & test_graphs


def test_go_has_not(test_graphs: set[str]):
    networks = [network for fold in FOLDS.values() for network in fold]
    assert len(wirings(networks)) > 20
    assert not wirings(networks) & test_graphs


def test_the_scout_has_not(test_graphs: set[str]):
    seen, tests = (
        [problem.partition("@")[0] for problem in problems] for problems in (training(), held_out())
    )
    assert not wirings(seen) & (test_graphs | wirings(tests))
    assert not set(seen) & set(tests)
