"""Batched list schedules agree with the list scheduler."""

from __future__ import annotations

import numpy as np
import pytest

from placewright import Cluster, Problem, zoo
from placewright.policies import grouping as groups
from placewright.scheduling.batched_schedules import BatchedSchedule, ScheduleOrder
from placewright.scheduling.list_scheduler import ListSchedule
from placewright.scheduling.ranks import upward_ranks


@pytest.mark.parametrize(
    "name", ["branches:modules=1", "layered:ops=60", "transformer:blocks=1,tokens=64"]
)
@pytest.mark.parametrize("seed", range(3))
def test_estimates_are_those_of_the_list_scheduler(name, seed):
    """The same ops on the same devices in the same order: starts, ends and bytes in use agree."""
    problem = Problem(zoo.load(name), Cluster.parse("2xP100+K80+cpu"))
    a = problem.arrays
    grouping = groups.group_ops(problem, "op", 1000)
    course = ScheduleOrder.of(problem, grouping, groups.legal_devices(problem, grouping))
    rng = np.random.default_rng(seed)
    choice = np.array([rng.choice(np.flatnonzero(row)) for row in course.legal])
    lists, listing = BatchedSchedule(course, 2), ListSchedule(problem)
    for turn in course.ranked_ops:
        ready = listing.ready(turn.op)
        found = lists.arrival_times(turn.inputs, turn.sources)[0]
        np.testing.assert_allclose(found, [ready, ready])
        if turn.group >= 0:
            lists.place_group(turn.group, np.repeat(choice[turn.group], 2))
        listing.add(turn.op, int(lists.placement[0, turn.op]))
        lists.add_op(turn)
        np.testing.assert_allclose(lists.used_bytes[0], listing.used)
    np.testing.assert_allclose(lists.start[1], listing.start)
    np.testing.assert_allclose(lists.end[0], listing.end)
    np.testing.assert_allclose(lists.device_free[1], listing.free)
    order = [turn.op for turn in course.ranked_ops]
    np.testing.assert_allclose(course.rank, upward_ranks(problem.arrays))
    assert order == [op for op in np.argsort(-course.rank, kind="stable") if a.scheduled[op]]
