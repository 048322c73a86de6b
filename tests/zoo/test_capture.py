"""Networks of the zoo as graphs: captured once, kept in a cache that is never trusted."""

from __future__ import annotations

import pytest

from placewright import Cluster, Graph, Op, Problem, frontends, save, solve, zoo
from placewright.cache import cache_folder
from placewright.errors import ConfigError
from placewright.solvers import Expert

pytest.importorskip("torch")
SMALL = "dlrm:size=test"  # the quickest to capture
STEP = "rnnlm-2:size=test"


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr("sys.platform", "linux")
    return cache_folder("graphs")


@pytest.fixture
def quick_frontend(monkeypatch):
    """A frontend that captures one op: the cache does not care what a graph is."""
    monkeypatch.setattr(
        frontends,
        "from_torch",
        lambda model, args, kwargs, training, optimizer, name: Graph(name, (Op("a", flops=3),)),
        raising=False,
    )


def test_a_network_is_captured_once_and_then_read(cache):
    notes: list[str] = []
    first = zoo.load(SMALL, note=notes.append)
    assert notes == [f"capturing {SMALL} (one-time; may take a minute)"]
    assert first.name == SMALL
    assert len(list(cache.glob("*.json.gz"))) == 1
    again = zoo.load(SMALL, note=notes.append)
    assert len(notes) == 1
    assert again.fingerprint == first.fingerprint


def test_other_arguments_are_another_entry(cache):
    training, forward = zoo.load(STEP), zoo.load(f"{STEP},training=no")
    assert {op.phase for op in training.ops} == {"forward", "backward", "update"}
    assert forward.name == f"{STEP},training=false"
    assert {op.phase for op in forward.ops} == {"forward"}
    adam = zoo.load(f"{STEP},optimizer=adam")
    assert sum(op.resident for op in adam.ops) > sum(op.resident for op in training.ops)
    assert len(list(cache.glob("*.json.gz"))) == 3


@pytest.mark.parametrize("damage", ["cut", "swap", "empty", "no seal"])
@pytest.mark.usefixtures("quick_frontend")
def test_a_damaged_cache_entry_is_rebuilt(cache, damage):
    first = zoo.load(SMALL)
    (path,) = cache.glob("*.json.gz")
    seal = path.with_name(f"{path.name}.seal")
    if damage == "cut":
        path.write_bytes(path.read_bytes()[:100])
    elif damage == "swap":  # a valid graph, but not the one that was written
        save(Graph("other", (Op("a"),)), path)
    elif damage == "empty":
        path.write_bytes(b"")
    else:
        seal.unlink()
    notes: list[str] = []
    assert zoo.load(SMALL, note=notes.append).fingerprint == first.fingerprint
    assert len(notes) == 1
    assert zoo.load(SMALL, note=notes.append).fingerprint == first.fingerprint
    assert len(notes) == 1  # whole again


@pytest.mark.usefixtures("quick_frontend")
def test_a_cache_that_cannot_be_written_is_no_error(tmp_path, monkeypatch):
    blocked = tmp_path / "file"
    blocked.write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(blocked))
    assert len(zoo.load("dlrm:size=test")) > 0


def test_arguments_are_checked_before_anything_is_captured():
    with pytest.raises(ConfigError, match="rnnlm-2 has no argument 'layer': it has batch, steps"):
        zoo.load("rnnlm-2:layer=3")
    with pytest.raises(ConfigError, match="rnnlm-2 has size 'tiny'"):
        zoo.load("rnnlm-2:size=tiny")
    with pytest.raises(ConfigError, match="optimizer 'adm' is unknown: did you mean 'adam'"):
        zoo.load(f"{STEP},optimizer=adm")


def test_the_expert_puts_a_layer_on_each_gpu():
    graph = zoo.load(STEP)
    problem = Problem(graph, Cluster.parse("2xP100+cpu"))
    device = solve(problem, Expert()).plan.placement
    layers = {
        layer: {
            int(device[at]) for at, op in enumerate(graph.ops) if f"layers.{layer}." in op.module
        }
        for layer in (0, 1)
    }
    assert layers == {0: {0}, 1: {1}}
    head = {int(device[at]) for at, op in enumerate(graph.ops) if op.module.startswith("head")}
    assert head == {1}


def test_there_is_no_expert_for_other_graphs():
    problem = Problem(zoo.load("diamond"), Cluster.parse("2xP100+cpu"))
    with pytest.raises(ConfigError, match="no expert's placement is known for 'diamond'"):
        solve(problem, Expert())
