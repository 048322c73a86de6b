"""Fuzz: whatever a file holds, loading it gives a noun or one line, and nothing else."""

from __future__ import annotations

import copy
import gzip
import json
import tomllib
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from placewright import Cluster, Device, Graph, Link, Op, load
from placewright.errors import PlacewrightError
from placewright.files import from_data, to_data, to_json
from placewright.files.toml import to_toml

if TYPE_CHECKING:
    from pathlib import Path

KINDS = (
    *("graph", "cluster", "costs", "constraints", "problem", "plan", "timeline", "result"),
    *("workload", "workload_plan", "workload_result"),
)
# The nouns cannot be changed, so examples may share them.
fuzz = settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)

odd_values = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-3, 3),
    st.sampled_from([2**31, 2**62, 2**63 - 1, 2**63, -(2**63), 10**25, 10**400]),
    st.floats(),
    st.sampled_from([-0.0, 1e-320, 1.7e308]),
    st.text(max_size=4),
    st.sampled_from(
        ["inf", "nan", "16 GiB", "gpu0", "w1", "roofline", "\ud800", "a\nb", "*", "P100"]
    ),
    st.recursive(
        st.integers() | st.text(max_size=2),
        lambda inner: (
            st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=2), inner, max_size=3)
        ),
        max_leaves=5,
    ),
)


def loaded_or_refused(path: Path, kind: str | None = None) -> object:
    """The noun that a file holds, which can be saved again; or None after one line of complaint."""
    try:
        noun: object = load(path, kind)
    except PlacewrightError as error:
        complaint = str(error)
    else:
        data = to_data(noun)  # type: ignore[arg-type]
        assert to_data(from_data(json.loads(to_json(data)))) == data
        return noun
    assert len(complaint.splitlines()) == 1
    assert complaint.startswith(f"{path}: ")
    return None


