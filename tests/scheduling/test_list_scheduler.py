"""The list scheduler, and HEFT, CPoP, m-ETF and m-SCT, which use it."""

from __future__ import annotations

from dataclasses import replace

import list_scheduler_reference
import numpy as np
import pytest

from placewright import Cluster, Constraints, Device, Graph, Link, Op, Problem, Roofline, Table, zoo
from placewright.scheduling.list_scheduler import ListSchedule
from placewright.scheduling.ranks import downward_ranks, upward_ranks
from placewright.solvers import METF, MSCT, CPoP, cpop, heft, m_etf, m_sct, solve

PAPER_SECONDS = [  # tasks 1 to 10 on P1, P2, P3: Topcuoglu et al. 2002, Figure 2
    [14, 16, 9],
    [13, 19, 18],
    [11, 13, 19],
    [13, 8, 17],
    [12, 13, 10],
    [13, 16, 9],
    [7, 15, 11],
    [5, 11, 14],
    [18, 12, 20],
    [21, 7, 16],
]
PAPER_EDGES = {  # (task, task): communication
    (1, 2): 18,
    (1, 3): 12,
    (1, 4): 9,
    (1, 5): 11,
    (1, 6): 14,
    (2, 8): 19,
    (2, 9): 16,
    (3, 7): 23,
    (4, 8): 27,
    (4, 9): 23,
    (5, 9): 13,
    (6, 8): 15,
    (7, 10): 17,
    (8, 10): 11,
    (9, 10): 13,
}


def linked(*names: str, memory: int = 10**6) -> Cluster:
    """Equal GPUs of 1 FLOP a second, linked at 1 byte a second."""
    links = {(one, two): Link(1) for one in names for two in names if one != two}
    devices = (
        Device(name, memory=memory, rates={"float32": 1.0}, memory_bandwidth=1e30) for name in names
    )
    return Cluster("linked", tuple(devices), links)


@pytest.fixture
def paper() -> Problem:
    """The ten tasks of the HEFT paper; a tensor for each edge, so that each has its own time."""
    edges = list(PAPER_EDGES)
    made = {task: [edge for edge in edges if edge[0] == task] for task in range(1, 11)}
    ops = tuple(
        Op(
            f"n{task}",
            inputs=tuple(
                (one - 1, made[one].index((one, two))) for one, two in edges if two == task
            ),
            outputs=tuple(PAPER_EDGES[edge] for edge in made[task]) or (0,),
        )
        for task in range(1, 11)
    )
    names = ("P1", "P2", "P3")
    costs = Table(tuple(op.name for op in ops), names, np.array(PAPER_SECONDS))
    return Problem(Graph("paper", ops), linked(*names), costs)


def test_upward_ranks_are_those_of_the_paper(paper: Problem) -> None:
    table = [108.000, 77.000, 80.000, 80.000, 69.000, 63.333, 42.667, 35.667, 44.333, 14.667]
    assert upward_ranks(paper.arrays) == pytest.approx(table, abs=5e-4)


def test_heft_schedules_the_papers_example_in_80(paper: Problem) -> None:
    schedule = heft.schedule(paper)
    assert schedule.step_time == 80.0
    assert schedule.start[0] == 0.0
    assert schedule.end[9] == 80.0


def test_downward_ranks_are_those_of_the_paper(paper: Problem) -> None:
    # n2 is 13 + 18 from the start, n9 another 50/3 + 16, n10 another 50/3 + 13.
    table = [0.0, 31.0, 25.0, 22.0, 24.0, 27.0, 62.333, 66.667, 63.667, 93.333]
    assert downward_ranks(paper.arrays) == pytest.approx(table, abs=5e-4)


def test_cpop_schedules_the_papers_example_in_86(paper: Problem) -> None:
    """Its critical path is n1, n2, n9, n10, 108 long and fastest on P2: 16 + 19 + 12 + 7."""
    upward = upward_ranks(paper.arrays)
    path = cpop.critical_path_ops(paper, upward)
    assert [at + 1 for at in path] == [1, 2, 9, 10]
    through = upward + downward_ranks(paper.arrays)
    assert through[path] == pytest.approx(108)
    listing = cpop.schedule(paper)
    assert listing.step_time == pytest.approx(86)
    assert listing.device[path].tolist() == [1, 1, 1, 1]


