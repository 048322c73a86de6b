"""Partitioners: loads in proportion to speed, few cut edges, reproducible parts, no output."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest

from placewright import Cluster, Constraints, Device, Graph, Link, Op, Problem, Roofline, Table
from placewright.errors import MissingDependency
from placewright.solvers import METIS, KaHIP, MinCut, Scotch, solve
from placewright.solvers.partition import libraries
from placewright.solvers.partition.affinity import Affinity, link_seconds
from placewright.solvers.partition.libraries import CsrGraph
from placewright.solvers.partition.partition_solvers import _block_counts, _PartitionProblem
from placewright.transforms.bundles import Bundles

KINDS = (METIS, KaHIP, Scotch, MinCut)
every_kind = pytest.mark.parametrize("kind", KINDS)


def cluster(rates: dict[str, float], memory: int = 10**9, bandwidth: float = 1.0) -> Cluster:
    """Devices by name and rate, all linked alike; one called cpu is a host."""
    devices = tuple(
        Device(
            name,
            "cpu" if name == "cpu" else "gpu",
            memory=memory,
            rates={"float32": rate},
            memory_bandwidth=1e30,
        )
        for name, rate in rates.items()
    )
    links = {(one, two): Link(bandwidth) for one in rates for two in rates if one != two}
    return Cluster("linked", devices, links)


def chain(count: int, sizes: dict[int, int] | None = None) -> Graph:
    """Ops of 1 FLOP in a row, with tensors of 10 bytes but where `sizes` says otherwise."""
    sizes = sizes or {}
    ops = [
        Op(f"op{at}", flops=1, outputs=(sizes.get(at, 10),), inputs=((at - 1, 0),) if at else ())
        for at in range(count)
    ]
    return Graph("chain", tuple(ops))


def random_graph(seed: int, count: int) -> Graph:
    rng = np.random.default_rng(seed)
    ops = []
    for at in range(count):
        sources = {int(rng.integers(max(0, at - 30), at)) for _ in range(2)} if at else set()
        ops.append(
            Op(
                f"op{at}",
                flops=float(rng.integers(1, 50)),
                outputs=(int(rng.integers(1, 1000)),),
                inputs=tuple((source, 0) for source in sorted(sources)),
            )
        )
    return Graph("random", tuple(ops))


def loads(problem: Problem, device: np.ndarray) -> np.ndarray:
    a = problem.arrays
    return np.bincount(device, a.compute[np.arange(a.ops), device], a.devices)


@every_kind
def test_a_chain_is_cut_where_its_tensors_are_small(kind: type, exact: Roofline) -> None:
    # 40 ops in four tens; the tensors between tens are of 1 byte, all others of 10.
    graph = chain(40, {9: 1, 19: 1, 29: 1})
    problem = Problem(graph, cluster(dict.fromkeys(["a", "b", "c", "d"], 1.0)), exact)
    device = kind().place(problem, seed=1)
    parts = device.reshape(4, 10)
    assert (parts == parts[:, :1]).all()
    assert len(set(parts[:, 0])) == 4


@every_kind
def test_devices_get_work_in_proportion_to_their_speed(kind: type, exact: Roofline) -> None:
    # One device is twice as fast as the two others, so that all take 500 / 4 s.
    problem = Problem(chain(500), cluster({"a": 1.0, "b": 2.0, "c": 1.0}), exact)
    busy = loads(problem, kind().place(problem, seed=1))
    assert busy == pytest.approx([125, 125, 125], rel=0.07)


def test_a_team_weighs_its_mean_time_over_devices_of_unequal_taste() -> None:
    # Both devices take 6 s for both ops together, so they are equally fast; each is quick at one.
    ops = (Op("x", outputs=(1,)), Op("y", inputs=((0, 0),)))
    table = Table(("x", "y"), ("a", "b"), np.array([[1.0, 3.0], [5.0, 3.0]]))
    problem = Problem(Graph("taste", ops), cluster({"a": 1.0, "b": 1.0}), table)
    cut = _PartitionProblem.of(problem, np.arange(2))
    assert cut.share.tolist() == [0.5, 0.5]
    assert cut.csr.load.tolist() == [2**30 // 3, 2**30 - 2**30 // 3]  # 2 and 4 of 6 s


def test_scotch_uses_the_host_and_the_others_do_not(exact: Roofline) -> None:
    problem = Problem(chain(400), cluster({"a": 1.0, "b": 1.0, "cpu": 0.5}), exact)
    assert loads(problem, Scotch().place(problem, 1)) == pytest.approx([160, 160, 160], rel=0.06)
    for kind in (METIS, KaHIP, MinCut):
        assert loads(problem, kind().place(problem, 1)) == pytest.approx([200, 200, 0], rel=0.06)


def test_scotch_puts_what_is_tied_on_devices_that_are_near(exact: Roofline) -> None:
    # Two pairs of devices, far from each other. Of four tens of ops, 1 and 3 are tied by a wide
    # tensor, 2 and 4 too; those must share a pair.
    names = ["a", "b", "c", "d"]
    near = [{"a", "b"}, {"c", "d"}]
    links = {
        (one, two): Link(100.0 if {one, two} in near else 1.0)
        for one in names
        for two in names
        if one != two
    }
    devices = tuple(
        Device(name, memory=10**6, rates={"float32": 1.0}, memory_bandwidth=1e30) for name in names
    )
    ops = []
    for ten in range(4):
        for at in range(10):
            inputs = [(len(ops) - 1, 0)] if at else []
            if at == 5 and ten >= 2:
                inputs.append(((ten - 2) * 10 + 4, 1))  # from the middle of the ten before last
            ops.append(Op(f"{ten}.{at}", flops=1, outputs=(100, 30), inputs=tuple(inputs)))
    problem = Problem(Graph("tens", tuple(ops)), Cluster("pairs", devices, links), exact)
    seconds = link_seconds(problem)
    assert seconds[0, 1] < seconds[0, 2]
    assert seconds[0, 0] == 0.0
    for seed in range(1, 6):
        device = Scotch().place(problem, seed).reshape(4, 10)
        assert (device == device[:, :1]).all()
        pair = device[:, 0] // 2
        assert pair[0] == pair[2] != pair[1] == pair[3]


@every_kind
def test_the_same_seed_gives_the_same_parts_whatever_ran_before(
    kind: type, exact: Roofline
) -> None:
    # Scotch with threads of its own gives other parts each time from some thousand ops on.
    graph = random_graph(0, 6_000)
    rates = dict.fromkeys(["a", "b", "c", "d"], 1.0) | {"cpu": 0.25}
    problem = Problem(graph, cluster(rates), exact)
    first = kind().place(problem, seed=7)
    for other in KINDS:
        other().place(problem, seed=8)
    assert np.array_equal(kind().place(problem, seed=7), first)
    others = [kind().place(problem, seed) for seed in range(9, 15)]
    assert not all(np.array_equal(other, first) for other in others)


def test_another_process_gives_the_same_parts(exact: Roofline) -> None:
    code = """
