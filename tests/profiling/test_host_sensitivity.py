"""Leaning: plans as if the host were slower or faster, and the one that is measured best chosen."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

import placewright as pw
from placewright.costs import Table
from placewright.graph import Graph, Op

torch = pytest.importorskip("torch")

from placewright.profiling.host_sensitivity import host_variants  # noqa: E402
from placewright.profiling.selection import MeasuredChoice  # noqa: E402
from placewright.runtime import Measurement, Meter  # noqa: E402
from placewright.solvers.cautious_choice import (  # noqa: E402
    CautiousChoice,
    host_matters,
    scale_host,
)

LAYERS = 6
MEASURED = 3.0
"""How many times as long as the table says the host really takes."""


@pytest.fixture
def problem() -> pw.Problem:
    """Layers whose weights do not all fit the GPU: 1 s of the host each, or of the copy."""
    ops = [Op("x", "input", outputs=(8,))]
    for at in range(LAYERS):
        ops.append(Op(f"w{at}", "weight", outputs=(1000,), resident=1000))
        ops.append(Op(f"y{at}", "linear", ((2 * at, 0), (2 * at + 1, 0)), outputs=(8,)))
    names = tuple(op.name for op in ops)
    takes = np.array([[0.01, 0.7] if op.kind == "linear" else [0.0, 0.0] for op in ops])
    link = pw.Link(1000.0, 1e-3)
    devices = (pw.Device("gpu0", "gpu", "G", 3500), pw.Device("cpu", "cpu", "C", 10**6))
    cluster = pw.Cluster("here", devices, {("gpu0", "cpu"): link, ("cpu", "gpu0"): link})
    return pw.Problem(Graph("layers", tuple(ops)), cluster, Table(names, ("G", "C"), takes))


def really(problem: pw.Problem, plan: pw.Plan) -> float:
    return pw.simulate(scale_host(problem, MEASURED), plan).step_time


class Real(Meter):
    """Measures what the simulator says of a slower host."""

    problem: pw.Problem

    def _request(self, plan):
        return Measurement(really(self.problem, plan))


def test_only_a_host_next_to_other_devices_is_scaled(problem):
    assert host_matters(problem)
    alone = replace(problem, cluster=problem.cluster.subset(["cpu"]))
    assert not host_matters(alone)
    before, after = problem.costs.seconds, scale_host(problem, 2.0).costs.seconds
    assert (after[:, 0] == before[:, 0]).all()
    assert (after[:, 1] == 2 * before[:, 1]).all()
    assert scale_host(problem, 1.0) is problem
    links = scale_host(problem, 1.0, 2.0).cluster.links
    assert links["cpu", "gpu0"].bandwidth == problem.cluster.links["cpu", "gpu0"].bandwidth / 2
    late = scale_host(problem, 1.0, wake_delay=0.5).cluster.links["gpu0", "cpu"]
    assert late.handoff_latency == problem.cluster.links["gpu0", "cpu"].latency + 0.5
    assert late.latency == problem.cluster.links["gpu0", "cpu"].latency
    less = scale_host(problem, 1.0, 1.0, 0.5)
    assert less.constraints.limits == {"gpu0": 1750}
    assert scale_host(less, 1.0, 1.0, 0.5).constraints.limits == {"gpu0": 875}


def test_measurements_choose_among_host_variants(problem):
    stop = pw.MaxEvaluations(3000)
    firm, *others = host_variants(problem, pw.solvers.Auto(), stop)
    assert others
    meter = Real("never built")
    meter.problem = problem
    choice = MeasuredChoice(meter, k=1)
    result = pw.solve(problem, pw.solvers.Auto(), stop, select=choice)
    assert any(one.candidate.found_by == "leaning" for one in choice.ranking)
    assert really(problem, result.plan) < really(problem, firm)


def two_ops(host: float) -> pw.Problem:
    """An op of 1 s on the GPU beside one that takes 1 s there, and so many on the host."""
    ops = (
        Op("x", "input", outputs=(8,)),
        Op("a", "linear", ((0, 0),), outputs=(8,)),
        Op("b", "linear", ((0, 0),), outputs=(8,)),
    )
    takes = np.array([[0.0, 0.0], [1.0, 50.0], [1.0, host]])
    link = pw.Link(1e6, 1e-3)
    devices = (pw.Device("gpu0", "gpu", "G", 3500), pw.Device("cpu", "cpu", "C", 10**6))
    cluster = pw.Cluster("here", devices, {("gpu0", "cpu"): link, ("cpu", "gpu0"): link})
    table = Table(tuple(op.name for op in ops), ("G", "C"), takes, machine="here")
    return pw.Problem(Graph("two", ops), cluster, table)


@pytest.mark.parametrize(("host", "used"), [(1.0, True), (1.9, False)])
def test_unmeasured_the_host_must_gain_enough(host, used):
    problem, stop = two_ops(host), pw.MaxEvaluations(500)
    best = pw.solve(problem, pw.solvers.Auto(), stop, select="best")
    assert len({*best.plan.placement[1:]}) == 2
    assert best.step_time < 2.0
    wary = pw.solve(problem, pw.solvers.Auto(), stop)  # a measured table: cautious by default
    # At 1.6 times 1.9 s the host would make the step half as long again as the GPU alone does.
    assert (len({*wary.plan.placement[1:]}) == 2) == used
    assert wary.step_time == pytest.approx(best.step_time if used else 2.0, abs=0.01)


def test_without_a_host_beside_others_the_best_is_taken():
    problem = two_ops(1.0)
    alone = replace(problem, cluster=problem.cluster.subset(["cpu"]))
    best = pw.solve(alone, pw.solvers.Auto())
    assert pw.solve(alone, pw.solvers.Auto(), select=CautiousChoice()).plan == best.plan


def test_a_plan_that_is_to_be_trusted_does_not_wake_the_host_for_little():
    """A last branch that the host could do beside the GPU, which ends a moment earlier then."""
    ops = [Op("x", "input", outputs=(8,))]
    for at in range(10):
        ops.append(Op(f"y{at}", "linear", ((at, 0),), outputs=(8,)))
    ops.append(Op("side", "sum", ((5, 0),), outputs=(8,)))
    takes = np.array([[0.0, 0.0], *[[3e-4, 1.0]] * 10, [2e-4, 3.2e-4]])
    link = pw.Link(1e9, 2e-5)
    devices = (pw.Device("gpu0", "gpu", "G", 10**6), pw.Device("cpu", "cpu", "C", 10**6))
    cluster = pw.Cluster("here", devices, {("gpu0", "cpu"): link, ("cpu", "gpu0"): link})
    names = tuple(op.name for op in ops)
    graph = Graph("side", tuple(ops), outputs=((10, 0), (11, 0)))
    problem = pw.Problem(graph, cluster, Table(names, ("G", "C"), takes))
    stop = pw.MaxEvaluations(300)
    best = pw.solve(problem, pw.solvers.Auto(), stop)
    assert best.plan.placement[11] == 1  # 3.0 ms against 3.2
    assert best.step_time < 3.1e-3
    wary = pw.solve(problem, pw.solvers.Auto(), stop, select=CautiousChoice())
    assert wary.plan.placement[11] == 1  # it ends in time even if the host wakes late
    tight = replace(graph, ops=(*ops[:11], replace(ops[11], inputs=((9, 0),))))
    problem = pw.Problem(tight, cluster, Table(names, ("G", "C"), takes))
    assert pw.solve(problem, pw.solvers.Auto(), stop).plan.placement[11] == 1
    assert (
        pw.solve(problem, pw.solvers.Auto(), stop, select=CautiousChoice()).plan.placement[11] == 0
    )