def test_cpop_takes_a_device_that_the_critical_path_may_use(exact: Roofline) -> None:
    """gpu0 is forbidden for all but the last op of the chain, so the path runs on gpu1."""
    ops = [Op("a", flops=4, outputs=(1,))]
    ops += [Op(name, flops=4, outputs=(1,), inputs=((at, 0),)) for at, name in enumerate("bc")]
    forbid = {"a": ("gpu0",), "b": ("gpu0",)}
    problem = Problem(
        Graph("chain", tuple(ops)), linked("gpu0", "gpu1"), exact, Constraints(forbid=forbid)
    )
    assert cpop.schedule(problem).device.tolist() == [1, 1, 1]


def test_cpop_leaves_the_path_where_its_device_is_full(exact: Roofline) -> None:
    """Each op holds 60 bytes for good and a device 100, so a chain of two needs two devices."""
    ops = (
        Op("a", flops=4, outputs=(1,), resident=60),
        Op("b", flops=4, outputs=(1,), resident=60, inputs=((0, 0),)),
    )
    problem = Problem(Graph("pair", ops), linked("gpu0", "gpu1", memory=100), exact)
    result = solve(problem, CPoP())
    assert result.fits
    assert sorted(result.plan.placement.tolist()) == [0, 1]


def test_heft_puts_an_op_into_a_gap(exact: Roofline) -> None:
    # `long` waits on gpu1 for `far`'s 4 bytes; `short`, of lower rank, fits into the wait.
    graph = Graph(
        "gap",
        (
            Op("near", flops=1, outputs=(0,)),
            Op("far", flops=1, outputs=(4,)),
            Op("long", flops=9, inputs=((0, 0), (1, 0)), outputs=(0,)),
            Op("short", flops=2, outputs=(0,)),
        ),
    )
    pins = Constraints(pins={"near": "gpu1", "far": "gpu0", "long": "gpu1", "short": "gpu1"})
    schedule = heft.schedule(Problem(graph, linked("gpu0", "gpu1"), exact, pins))
    assert schedule.start.tolist() == [0.0, 0.0, 5.0, 1.0]  # long at 1 + 4, short right after near
    assert schedule.step_time == 14.0


def test_a_contended_schedule_reckons_with_a_busy_channel(exact: Roofline) -> None:
    # Two tensors of 3 bytes from gpu0 to gpu1, made at 1 and 2: there at 4 and 5, or at 4 and 7.
    graph = Graph(
        "two_sends",
        (
            Op("one", flops=1, outputs=(3,)),
            Op("two", flops=1, outputs=(3,)),
            Op("join", flops=1, inputs=((0, 0), (1, 0))),
        ),
    )
    pins = Constraints(pins={"one": "gpu0", "two": "gpu0", "join": "gpu1"})
    problem = Problem(graph, linked("gpu0", "gpu1"), exact, pins)
    assert heft.schedule(problem, contended=False).step_time == 5.0 + 1
    assert heft.schedule(problem, contended=True).step_time == 7.0 + 1


def test_heft_leaves_out_a_device_that_is_full(exact: Roofline) -> None:
    # Two ops of 6 resident bytes on devices of 10 must part; with 12 bytes they stay together.
    graph = Graph(
        "full",
        (
            Op("one", flops=1, outputs=(0,), resident=6),
            Op("two", flops=1, outputs=(0,), resident=6, inputs=((0, 0),)),
        ),
    )
    problem = Problem(graph, linked("gpu0", "gpu1", memory=10), exact)
    assert sorted(heft.schedule(problem).device.tolist()) == [0, 1]
    roomy = Problem(graph, linked("gpu0", "gpu1", memory=12), exact)
    assert heft.schedule(roomy).device.tolist() == [0, 0]


def test_the_ledger_lets_go_of_what_nobody_reads_any_more(exact: Roofline) -> None:
    ops = [Op("op0", outputs=(10,))]
    ops += [Op(f"op{at}", inputs=((at - 1, 0),), outputs=(10,)) for at in range(1, 5)]
    problem = Problem(Graph("chain", tuple(ops)), linked("gpu0", "gpu1", memory=20), exact)
    listing = ListSchedule(problem)
    for op in range(4):
        assert listing.choices(op).tolist() == [True, True]
        listing.add(op, 0)
        assert listing.used.tolist() == [10, 0]  # its own output; its input is gone
    listing.add(4, 1)  # the copy of what it read is gone, its output is the graph's
    assert listing.used.tolist() == [0, 10]


