"""The split of memory: every byte that the simulator counts, told apart by what it is for."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from strategies import plans, problems

from placewright import Plan, Problem, simulate
from placewright.reporting.memory import memory_breakdown


def by_rules(problem, timeline):
    """(device, time) → bytes of outputs and workspace alive just after it, by rule 8 alone."""
    a, plan = problem.arrays, timeline.plan
    sends = timeline.transfers
    device = plan.placement
    staging = np.full(a.devices, -1) if plan.staging is None else plan.staging

    def readers(tensor, place):
        found = a.readers[a.first_reader[tensor] : a.first_reader[tensor + 1]]
        return [op for op in found if device[op] == place and a.scheduled[op]]

    def streamed(tensor, place):
        source = a.producer[tensor]
        return a.is_weight[source] and device[source] != place and staging[place] >= 0

    def is_alias(tensor):
        source, viewed = a.producer[tensor], a.alias[tensor]
        return viewed >= 0 and a.scheduled[source] and not streamed(viewed, device[source])

    def until(tensor, place):
        source = a.producer[tensor]
        ends = [timeline.end[op] for op in readers(tensor, place)]
        if device[source] == place:
            ends.append(timeline.end[source])
            ends += [np.inf] if a.is_output[tensor] else []
            ends += sends.end[(sends.tensor == tensor) & (sends.reader < 0)].tolist()
        for output in np.flatnonzero(a.alias == tensor):
            if device[a.producer[output]] == place and is_alias(output):
                ends.append(until(output, place))
        return max(ends, default=0.0)

    lives = []
    for tensor in range(len(a.sizes)):
        source = a.producer[tensor]
        if not (a.is_resident[source] or is_alias(tensor)):
            used = a.scheduled[source] or until(tensor, device[source]) > 0
            start = timeline.start[source]
            if used:
                lives.append(
                    (device[source], start, until(tensor, device[source]), a.sizes[tensor])
                )
    for op in np.flatnonzero(a.scheduled):
        lives.append((device[op], timeline.start[op], timeline.end[op], a.workspace[op]))
    return lives


@settings(max_examples=100, deadline=None)
@given(st.data())
def test_activations_are_what_the_rules_say_and_copies_the_rest(data):
    problem = data.draw(problems())
    device, priority, staging = data.draw(plans(problem))
    timeline = simulate(problem, Plan.of(problem, device, priority, staging=staging))
    found = memory_breakdown(problem, timeline)
    lives = by_rules(problem, timeline)
    for place, over in enumerate(found.curves):
        rows = timeline.memory.device == place
        total = found.weights[place] + found.staging[place] + over.activations + over.copies
        np.testing.assert_array_equal(total, timeline.memory.used[rows])
        assert (over.activations >= 0).all()
        assert (over.copies >= 0).all()
        for at, time in enumerate(over.time):
            if at + 1 < len(over.time) and over.time[at + 1] == time:
                continue  # a round before the last of its instant
            alive = sum(
                size for where, start, end, size in lives if where == place and start <= time < end
            )
            assert over.activations[at] == alive


def test_the_split_diamond_by_hand(diamond_problem: Problem):
    timeline = simulate(diamond_problem, Plan.of(diamond_problem, [0, 0, 1, 0]))
    found = memory_breakdown(diamond_problem, timeline)
    # gpu1 holds top's copy (2 bytes) from 1 s on, right's output from 3 s, until it is sent at 15 s
    there = found.curves[1]
    assert there.time.tolist() == [0.0, 1.0, 3.0, 13.0, 15.0]
    assert there.copies.tolist() == [0, 2, 2, 0, 0]
    assert there.activations.tolist() == [0, 0, 2, 2, 0]
    # the copy of right's output is on gpu0 from the start of its send to the end of bottom
    here = found.curves[0]
    assert here.copies[(here.time >= 13) & (here.time < 16)].tolist() == [2, 2]


def test_weights_and_staging_stay_for_the_whole_step(layers_problem: Problem):
    plan = Plan.of(layers_problem, [1, 1, 0, 1, 1, 0], staging={"gpu0": 60})
    found = memory_breakdown(layers_problem, simulate(layers_problem, plan))
    assert found.weights.tolist() == [0, 100]
    assert found.staging.tolist() == [60, 0]
    # the input is sent as a tensor, while streamed weights go into the staging room
    assert found.curves[0].copies.max() == 8
