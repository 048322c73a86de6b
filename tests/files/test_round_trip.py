"""Round trips: every noun comes back from its file as it went."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from placewright import Cluster, Device, Link, Result, Roofline, Timeline, load, save
from placewright.files import from_data, to_data

if TYPE_CHECKING:
    from pathlib import Path

KINDS = (
    *("graph", "cluster", "costs", "constraints", "problem", "plan", "timeline", "result"),
    *("workload", "workload_plan", "workload_result"),
)


@pytest.mark.parametrize("suffix", [".json", ".json.gz"])
@pytest.mark.parametrize("kind", KINDS)
def test_every_noun_comes_back_as_it_went(
    nouns: dict[str, Any], tmp_path: Path, kind: str, suffix: str
) -> None:
    path = tmp_path / f"noun{suffix}"
    save(nouns[kind], path)
    for loaded in (load(path), load(path, kind=kind), load(str(path))):
        assert type(loaded) is type(nouns[kind])
        assert to_data(loaded) == to_data(nouns[kind])


@pytest.mark.parametrize("kind", KINDS)
def test_a_file_says_its_kind_and_version_first(
    nouns: dict[str, Any], tmp_path: Path, kind: str
) -> None:
    save(nouns[kind], tmp_path / "noun.json")
    data = json.loads((tmp_path / "noun.json").read_text())
    assert list(data.items())[:2] == [("placewright", kind), ("version", 3)]


def test_graphs_clusters_and_plans_are_equal_when_loaded(
    nouns: dict[str, Any], tmp_path: Path
) -> None:
    for kind in ("graph", "cluster", "plan", "constraints"):
        save(nouns[kind], tmp_path / "noun.json")
        assert load(tmp_path / "noun.json") == nouns[kind]
    save(nouns["plan"], tmp_path / "plan.json")
    plan = load(tmp_path / "plan.json", kind="plan")
    assert (plan.graph, plan.cluster) == (nouns["plan"].graph, nouns["plan"].cluster)
    assert [array.dtype for array in (plan.placement, plan.priority, plan.staging)] == [  # type: ignore[union-attr]
        np.int32,
        np.float64,
        np.int64,
    ]


def test_a_problem_packs_to_the_same_arrays_when_loaded(
    nouns: dict[str, Any], tmp_path: Path
) -> None:
    save(nouns["problem"], tmp_path / "problem.json")
    loaded = load(tmp_path / "problem.json", kind="problem")
    assert (loaded.discipline, loaded.objective, loaded.overlap) == ("ready", "period", False)
    assert loaded.costs == Roofline(0.5)
    for name, array in vars(nouns["problem"].arrays).items():
        assert np.array_equal(getattr(loaded.arrays, name), array), name


def test_a_timelines_arrays_keep_their_types(split_timeline: Timeline) -> None:
    loaded = from_data(to_data(split_timeline), "timeline")
    for name in ("start", "end", "peak", "capacity"):
        assert getattr(loaded, name).dtype == getattr(split_timeline, name).dtype
    for part in ("transfers", "memory"):
        for name, array in vars(getattr(split_timeline, part)).items():
            again = getattr(getattr(loaded, part), name)
            assert again.dtype == array.dtype
            assert np.array_equal(again, array)


def test_an_empty_timeline_comes_back(split_timeline: Timeline) -> None:
    transfers = replace(
        split_timeline.transfers,
        **{name: array[:0] for name, array in vars(split_timeline.transfers).items()},
    )
    loaded = from_data(to_data(replace(split_timeline, transfers=transfers)))
    assert len(loaded.transfers) == 0


def vars_of(use: object) -> dict[str, object]:
    return dict(vars(use))


def test_a_result_comes_back_field_by_field(split_result: Result) -> None:
    loaded = from_data(to_data(split_result), "result")
    for name, value in vars(split_result).items():
        if name != "devices":
            assert getattr(loaded, name) == value, name
    assert [vars_of(use) for use in loaded.devices] == [
        vars_of(use) for use in split_result.devices
    ]


def test_infinity_is_written_as_text(split_result: Result, tmp_path: Path) -> None:
    save(replace(split_result, bound=0.0), tmp_path / "result.json")
    assert '"gap": "inf"' in (tmp_path / "result.json").read_text()
    assert load(tmp_path / "result.json").gap == math.inf
    link = Link(math.inf)
    cluster = Cluster("c", (Device("a"), Device("b")), {("a", "b"): link, ("b", "a"): link})
    for name in ("c.json", "c.toml"):
        save(cluster, tmp_path / name)
        assert load(tmp_path / name) == cluster
    assert json.loads((tmp_path / "c.json").read_text())["links"][0]["bandwidth"] == "inf"


def test_a_roofline_comes_back(tmp_path: Path) -> None:
    save(Roofline(0.25, 0.5), tmp_path / "costs.json")
    assert load(tmp_path / "costs.json", kind="costs") == Roofline(0.25, 0.5)
    assert from_data({"placewright": "costs", "version": 2, "model": "roofline"}) == Roofline()


def test_the_same_noun_gives_the_same_bytes(tmp_path: Path, nouns: dict[str, Any]) -> None:
    for name in ("a.json", "a.json.gz"):
        save(nouns["result"], tmp_path / name)
        first = (tmp_path / name).read_bytes()
        save(nouns["result"], tmp_path / name)
        assert (tmp_path / name).read_bytes() == first