def places(data: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """The way to every value inside some data."""
    inner = (
        data.items()
        if isinstance(data, dict)
        else enumerate(data)
        if isinstance(data, list)
        else ()
    )
    return [step for key, one in inner for step in [(*path, key), *places(one, (*path, key))]]


def mutate(data: Any, draw: st.DataObject) -> None:
    """Remove, replace, rename, repeat or move one value somewhere inside some data."""
    known = places(data)
    if not known:
        return
    *way, key = draw.draw(st.sampled_from(known))
    parent = data
    for step in way:
        parent = parent[step]
    match draw.draw(st.sampled_from(["remove", "replace", "replace", "rename", "repeat", "move"])):
        case "remove":
            del parent[key]
        case "replace":
            parent[key] = draw.draw(odd_values)
        case "rename" if isinstance(parent, dict):
            parent[draw.draw(st.text(max_size=3) | st.just(f"{key}s"))] = parent.pop(key)
        case "repeat" if isinstance(parent, list):
            parent.append(copy.deepcopy(parent[key]))
        case "move" if isinstance(parent, list):
            parent.insert(0, parent.pop(key))


@pytest.mark.parametrize("kind", KINDS)
@settings(fuzz, max_examples=80)
@given(draw=st.data())
def test_a_file_with_wrong_values_is_read_or_refused(
    nouns: dict[str, Any], tmp_path: Path, kind: str, draw: st.DataObject
) -> None:
    data = copy.deepcopy(to_data(nouns[kind]))
    for _ in range(draw.draw(st.integers(1, 3))):
        mutate(data, draw)
    path = tmp_path / "fuzzed.json"
    path.write_text(json.dumps(data))  # NaN and Infinity among others
    loaded_or_refused(path, draw.draw(st.sampled_from([None, kind, "plan"])))


@pytest.mark.parametrize("kind", ["cluster", "constraints"])
@settings(fuzz, max_examples=80)
@given(draw=st.data())
def test_toml_with_wrong_values_is_read_or_refused(
    nouns: dict[str, Any], tmp_path: Path, kind: str, draw: st.DataObject
) -> None:
    data = copy.deepcopy(to_data(nouns[kind]))
    mutate(data, draw)
    path = tmp_path / "fuzzed.toml"
    path.write_bytes(to_toml(data).encode(errors="surrogatepass"))
    loaded_or_refused(path)


@pytest.mark.parametrize("suffix", [".json", ".json.gz", ".toml"])
@settings(fuzz, max_examples=120)
@given(draw=st.data())
def test_a_damaged_file_is_read_or_refused(
    nouns: dict[str, Any], tmp_path: Path, suffix: str, draw: st.DataObject
) -> None:
    kinds = ("cluster", "constraints") if suffix == ".toml" else KINDS
    data = to_data(nouns[draw.draw(st.sampled_from(kinds))])
    content = bytearray((to_toml(data) if suffix == ".toml" else to_json(data)).encode())
    if suffix == ".json.gz":
        content = bytearray(gzip.compress(bytes(content)))
    for _ in range(draw.draw(st.integers(1, 4))):
        at = draw.draw(st.integers(0, max(0, len(content) - 1)))
        match draw.draw(st.sampled_from(["flip", "cut", "drop", "insert", "repeat"])):
            case "flip" if content:
                content[at] ^= 1 << draw.draw(st.integers(0, 7))
            case "cut":
                del content[at:]
            case "drop":
                del content[at : at + draw.draw(st.integers(1, 20))]
            case "insert":
                tokens = st.sampled_from([b"NaN", b"1e999", b"[", b"}", b'"', b"null", b"-", b"0"])
                content[at:at] = draw.draw(st.binary(max_size=4) | tokens)
            case "repeat":
                content[at:at] = content[at : at + draw.draw(st.integers(1, 40))]
    path = tmp_path / f"fuzzed{suffix}"
    path.write_bytes(bytes(content))
    loaded_or_refused(path)


@settings(fuzz, max_examples=200)
@given(
    content=st.binary(max_size=60)
    | st.text(max_size=60).map(lambda text: text.encode(errors="ignore"))
)
def test_any_bytes_at_all_are_refused(tmp_path: Path, content: bytes) -> None:
    for name in ("fuzzed.json", "fuzzed.toml", "fuzzed.json.gz"):
        path = tmp_path / name
        path.write_bytes(content)
        assert loaded_or_refused(path) is None


sizes = st.integers(0, 2**50)
names = st.text(max_size=5)


@st.composite
def graphs(draw: st.DrawFn) -> Graph:
    """Any graph of up to eight ops."""
    ops: list[Op] = []
    for name in draw(st.lists(names, min_size=1, max_size=8, unique=True)):
        tensors = [(at, output) for at, op in enumerate(ops) for output in range(len(op.outputs))]
        inputs = tuple(draw(st.lists(st.sampled_from(tensors), max_size=3))) if tensors else ()
        outputs = tuple(draw(st.lists(sizes, max_size=3)))
        pairs = [
            (output, source) for output in range(len(outputs)) for source in range(len(inputs))
        ]
        ops.append(
            Op(
                name,
                kind=draw(st.sampled_from(["op", "view"] + ["weight"] * (not inputs))),
                inputs=inputs,
                outputs=outputs,
                flops=draw(st.floats(0, allow_infinity=False)),
                bytes_moved=draw(sizes),
                resident=draw(sizes),
                workspace=draw(sizes),
                dtype=draw(names),
                module=draw(names),
                phase=draw(st.sampled_from(["forward", "backward", "update"])),
                colocate=draw(st.none() | names),
                runs_on=tuple(draw(st.lists(names, max_size=2))),
                aliases=tuple(draw(st.lists(st.sampled_from(pairs), max_size=2))) if pairs else (),
            )
        )
    tensors = [(at, output) for at, op in enumerate(ops) for output in range(len(op.outputs))]
    kept = st.lists(st.sampled_from(tensors), max_size=3).map(tuple) if tensors else st.just(())
    return Graph(draw(names), tuple(ops), draw(st.none() | kept))


@st.composite
def clusters(draw: st.DrawFn) -> Cluster:
    """Any cluster of up to four devices."""
    words = st.text(
        st.characters(codec="utf-8", exclude_characters="+@(), "), min_size=1, max_size=4
    )
    rates = st.floats(0, exclude_min=True)
    seconds = st.floats(0, 1e15)  # routes add up, to 1e18 at most
    devices = tuple(
        Device(
            name,
            kind=draw(words),
            model=draw(names),
            memory=draw(sizes),
            reserve=draw(sizes),
            rates=draw(st.dictionaries(names, rates, max_size=2)),
            memory_bandwidth=draw(rates),
            launch_overhead=draw(seconds),
            issuer=draw(st.none() | words),
        )
        for name in draw(st.lists(words, min_size=1, max_size=4, unique=True))
    )
    links = st.builds(Link, rates, seconds, st.just("") | words)
    pairs = [(a.name, b.name) for a in devices for b in devices if a is not b]
    return Cluster(draw(names), devices, {pair: draw(links) for pair in pairs})


@settings(fuzz)
@given(graph=graphs())
def test_any_graph_comes_back_from_json(graph: Graph) -> None:
    loaded = from_data(json.loads(to_json(to_data(graph))))
    assert loaded == graph
    assert loaded.fingerprint == graph.fingerprint


@settings(fuzz)
@given(cluster=clusters())
def test_any_cluster_comes_back_from_json_and_toml(cluster: Cluster) -> None:
    data = to_data(cluster)
    for again in (json.loads(to_json(data)), tomllib.loads(to_toml(data))):
        assert from_data(again) == cluster
        assert from_data(again).fingerprint == cluster.fingerprint
