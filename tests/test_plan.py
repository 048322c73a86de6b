"""Plans: what makes one whole, and how one from elsewhere is fitted onto a problem."""

from __future__ import annotations

import re
from dataclasses import replace

import numpy as np
import pytest

from placewright import Cluster, Constraints, Graph, Op, Plan, Problem
from placewright.errors import PlanError
from placewright.files import from_data, plan_for, to_data
from placewright.plan import check_placement


def test_a_plan_carries_names_and_fingerprints(diamond_problem: Problem) -> None:
    plan = Plan.of(diamond_problem, [0, 0, 1, 0])
    assert plan.ops == ("top", "left", "right", "bottom")
    assert plan.device_names == ("gpu0", "gpu1")
    assert plan.placement.tolist() == [0, 0, 1, 0]
    assert plan.placement.dtype == np.int32
    assert plan.graph == diamond_problem.graph.fingerprint
    assert plan.cluster == diamond_problem.cluster.fingerprint
    assert (plan.priority, plan.fusion, plan.staging) == (None, None, None)
    assert len(plan) == 4


def test_a_plan_cannot_be_changed(diamond_problem: Problem) -> None:
    given = np.zeros(4, dtype=np.int32)
    plan = Plan.of(diamond_problem, given, given, given, [-1, 5])
    for array in (plan.placement, plan.priority, plan.fusion, plan.staging):
        assert array is not None
        with pytest.raises(ValueError, match="read-only"):
            array[0] = 1
    given[0] = 1  # the caller's own array is another one
    assert plan.placement.tolist() == [0, 0, 0, 0]


def test_a_plan_shows_how_many_ops_each_device_has(diamond_problem: Problem) -> None:
    assert repr(Plan.of(diamond_problem, [0, 0, 1, 0])) == "Plan(gpu0: 3, gpu1: 1)"
    assert repr(Plan.of(diamond_problem, [0, 0, 0, 0])) == "Plan(gpu0: 4, gpu1: 0)"


def test_plans_are_equal_when_all_their_parts_are(diamond_problem: Problem) -> None:
    plan = Plan.of(diamond_problem, [0, 0, 1, 0])
    same = Plan.of(diamond_problem, np.array([0, 0, 1, 0]))
    assert plan == same
    assert hash(plan) == hash(same)
    others = [
        Plan.of(diamond_problem, [0, 1, 0, 0]),
        Plan.of(diamond_problem, [0, 0, 1, 0], priority=[0, 1, 2, 3]),
        Plan.of(diamond_problem, [0, 0, 1, 0], fusion=[0, 0, -1, -1]),
        Plan.of(diamond_problem, [0, 0, 1, 0], staging=[-1, -1]),
        replace(plan, ops=("a", "b", "c", "d")),
        replace(plan, device_names=("a", "b")),
    ]
    assert all(plan != other for other in others)
    assert plan != "plan"


def test_staging_is_given_by_device_or_for_all(diamond_problem: Problem) -> None:
    by_name = Plan.of(diamond_problem, [0] * 4, staging={"gpu1": 100})
    assert by_name.staging is not None
    assert by_name.staging.tolist() == [-1, 100]
    assert by_name == Plan.of(diamond_problem, [0] * 4, staging=[-1, 100])


@pytest.mark.parametrize(
    ("parts", "message"),
    [
        (
            {"placement": [0, 0, 0]},
            "the plan's placement has shape (3,): expected one entry for each of 4 ops",
        ),
        (
            {"placement": [[0, 0, 0, 0]]},
            "the plan's placement has shape (1, 4): expected one entry for each of 4 ops",
        ),
        (
            {"placement": 0},
            "the plan's placement has shape (): expected one entry for each of 4 ops",
        ),
        (
            {"placement": ["gpu0", "gpu0", "gpu0", "gpu0"]},
            "the plan's placement holds <U4 values: expected numbers",
        ),
        ({"placement": [0, 0, 2, 0]}, "a plan names device number 2: expected 0 to 1"),
        ({"placement": [0, 0, 0, -1]}, "a plan names device number -1: expected 0 to 1"),
        (
            {"priority": [0, 1]},
            "the plan's priority has shape (2,): expected one entry for each of 4 ops",
        ),
        (
            {"priority": [0, 1, 2, np.nan]},
            "a priority is not a finite number: expected one finite number per op",
        ),
        (
            {"priority": [0, 1, 2, np.inf]},
            "a priority is not a finite number: expected one finite number per op",
        ),
        (
            {"fusion": [0] * 5},
            "the plan's fusion has shape (5,): expected one entry for each of 4 ops",
        ),
        ({"staging": {"cpu": 5}}, "the plan stages on 'cpu': the devices are gpu0, gpu1"),
        (
            {"staging": [5]},
            "the plan's staging is [5]: expected bytes >= 0, or -1 for none, per device",
        ),
        (
            {"staging": {"gpu0": -2}},
            "the plan stages -2 bytes on 'gpu0': expected 0 to 2**50 bytes, or -1 for none",
        ),
    ],
)
def test_a_malformed_plan_is_refused(
    diamond_problem: Problem, parts: dict[str, object], message: str
) -> None:
    with pytest.raises(PlanError, match=f"^{re.escape(message)}$"):
        Plan.of(diamond_problem, **({"placement": [0] * 4} | parts))  # type: ignore[arg-type]


