"""Versions: version 3 is written, 1 and 2 are read, and each old key means what it meant."""

from __future__ import annotations

import copy
import math
import re
from dataclasses import replace
from typing import Any

import pytest

from placewright import Cluster, Device, Graph, Link, Op, Plan, Problem, Result, Table
from placewright.errors import ConfigError, FileError
from placewright.files import from_data, to_data

Data = dict[str, Any]

RENAMED_KEYS = {
    "op": {"moved": "bytes_moved"},
    "device": {"bandwidth": "memory_bandwidth", "launch": "launch_overhead"},
    "link": {"loose": "pageable_bandwidth", "handing": "handoff_latency"},
    "plan": {"devices": "placement"},
    "result": {"asked": "options"},
}
NEW_KEYS = sorted(new for keys in RENAMED_KEYS.values() for new in keys.values())


@pytest.fixture
def nouns(diamond: Graph, split_result: Result, diamond_problem: Problem) -> dict[str, Any]:
    """One noun of each kind that has a renamed key, with every such key in use."""
    device = Device("a", memory_bandwidth=5e9, launch_overhead=1e-6)
    link = Link(4e9, 1e-6, "", 1e9, 3e-6)
    devices = (device, Device("b", "cpu"))
    cluster = Cluster("c", devices, {("a", "b"): link, ("b", "a"): Link(math.inf)})
    table = Table(("a",), ("P100",), [[1.5]], measured_on=device)  # type: ignore[arg-type]
    graph = Graph("g", (Op("a", bytes_moved=7), Op("b", inputs=((0, 0),))))
    return {
        "graph": graph,
        "cluster": cluster,
        "costs": table,
        "problem": Problem(graph, cluster),
        "plan": Plan.of(diamond_problem, [0, 0, 1, 0]),
        "result": replace(split_result, options={"model": "cifar10", "use": ("gpu0", "gpu1")}),
    }


def as_version_1(data: Any, part: str) -> Any:
    """The same data in the words of version 1."""
    parts = {"ops": "op", "devices": "device", "links": "link", "measured_on": "device"}
    if isinstance(data, list):
        return [as_version_1(item, part) for item in data]
    if not isinstance(data, dict):
        return data
    part = data.get("placewright", part)
    old_keys = {new: old for old, new in RENAMED_KEYS.get(part, {}).items()}
    old = {old_keys.get(key, key): as_version_1(data[key], parts.get(key, "")) for key in data}
    return old | {"version": 1} if "placewright" in data else old


def keys_of(data: Any) -> set[str]:
    """Every key anywhere in some data."""
    if isinstance(data, list):
        return set().union(*map(keys_of, data))
    return set(data).union(*map(keys_of, data.values())) if isinstance(data, dict) else set()


KINDS = ("graph", "cluster", "costs", "problem", "plan", "result")


def test_every_new_key_is_written(nouns: dict[str, Any]) -> None:
    written = set().union(*(keys_of(to_data(noun)) for noun in nouns.values()))
    assert written.issuperset(NEW_KEYS)


@pytest.mark.parametrize("kind", KINDS)
def test_version_1_means_what_version_3_means(nouns: dict[str, Any], kind: str) -> None:
    data = to_data(nouns[kind])
    old = as_version_1(copy.deepcopy(data), kind)
    assert (data["version"], old["version"]) == (3, 1)
    assert keys_of(old).isdisjoint(NEW_KEYS)
    assert to_data(from_data(old, kind)) == data
    assert to_data(from_data(data, kind)) == data


def test_an_old_key_is_read_in_a_file_of_version_2() -> None:
    graph = from_data(
        {"placewright": "graph", "version": 2, "name": "g", "ops": [{"name": "a", "moved": 7}]}
    )
    assert graph.ops[0].bytes_moved == 7


