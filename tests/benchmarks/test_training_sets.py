"""No shipped weights have seen a test graph: not even its wiring at other sizes."""

from __future__ import annotations

import json

import pytest

from benchmarks.generalisation.out_of_family import OTHER, OWN
from benchmarks.go.folds import fold_policy
from benchmarks.proposers.problems import held_out, training
from benchmarks.train.train_go import FOLDS
from placewright import zoo
from placewright.policies.shipped import WEIGHTS_FOLDER
from placewright.transforms import wiring_fingerprint
from placewright.zoo.families import TEST_GRAPHS, family

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


def test_the_reports_beside_gos_weights_name_the_networks_of_their_folds_and_no_others():
    """A report is written with the weights, from the problems that they were trained on."""
    networks = {fold: set(FOLDS[fold]) for fold in FOLDS} | {
        "all": {network for fold in FOLDS.values() for network in fold}
    }
    reports = {fold: fold_policy(fold) for fold in FOLDS} | {"all": WEIGHTS_FOLDER / "go.json"}
    for fold, path in reports.items():
        report = json.loads(path.with_name(f"{path.stem}-report.json").read_text())
        assert report["fold"] == fold
        assert {row["task"].partition(" on ")[0] for row in report["rows"]} == networks[fold]


def test_the_out_of_family_problems_are_of_no_kind_that_a_policy_was_trained_on():
    kinds = {network.partition(":")[0] for fold in FOLDS.values() for network in fold}
    kinds = {kind.partition("-")[0] for kind in (*kinds, *FAMILIES)}
    assert not kinds & {network.partition(":")[0].partition("-")[0] for network in OTHER}
    graphs = {f"{name}:graph={at}" for name in FAMILIES for at in TEST_GRAPHS}
    assert set(OWN) <= graphs
