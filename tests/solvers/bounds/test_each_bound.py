"""What each bound proves that the others do not, in sums done by hand."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from placewright import Cluster, Device, Graph, Link, Op, Problem, Table, judge
from placewright.solvers import bound
from placewright.solvers.bounds import Aggregates, every_bound
from placewright.solvers.bounds.relaxation import Relaxation


def gpus(count: int, bandwidth: float = 1.0, host: bool = False) -> Cluster:
    """Equal GPUs, and a host if asked for; every pair has its own wire each way."""
    devices = [Device(f"gpu{at}", memory=1000) for at in range(count)]
    devices += [Device("cpu", "cpu", memory=1000)] if host else []
    names = [device.name for device in devices]
    links = {pair: Link(bandwidth) for pair in itertools.permutations(names, 2)}
    return Cluster("gpus", tuple(devices), links)


def problem_of(ops: list[Op], seconds: list[float], cluster: Cluster, **more) -> Problem:
    """Each op takes these seconds on any GPU and ten times as long on a host."""
    factor = [10.0 if device.kind == "cpu" else 1.0 for device in cluster.devices]
    names = tuple(device.name for device in cluster.devices)
    table = Table(tuple(op.name for op in ops), names, np.outer(seconds, factor))
    return Problem(Graph("by hand", tuple(ops)), cluster, table, **more)


def by_name(problem: Problem, effort: str = "quick") -> dict[str, float]:
    return {found.name: found.seconds for found in every_bound(problem, effort)}


def test_packing_knows_that_ops_are_whole() -> None:
    # Three ops of 2 s on two devices: 3 s each if they could be cut, but one device has two.
    ops = [Op(f"op{at}") for at in range(3)]
    found = by_name(problem_of(ops, [2.0] * 3, gpus(2), objective="period"))
    assert found["work"] == pytest.approx(3)
    assert found["packing"] == pytest.approx(4, rel=1e-5)


def test_packing_knows_that_a_host_may_take_some() -> None:
    # The host takes 10 s for an op of 1 s, so of seven such ops on two devices it takes none in
    # 4 s (4 + 3), and one in 10 s.
    ops = [Op(f"op{at}") for at in range(7)]
    problem = problem_of(ops, [1.0] * 7, gpus(2, host=True), objective="period")
    assert bound(problem).seconds == pytest.approx(4, rel=1e-5)


@pytest.mark.parametrize("host", [0, 1])
def test_packing_knows_that_a_host_pays_for_no_transfer(host: int) -> None:
    # 8 s and 4 s with a tensor of 5 s between them, without overlap: together 12 s; the first on
    # the host 8 s there and 4 + 5 s on the GPU; the other way round 4 s and 8 + 5 s.
    ops = (Op("a", outputs=(5,)), Op("b", inputs=((0, 0),)))
    names = ("gpu", "cpu")
    devices = (Device("gpu", memory=9), Device("cpu", "cpu", memory=9))
    cluster = Cluster("two", devices, {pair: Link(1) for pair in (names, names[::-1])})
    costs = Table(("a", "b"), names, np.array([[8.0, 8.0], [4.0, 4.0]]))
    if host:  # and the same backwards
        costs = Table(("a", "b"), names, np.array([[4.0, 4.0], [8.0, 8.0]]))
    problem = Problem(Graph("two", ops), cluster, costs, objective="period", overlap=False)
    assert judge(problem, [[1, 0], [0, 1], [0, 0]]).value.min() == 9.0
    assert 8 * (1 - 1e-9) <= bound(problem).seconds <= 9


def test_equal_devices_with_unequal_links_are_as_near_as_the_nearest() -> None:
    # Two of three equal devices are 1 s apart, the third 100 s: a period of 3 s, not 6.
    cluster = gpus(3)
    links = {pair: Link(0.01 if "gpu2" in pair else 1.0) for pair in cluster.links}
    far = Cluster("far", cluster.devices, links)
    ops = [Op("a", outputs=(1,)), Op("b", inputs=((0, 0),))]
    for overlap, best in ((True, 3.0), (False, 4.0)):
        problem = problem_of(ops, [3.0, 3.0], far, objective="period", overlap=overlap)
        assert judge(problem, [[0, 1]]).value[0] == best
        assert bound(problem).seconds == pytest.approx(best)


def test_neighbours_are_taken_along_or_paid_for() -> None:
    # `hub` reads a tensor of 5 s from each of three ops of 4 s. Without overlap its device does all
    # of them, 1 + 12, or pays 5 s rather than 4 s for each: 13 s. Work alone says 13 / 4.
    ops = [Op(f"op{at}", outputs=(5,)) for at in range(3)]
    ops.append(Op("hub", inputs=((0, 0), (1, 0), (2, 0))))
    problem = problem_of(ops, [4.0, 4.0, 4.0, 1.0], gpus(4), objective="period", overlap=False)
    found = by_name(problem)
    assert found["work"] == pytest.approx(13 / 4)
    assert found["neighbourhood"] == pytest.approx(13, rel=1e-5)
    assert judge(problem, [[0, 0, 0, 0]]).value[0] == 13.0


def test_neighbours_on_a_host_cost_its_work_only() -> None:
    # On the host `hub` takes 1 × 10 s and pays nothing.
    ops = [Op(f"op{at}", outputs=(5,)) for at in range(3)]
    ops.append(Op("hub", inputs=((0, 0), (1, 0), (2, 0))))
    problem = problem_of(
        ops, [4.0, 4.0, 4.0, 1.0], gpus(4, host=True), objective="period", overlap=False
    )
    assert by_name(problem)["neighbourhood"] == pytest.approx(10, rel=1e-5)
    assert judge(problem, [[0, 1, 2, 4]]).value[0] == 10.0


def test_the_longest_way_lets_ops_take_turns_if_waiting_for_a_tensor_takes_longer() -> None:
    # `join` reads from two chains of 1 + 1 s. Both here: 4 s; one there: 2 s and 3 s to send it.
    ops = [
        Op("a0", outputs=(9,)),
        Op("a1", inputs=((0, 0),), outputs=(3,)),
        Op("b0", outputs=(9,)),
        Op("b1", inputs=((2, 0),), outputs=(3,)),
        Op("join", inputs=((1, 0), (3, 0))),
    ]
    problem = problem_of(ops, [1.0] * 5, gpus(2))
    found = by_name(problem)
    assert found["critical path"] == 3.0
    assert found["longest path"] == pytest.approx(5)
    assert judge(problem, [[0, 0, 0, 0, 0]]).value[0] == 5.0


def test_the_longest_way_sees_work_between_heads_and_tails() -> None:
    # 1 s, then six ops of 2 s on two devices that may follow at no cost, then 1 s.
    ops = [Op("first", outputs=(0,))]
    ops += [Op(f"op{at}", inputs=((0, 0),), outputs=(0,)) for at in range(6)]
    ops.append(Op("last", inputs=tuple((at, 0) for at in range(1, 7))))
    problem = problem_of(ops, [1.0, *[2.0] * 6, 1.0], gpus(2))
    found = by_name(problem)
    assert (found["critical path"], found["work"]) == (4.0, pytest.approx(7))
    assert found["longest path"] == pytest.approx(1 + 6 + 1)


def test_an_input_on_the_host_must_be_sent() -> None:
    ops = [Op("in", "input", outputs=(6,)), Op("a", inputs=((0, 0),))]
    problem = problem_of(ops, [0.0, 1.0], gpus(1, host=True))
    assert bound(problem).seconds == pytest.approx(7)  # 6 + 1, or 10 on the host


def test_patterns_count_sets_of_units() -> None:
    # Ten ops of 3 s and five of 4 s on three devices: 50 / 3 = 16.7 s, and packing says no more
    # than 17 (6 × 3 > 17, so a device of 17 s has at least ... 3 × 3 + 2 × 4 = 17): by hand 3 + 3
    # + 3 + 4 + 4 twice and 3 × 4 + 4 = 16 on the third.
    ops = [Op(f"op{at}") for at in range(15)]
    problem = problem_of(ops, [3.0] * 10 + [4.0] * 5, gpus(3), objective="period")
    best = judge(problem, [[0, 0, 0, 1, 1, 1, 2, 2, 2, 2, 0, 0, 1, 1, 2]]).value[0]
    assert best == 17.0
    assert bound(problem, "thorough").seconds == pytest.approx(17, rel=1e-3)


def test_patterns_see_transfers_that_single_units_do_not() -> None:
    # A chain of six ops of 2 s whose tensors take 1 s, on two devices without overlap: wherever it
    # is cut, a device has 3 × 2 + 1 s or more. Work says 6, and a unit alone 2 + 1 or 2 + 2.
    ops = [Op("op0", outputs=(1,))]
    ops += [Op(f"op{at}", inputs=((at - 1, 0),), outputs=(1,)) for at in range(1, 6)]
    problem = problem_of(ops, [2.0] * 6, gpus(2), objective="period", overlap=False)
    assert judge(problem, [[0, 0, 0, 1, 1, 1]]).value[0] == 7.0
    assert bound(problem).seconds < 7 * (1 - 1e-6)
    assert bound(problem, "thorough").seconds == pytest.approx(7, rel=1e-3)


def test_patterns_of_units_that_take_no_time_on_some_device_refute_nothing() -> None:
    # y takes no time on the GPU, but its input is 8 s away; on the host it takes 0.1 s.
    graph = Graph("tiny", (Op("x", "input", outputs=(8,)), Op("y", inputs=((0, 0),))))
    cluster = Cluster(
        "pair",
        (Device("gpu0", memory=100), Device("cpu", "cpu", memory=100)),
        {("gpu0", "cpu"): Link(1.0), ("cpu", "gpu0"): Link(1.0)},
    )
    table = Table(("x", "y"), ("gpu0", "cpu"), np.array([[0.0, 0.0], [0.0, 0.1]]))
    problem = Problem(graph, cluster, table, objective="period")
    assert judge(problem, [[1, 1]]).value[0] == 0.1
    assert bound(problem, "thorough").seconds == pytest.approx(0.1)
    assert bound(problem, "thorough").seconds <= 0.1


def test_any_prices_prove_a_bound_and_none_more_than_the_best() -> None:
    rng = np.random.default_rng(0)
    load = np.where(np.eye(3, dtype=bool), rng.random((20, 3))[:, :, None] + 0.1, 0.0)
    choices = Relaxation(load, np.array([1.0, 1.0, 2.0]), np.zeros(3))
    best, prices = choices.best_bound()
    assert choices.bound(prices) == best
    assert all(choices.bound(rng.random(3)) <= best * (1 + 1e-9) for _ in range(200))
    # The best can be reached by dividing items, so it is no less than half of any whole choice.
    assert best > 0


def test_a_choice_may_be_forbidden_at_a_price_of_nothing() -> None:
    load = np.array([[[1.0, 0.0], [np.inf, np.inf]], [[np.inf, np.inf], [0.0, 2.0]]])
    choices = Relaxation(load, np.ones(2), np.zeros(2))
    assert choices.bound(np.array([1.0, 0.0])) == pytest.approx(1)
    assert choices.best_bound()[0] == pytest.approx(2)


def test_many_unlike_items_are_solved_roughly_and_proved_on_all() -> None:
    rng = np.random.default_rng(1)
    seconds = rng.random((20_000, 2)) + 0.5
    load = np.where(np.eye(2, dtype=bool), seconds[:, :, None], 0.0)
    best, _ = Relaxation(load, np.ones(2), np.zeros(2)).best_bound()
    assert best > 0.49 * seconds.min(axis=1).sum()


def test_equal_devices_are_one_group() -> None:
    problem = problem_of([Op("a")], [1.0], gpus(4, host=True))
    layout = Aggregates.of(problem)
    assert layout.device_count.tolist() == [4, 1]
    assert layout.group_of.tolist() == [0, 0, 0, 0, 1]