@pytest.mark.parametrize("version", [1, 2, 3])
@pytest.mark.parametrize(
    ("kind", "changes", "message"),
    [
        ("graph", {"moved": 1}, "ops[0] has 'moved' and 'bytes_moved': keep 'bytes_moved'"),
        (
            "cluster",
            {"bandwidth": 1},
            "devices[0] has 'bandwidth' and 'memory_bandwidth': keep 'memory_bandwidth'",
        ),
        (
            "cluster",
            {"launch": 1},
            "devices[0] has 'launch' and 'launch_overhead': keep 'launch_overhead'",
        ),
        (
            "cluster",
            {"loose": 1},
            "links[0] has 'loose' and 'pageable_bandwidth': keep 'pageable_bandwidth'",
        ),
        (
            "cluster",
            {"handing": 1},
            "links[0] has 'handing' and 'handoff_latency': keep 'handoff_latency'",
        ),
        ("plan", {"devices": {}}, "the file has 'devices' and 'placement': keep 'placement'"),
        ("result", {"asked": {}}, "the file has 'asked' and 'options': keep 'options'"),
    ],
)
def test_a_key_and_its_old_name_are_refused_together(
    nouns: dict[str, Any], kind: str, changes: Data, message: str, version: int
) -> None:
    data = to_data(nouns[kind]) | {"version": version}
    part = message.split("[")[0]
    if part in data:
        data[part][0] |= changes
    else:
        data |= changes
    with pytest.raises(ConfigError, match=f"^{re.escape(message)}$"):
        from_data(data)


def test_a_message_names_the_key_that_the_file_has() -> None:
    data = {"placewright": "cluster", "version": 1, "name": "c", "devices": [{"name": "a"}]}
    data["devices"][0]["launch"] = "soon"  # type: ignore[index]
    with pytest.raises(ConfigError, match=r"^devices\[0\]\.launch is 'soon': expected a number"):
        from_data(data)


LIMITED = {"placewright": "constraints", "limits": {"gpu0": 900}}


@pytest.mark.parametrize(("version", "usable"), [(1, 800), (2, 800), (3, 900)])
def test_limits_of_older_problems_include_the_reserve(
    diamond_problem: Problem, version: int, usable: int
) -> None:
    first, *others = diamond_problem.cluster.devices
    devices = (replace(first, memory=1000, reserve=100), *others)
    problem = replace(diamond_problem, cluster=replace(diamond_problem.cluster, devices=devices))
    data = to_data(problem)
    data["constraints"] = LIMITED | {"version": version}
    read = from_data(data)
    assert read.constraints.limits == {"gpu0": usable}
    assert read.arrays.capacity[0] == usable
    assert to_data(from_data(to_data(read))) == to_data(read)


def test_older_constraints_without_a_cluster_are_refused_with_the_remedy() -> None:
    message = "limits of version 2, which include the reserve of a device: take the reserve off"
    with pytest.raises(FileError, match=re.escape(message)):
        from_data(LIMITED | {"version": 2})
    assert from_data(LIMITED | {"version": 3}).limits == {"gpu0": 900}


@pytest.mark.parametrize(
    ("version", "written", "read"),
    [
        (3, ["1KiB"], ("1KiB",)),
        (2, ["1KiB"], ("gpu0=924B",)),  # gpu0 reserves 100 B; of gpu1 the limit was its memory
        (2, ["gpu0=1024"], ("gpu0=924B",)),  # a number without a unit was bytes
        (1, ["gpu1=300B, gpu0=1KiB"], ("gpu1=300B", "gpu0=924B")),
        (2, ["gpu7=1KiB"], ("gpu7=1024B",)),  # which the command line refuses
        (2, ["soup"], ("soup",)),
    ],
)
def test_limits_of_older_results_become_what_was_usable(
    split_result: Result, version: int, written: list[str], read: tuple[str, ...]
) -> None:
    first, second = split_result.devices
    devices = (replace(first, limit=924, reserve=100), replace(second, limit=300, reserve=0))
    result = replace(split_result, devices=devices, options={"limit": tuple(written)})
    data = to_data(result)
    assert from_data(data | {"version": version}).options["limit"] == read