def test_the_ledger_counts_a_view_with_what_it_views(exact: Roofline) -> None:
    graph = Graph(
        "views",
        (
            Op("made", outputs=(10,)),
            Op("view", kind="view", inputs=((0, 0),), outputs=(10,), aliases=((0, 0),)),
            Op("read", inputs=((1, 0),), outputs=(1,)),
        ),
    )
    listing = ListSchedule(Problem(graph, linked("gpu0"), exact))
    used = []
    for op in range(3):
        listing.add(op, 0)
        used.append(int(listing.used[0]))
    assert used == [10, 10, 1]


def test_a_weight_goes_with_the_first_op_added_that_reads_it(exact: Roofline) -> None:
    graph = Graph(
        "tied",
        (
            Op("w", kind="weight", outputs=(5,)),
            Op("one", flops=1, inputs=((0, 0),)),
            Op("two", flops=1, inputs=((0, 0),)),
        ),
    )
    listing = ListSchedule(Problem(graph, linked("gpu0", "gpu1"), exact))
    listing.add(2, 1)
    assert listing.device.tolist() == [1, -1, 1]
    assert listing.ready(1).tolist() == [5.0, 0.0]  # 5 bytes at 1 byte a second, or none


def test_m_etf_starts_whatever_can_start_first(exact: Roofline, diamond: Graph) -> None:
    # top 0-1 and left 1-11 on gpu0; right's input is on gpu1 at 3, before gpu0 is free at 11;
    # bottom: left's output is on gpu1 at 13, right's ends there at 13 and would be on gpu0 at 15.
    schedule = m_etf.schedule(Problem(diamond, linked("gpu0", "gpu1"), exact))
    assert schedule.device.tolist() == [0, 0, 1, 1]
    assert schedule.start.tolist() == [0.0, 1.0, 3.0, 13.0]
    result = solve(Problem(diamond, linked("gpu0", "gpu1"), exact), METF())
    assert result.step_time == schedule.step_time == 14.0


def test_m_etf_counts_what_an_op_loses_on_a_slow_device(exact: Roofline) -> None:
    # Two ops of 10 FLOPs at 10 and 1 a second: one after the other on the fast device (2 s) is
    # better than at once (10 s), though the slow one is free at once.
    fast = Device("fast", memory=100, rates={"float32": 10.0}, memory_bandwidth=1e30)
    slow = Device("slow", memory=100, rates={"float32": 1.0}, memory_bandwidth=1e30)
    cluster = Cluster("mixed", (slow, fast), {("fast", "slow"): Link(1), ("slow", "fast"): Link(1)})
    graph = Graph("pair", (Op("one", flops=10), Op("two", flops=10)))
    assert m_etf.schedule(Problem(graph, cluster, exact)).device.tolist() == [1, 1]


def test_m_etf_spills_over_when_a_device_is_full(exact: Roofline) -> None:
    ops = [Op("op0", outputs=(0,), resident=10, flops=1)]
    ops += [
        Op(f"op{at}", inputs=((at - 1, 0),), outputs=(0,), resident=10, flops=1)
        for at in range(1, 4)
    ]
    problem = Problem(Graph("chain", tuple(ops)), linked("gpu0", "gpu1", memory=20), exact)
    assert m_etf.schedule(problem).device.tolist() == [0, 0, 1, 1]
    assert solve(problem, METF()).fits


@pytest.fixture
def fork(exact: Roofline) -> Problem:
    """An op with two equal children, of which the second is dear to send to."""
    graph = Graph(
        "fork",
        (
            Op("parent", flops=4, outputs=(1, 3)),
            Op("cheap", flops=4, inputs=((0, 0),)),
            Op("dear", flops=4, inputs=((0, 1),)),
        ),
    )
    return Problem(graph, linked("gpu0", "gpu1"), exact)


@pytest.mark.parametrize("limit", [100, 0])  # the linear programme, and what stands in for it
def test_the_favourite_is_the_child_that_is_dear_to_send_to(fork: Problem, limit: int) -> None:
    # Together with `dear` the last finish is 4 + 1 + 4 = 9, with `cheap` it is 4 + 3 + 4 = 11.
    assert m_sct.favourites(fork, limit).tolist() == [2, -1, -1]


