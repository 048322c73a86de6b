"""No shipped weights have seen a test graph: not even its wiring at other sizes."""

from __future__ import annotations

import json
from functools import cache
from typing import TYPE_CHECKING

import pytest

from benchmarks.generalisation.out_of_family import OTHER, OWN
from benchmarks.go.folds import fold_policy
from benchmarks.proposers.problems import held_out, training
from benchmarks.train.train_go import FOLDS, fold_networks
from benchmarks.train.train_policies import training_networks
from benchmarks.train.training_record import generated_networks, graph_digest
from placewright import zoo
from placewright.policies.shipped import WEIGHTS_FOLDER
from placewright.solvers.move_scorer import SHIPPED_WEIGHTS
from placewright.transforms import wiring_fingerprint
from placewright.zoo.families import TEST_GRAPHS, family

if TYPE_CHECKING:
    from pathlib import Path

FAMILIES = ("cifar10", "ptb", "nmt")
SCOUT = [problem.partition("@")[0] for problem in training()]
TRAINING_NETWORKS = {
    WEIGHTS_FOLDER / "pair.json": training_networks(),
    WEIGHTS_FOLDER / "placeto.json": training_networks(),
    WEIGHTS_FOLDER / "go.json": fold_networks("all"),
    fold_policy("a"): fold_networks("a"),
    fold_policy("b"): fold_networks("b"),
    SHIPPED_WEIGHTS: SCOUT,
}
load = cache(zoo.load)


def wirings(networks: list[str]) -> set[str]:
    """Of those networks that need no capture."""
    return {wiring_fingerprint(load(network)) for network in generated_networks(networks)}


@pytest.fixture(scope="module")
def test_graphs() -> set[str]:
    return {wiring_fingerprint(graph) for name in FAMILIES for graph in family(name, "test")}


def test_pair_and_placeto_have_not(test_graphs: set[str]):
    seen = {wiring_fingerprint(graph) for name in FAMILIES for graph in family(name, "train")}
    assert seen == wirings(training_networks())
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


@pytest.mark.parametrize("path", TRAINING_NETWORKS, ids=lambda path: path.stem)
def test_a_weights_file_names_the_digest_of_todays_training_graphs(path: Path):
    """If it fails, training graphs have changed: train the policy again, or undo the change."""
    data = json.loads(path.read_text())
    record = data.get("training") or data["config"]["training"]
    graphs = [load(network) for network in generated_networks(TRAINING_NETWORKS[path])]
    assert record["graphs"] == graph_digest(graphs)
    assert set(record) == {"seed", "commit", "data", "graphs"}


def test_a_digest_of_graphs_changes_with_a_size():
    one, other = (zoo.load(f"layered:ops=20,seed={seed}") for seed in (1, 2))
    assert graph_digest([one]) == graph_digest([zoo.load("layered:ops=20,seed=1")])
    assert len({graph_digest(graphs) for graphs in ([one], [other], [one, other], [])}) == 4


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