import numpy as np
from placewright.solvers.partition import libraries
n = 5000
one = np.concatenate([np.arange(n - 1), np.arange(n - 40)])
other = np.concatenate([np.arange(1, n), np.arange(40, n)])
csr = libraries.CsrGraph.of(np.ones(n), one, other, np.arange(1.0, len(one) + 1))
share, apart = np.ones(4) / 4, 1 - np.eye(4)
parts = (
    libraries.metis(csr, share, 3),
    libraries.kahip(csr, 4, 3),
    libraries.scotch(csr, share, apart, 3),
)
print([int(p @ np.arange(n)) for p in parts])
"""
    runs = [
        subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
        for _ in range(2)
    ]
    assert runs[0].stdout == runs[1].stdout
    assert len(runs[0].stdout.splitlines()) == 1
    assert runs[0].stderr == ""


@every_kind
def test_nothing_is_written_to_the_terminal(
    kind: type, exact: Roofline, capfd: pytest.CaptureFixture[str]
) -> None:
    # METIS complains about more parts than ops, Scotch announces itself when it is imported.
    for name in [name for name in sys.modules if name.startswith("pyscotch")]:
        del sys.modules[name]
    devices = cluster(dict.fromkeys("abcdefgh", 1.0))
    print("before")
    solve(Problem(chain(2), devices, exact), kind())
    print("after")
    out, err = capfd.readouterr()
    assert out == "before\nafter\n"
    assert err == ""


@every_kind
def test_pinned_teams_are_left_where_they_must_be(kind: type, exact: Roofline) -> None:
    pins = {"op0": "cpu", "op7": "b"}
    problem = Problem(
        chain(20), cluster({"a": 1.0, "b": 1.0, "cpu": 0.1}), exact, Constraints(pins=pins)
    )
    device = kind().place(problem, seed=1)
    assert device[0] == 2
    assert device[7] == 1


@every_kind
@pytest.mark.parametrize("package", ["pymetis", "kahip", "pyscotch"])
def test_a_missing_package_says_what_to_install(
    kind: type, package: str, exact: Roofline, monkeypatch: pytest.MonkeyPatch
) -> None:
    needs = {METIS: "pymetis", KaHIP: "kahip", Scotch: "pyscotch", MinCut: "pyscotch"}
    problem = Problem(chain(9), cluster({"a": 1.0, "b": 1.0}), exact)
    monkeypatch.setitem(sys.modules, package, None)
    if needs[kind] != package:
        assert solve(problem, kind()).evaluations == 1
        return
    message = rf"{package} is not installed: pip install 'placewright\[partition\]'"
    with pytest.raises(MissingDependency, match=message):
        solve(problem, kind())


def test_integers_are_in_proportion_and_do_not_overflow() -> None:
    # The largest of seconds, and the smallest: sums must stay below 2**31, nothing at 0.
    load = np.array([1e300, 1e300, 1e-300, 0.0])
    one, other = np.array([0, 1, 2]), np.array([1, 2, 3])
    csr = CsrGraph.of(load, one, other, np.array([1e-9, 3e-9, 0.0]))
    assert csr.load.tolist() == [2**29, 2**29, 1, 1]
    assert csr.first_edge.tolist() == [0, 1, 3, 5, 6]
    assert csr.neighbour.tolist() == [1, 0, 2, 1, 3, 2]
    assert csr.edge_weight.tolist() == [2**27, 2**27, 3 * 2**27, 3 * 2**27, 1, 1]
    assert csr.edge_weight.sum() < 2**31
    assert CsrGraph.of(np.zeros(2), one[:0], other[:0], load[:0]).load.tolist() == [1, 1]


def test_a_tensor_read_by_many_costs_no_more_than_sending_it_everywhere(exact: Roofline) -> None:
    # `a` is 8 bytes for four readers, of which three other devices can hold all: 3 * 8 / 4 each.
    # `b` reads it twice, once through another op of its group; `e` reads what `d` makes, too.
    ops = (
        Op("a", outputs=(8,)),
        *(Op(name, outputs=(2,), inputs=((0, 0),)) for name in "bcd"),
        Op("e", outputs=(1,), inputs=((0, 0), (3, 0))),
        Op("b2", inputs=((0, 0),)),
    )
    problem = Problem(Graph("many", ops), cluster(dict.fromkeys("abcd", 1.0)), exact)
    ties = Affinity.between_groups(problem, np.array([0, 1, 2, 3, 4, 1]), devices=4)
    assert list(zip(ties.group.tolist(), ties.other_group.tolist(), strict=True)) == [
        (0, 1),
        (0, 2),
        (0, 3),
        (0, 4),
        (3, 4),
    ]
    assert ties.seconds.tolist() == [6.0, 6.0, 6.0, 6.0, 2.0]
    two = Affinity.between_groups(problem, np.array([0, 1, 2, 3, 4, 1]), devices=2)
    assert two.seconds.tolist() == [2.0, 2.0, 2.0, 2.0, 2.0]
    pull = ties.seconds_by_device(np.array([0, 0, 1, 1, 1]), 5, 2)
    assert pull.tolist() == [[6, 18], [6, 0], [6, 0], [6, 2], [6, 2]]


def test_equal_blocks_stand_for_unequal_shares() -> None:
    assert _block_counts(np.array([0.25, 0.25, 0.25, 0.25])).tolist() == [1, 1, 1, 1]
    assert _block_counts(np.array([0.5, 0.25, 0.25])).tolist() == [2, 1, 1]
    assert _block_counts(np.array([0.4, 0.6])).tolist() == [2, 3]


@every_kind
def test_a_problem_without_a_choice_needs_no_partitioner(
    kind: type, exact: Roofline, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("metis", "kahip", "scotch"):
        monkeypatch.delattr(libraries, name)
    problem = Problem(chain(3), cluster({"a": 1.0}), exact)
    assert kind().place(problem, seed=1).tolist() == [0, 0, 0]
    pins = Constraints(pins={"op*": "b"})
    pinned = Problem(chain(3), cluster({"a": 1.0, "b": 1.0}), exact, pins)
    assert kind().place(pinned, seed=1).tolist() == [1, 1, 1]


@every_kind
def test_a_partition_is_judged_as_it_is_and_repaired_if_asked(kind: type, exact: Roofline) -> None:
    # The first ten ops hold 20 bytes each, the last ten 10: equal times are unequal bytes.
    ops = [
        Op(
            f"op{at}",
            flops=1,
            outputs=(1,),
            resident=20 if at < 10 else 10,
            inputs=((at - 1, 0),) if at else (),
        )
        for at in range(20)
    ]
    problem = Problem(Graph("heavy", tuple(ops)), cluster({"a": 1.0, "b": 1.0}, 170), exact)
    blind, repaired = solve(problem, kind()), solve(problem, kind(repaired=True))
    assert blind.overflow > 0
    assert blind.evaluations == 1
    assert repaired.fits
    assert repaired.solver == f"{blind.solver}-repaired"
    bundles = Bundles.of(problem)
    assert bundles.bytes.sum() > 0.9 * problem.arrays.capacity.sum()