def test_a_plan_that_breaks_a_pin_is_refused(diamond: Graph, in_a_row: Cluster) -> None:
    constraints = Constraints(forbid={"left": ("middle",)})
    problem = Problem(diamond, in_a_row, constraints=constraints)
    message = "op 'left' is on 'middle': the constraints allow it on left, right"
    with pytest.raises(PlanError, match=f"^{message}$"):
        Plan.of(problem, [0, 1, 0, 0])


def test_a_plan_that_parts_a_unit_is_refused(diamond: Graph, two_devices: Cluster) -> None:
    constraints = Constraints(colocate=(("left", "bottom"),))
    problem = Problem(diamond, two_devices, constraints=constraints)
    message = "ops 'left' and 'bottom' must share a device: they are on 'gpu1' and 'gpu0'"
    with pytest.raises(PlanError, match=f"^{message}$"):
        Plan.of(problem, [0, 1, 0, 0])


def test_many_placements_are_checked_at_once(diamond_problem: Problem) -> None:
    check_placement(diamond_problem, np.zeros((3, 4), dtype=np.int32))
    check_placement(diamond_problem, np.zeros((0, 4), dtype=np.int32))
    with pytest.raises(PlanError, match=r"^a plan names device number 7: expected 0 to 1$"):
        check_placement(diamond_problem, np.array([[0, 0, 0, 0], [0, 0, 7, 0]], dtype=np.int32))
    with pytest.raises(PlanError, match=r"^a plan has 3 ops: the graph has 4$"):
        check_placement(diamond_problem, np.zeros((2, 3), dtype=np.int32))


def edited(plan: Plan, **devices: str | None) -> Plan:
    """A plan as it comes back from a person's edit of its file; None deletes an op."""
    data = to_data(plan)
    data["placement"] |= devices
    data["placement"] = {op: name for op, name in data["placement"].items() if name is not None}
    loaded: Plan = from_data(data)
    return loaded


def test_a_plan_of_the_same_problem_fits_as_it_is(diamond_problem: Problem) -> None:
    plan = Plan.of(diamond_problem, [0, 0, 1, 0], [4, 3, 2, 1], [0, 0, -1, -1], {"gpu1": 9})
    assert plan_for(diamond_problem, plan) == plan


def test_a_plan_is_fitted_by_names_whatever_the_order(
    diamond: Graph, two_devices: Cluster, diamond_problem: Problem
) -> None:
    top, left, right, bottom = diamond.ops
    other_graph = Graph("other", (top, right, left, replace(bottom, inputs=((2, 0), (1, 0)))))
    other_cluster = Cluster("other", two_devices.devices[::-1], two_devices.links)
    plan = Plan.of(diamond_problem, [0, 0, 1, 0], [4, 3, 2, 1], [5, 5, 6, -1], {"gpu1": 9})
    other = Problem(other_graph, other_cluster)
    fitted = plan_for(other, plan)
    assert fitted.ops == ("top", "right", "left", "bottom")
    assert fitted.device_names == ("gpu1", "gpu0")
    assert fitted.placement.tolist() == [1, 0, 1, 1]
    assert fitted.priority is not None
    assert fitted.priority.tolist() == [4, 2, 3, 1]
    assert fitted.fusion is not None
    assert fitted.fusion.tolist() == [5, 6, 5, -1]
    assert fitted.staging is not None
    assert fitted.staging.tolist() == [9, -1]
    assert (fitted.graph, fitted.cluster) == (other_graph.fingerprint, other_cluster.fingerprint)