@pytest.mark.parametrize("limit", [10_000, 0])
@pytest.mark.parametrize("seed", range(5))
def test_no_op_is_the_favourite_of_two(seed: int, limit: int, exact: Roofline) -> None:
    rng = np.random.default_rng(seed)
    ops = [Op("op0", flops=1)]
    for at in range(1, 60):
        sources = sorted(set(rng.integers(max(0, at - 8), at, 2).tolist()))
        reads = tuple((source, 0) for source in sources)
        size, flops = int(rng.integers(1, 4)), float(rng.integers(1, 9)) * 1e-6
        ops.append(Op(f"op{at}", flops=flops, inputs=reads, outputs=(size,)))
    favourite = m_sct.favourites(
        Problem(Graph("random", tuple(ops)), linked("a", "b"), exact), limit
    )
    chosen = favourite[favourite >= 0]
    assert len(set(chosen.tolist())) == len(chosen) > 0
    for parent, child in enumerate(favourite.tolist()):
        assert child < 0 or parent in [source for source, _ in ops[child].inputs]


def test_a_device_waits_for_a_favourite_child(exact: Roofline) -> None:
    # gpu0 has run `a` at 1. Its favourite `b` waits there for 1 byte of `d`, made on gpu1 at 2.
    # `c` could start there at 1, but could start anywhere only at 1 + 4, so it is not urgent.
    graph = Graph(
        "wait",
        (
            Op("a", flops=1, outputs=(9, 4)),
            Op("d", flops=2, outputs=(1,)),
            Op("c", flops=5, inputs=((0, 1),), outputs=(0,)),
            Op("b", flops=1, inputs=((0, 0), (1, 0)), outputs=(0,)),
        ),
    )
    pins = Constraints(pins={"a": "gpu0", "d": "gpu1"})
    problem = Problem(graph, linked("gpu0", "gpu1"), exact, pins)
    hasty = m_etf.schedule(problem)
    assert (hasty.device[2], hasty.start[2]) == (0, 1.0)
    patient = m_etf.schedule(problem, np.array([3, -1, -1, -1]))
    assert (patient.device[3], patient.start[3]) == (0, 3.0)
    assert patient.start[2] >= 4.0


def test_m_sct_without_edges_is_m_etf(exact: Roofline) -> None:
    graph = Graph("apart", tuple(Op(f"op{at}", flops=at + 1) for at in range(6)))
    problem = Problem(graph, linked("gpu0", "gpu1"), exact)
    assert solve(problem, MSCT()).plan == solve(problem, METF()).plan


@pytest.mark.parametrize("slack", [0.0, 1.15, 1.6])
@pytest.mark.parametrize(
    ("name", "cluster"),
    [
        ("layered:ops=120", "2xP100+K80+cpu"),
        ("branches:modules=2", "3xP100+cpu"),
        ("transformer:blocks=2,tokens=64", "P100+V100+cpu"),
        ("series-parallel:ops=90", "4xK80"),
    ],
)
def test_compiled_schedules_are_those_of_plain_python(name, cluster, slack, monkeypatch):
    graph = zoo.load(name)
    problem = Problem(graph, Cluster.parse(cluster))
    if slack:  # so little memory that it decides
        names = [device.name for device in problem.cluster.devices]
        total = sum(op.resident for op in graph.ops) + max(sum(op.outputs) for op in graph.ops) * 4
        limits = {each: int(slack * total / len(names)) for each in names}
        problem = replace(problem, constraints=Constraints(limits=limits))
    favourite = m_sct.favourites(problem)
    kept_back = np.arange(problem.arrays.devices, dtype=np.int64) * 1000
    makers = [
        (heft, lambda: heft.schedule(problem, False)),
        (heft, lambda: heft.schedule(problem, True, kept_back)),
        (cpop, lambda: cpop.schedule(problem)),
        (m_etf, lambda: m_etf.schedule(problem)),
        (m_etf, lambda: m_etf.schedule(problem, favourite, kept_back)),
        (m_etf, lambda: m_etf.schedule(problem, favourite, contended=False)),
    ]
    for module, make in makers:
        compiled = make()
        with monkeypatch.context() as patch:
            patch.setattr(module, "ListSchedule", list_scheduler_reference.ListSchedule)
            plain = make()
        for what in ("device", "start", "end", "free", "used"):
            assert getattr(compiled, what).tolist() == getattr(plain, what).tolist(), what


def test_what_is_no_op_or_device_is_refused(exact: Roofline) -> None:
    listing = ListSchedule(Problem(Graph("one", (Op("one", flops=1),)), linked("gpu0"), exact))
    for wrong in ((1, 0), (-1, 0), (0, 1), (0, -1)):
        with pytest.raises(IndexError, match="no such"):
            listing.add(*wrong)
    with pytest.raises(ValueError, match="shape"):
        listing.earliest_first(np.zeros((2, 1)), np.zeros(1, dtype=np.int64))