def test_a_hand_edited_plan_is_fitted(diamond_problem: Problem) -> None:
    plan = edited(Plan.of(diamond_problem, [0] * 4), left="gpu1")
    assert plan_for(diamond_problem, plan).placement.tolist() == [0, 1, 0, 0]


def test_a_plan_fits_a_smaller_cluster_that_has_all_it_uses(
    diamond: Graph, shared_wire: Cluster
) -> None:
    plan = Plan.of(Problem(diamond, shared_wire), [1, 1, 2, 1], staging={"gpu1": 4})
    smaller = Problem(diamond, shared_wire.subset(["gpu1", "cpu"]))
    fitted = plan_for(smaller, plan)
    assert fitted.device_names == ("gpu1", "cpu")
    assert fitted.placement.tolist() == [0, 0, 1, 0]
    assert fitted.staging is not None
    assert fitted.staging.tolist() == [4, -1]


def test_a_plan_that_misses_ops_is_refused(diamond_problem: Problem) -> None:
    plan = edited(Plan.of(diamond_problem, [0] * 4), right=None, bottom=None)
    message = "the plan places 2 ops, graph 'diamond' has 4: op 'right' has no device"
    with pytest.raises(PlanError, match=f"^{message}$"):
        plan_for(diamond_problem, plan)


def test_a_plan_with_an_op_too_many_is_refused(diamond_problem: Problem) -> None:
    plan = edited(Plan.of(diamond_problem, [0] * 4), rigth="gpu0")
    message = (
        "the plan places op 'rigth', which graph 'diamond' does not have: did you mean 'right'?"
    )
    with pytest.raises(PlanError, match=f"^{re.escape(message)}$"):
        plan_for(diamond_problem, plan)


def test_a_plan_on_an_unknown_device_is_refused(diamond_problem: Problem) -> None:
    plan = edited(Plan.of(diamond_problem, [0] * 4), right="gpu7")
    message = (
        "the plan uses device 'gpu7', which cluster 'two_devices' does not have: "
        "did you mean 'gpu1'?"
    )
    with pytest.raises(PlanError, match=f"^{re.escape(message)}$"):
        plan_for(diamond_problem, plan)


def test_a_plan_that_stages_on_an_unknown_device_is_refused(
    diamond: Graph, shared_wire: Cluster
) -> None:
    plan = Plan.of(Problem(diamond, shared_wire), [1] * 4, staging={"gpu0": 4})
    smaller = Problem(diamond, shared_wire.subset(["gpu1", "cpu"]))
    message = "the plan stages on device 'gpu0', which cluster 'shared_wire:gpu1,cpu' does not have"
    with pytest.raises(PlanError, match=f"^{re.escape(message)}: did you mean 'gpu1'"):
        plan_for(smaller, plan)


def test_a_fitted_plan_must_keep_the_constraints(diamond: Graph, two_devices: Cluster) -> None:
    plan = Plan.of(Problem(diamond, two_devices), [0] * 4)
    pinned = Problem(diamond, two_devices, constraints=Constraints(pins={"top": "gpu1"}))
    message = "op 'top' is on 'gpu0': the constraints allow it on gpu1"
    with pytest.raises(PlanError, match=f"^{message}$"):
        plan_for(pinned, plan)


def test_a_plan_of_a_changed_graph_of_the_same_names_is_accepted(
    chain: Graph, two_devices: Cluster
) -> None:
    plan = Plan.of(Problem(chain, two_devices), [0, 1, 1])
    slower = Graph("slower", tuple(replace(op, flops=100) for op in chain.ops))
    fitted = plan_for(Problem(slower, two_devices), plan)
    assert fitted == plan
    assert fitted.graph == slower.fingerprint != plan.graph


def test_a_plan_without_ops_fits_nothing(two_devices: Cluster) -> None:
    empty = Plan((), (), np.zeros(0, dtype=np.int32))
    with pytest.raises(PlanError, match=r"^the plan places 0 ops, graph 'g' has 1: op 'a' has no"):
        plan_for(Problem(Graph("g", (Op("a"),)), two_devices), empty)
