"""The kernels equal the reference bit for bit on any graph, cluster and plan."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from strategies import STREAMING, plans, problems

from placewright import Plan, judge, simulate
from placewright.simulator import period, reference

ANY = settings(
    max_examples=200,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)


def expected(problem, device, priority, staging):
    return reference.run(
        problem.arrays, problem.discipline == "in order", device, priority, staging
    )


@ANY
@given(st.data())
def test_the_kernel_equals_the_reference_bit_for_bit(data):
    streaming = data.draw(st.booleans())
    problem = data.draw(problems(kinds=STREAMING) if streaming else problems())
    device, priority, staging = data.draw(plans(problem, staged=streaming))
    trace = expected(problem, device, priority, staging)
    timeline = simulate(problem, Plan.of(problem, device, priority, staging=staging))

    assert timeline.step_time == trace.step_time
    assert timeline.peak.tolist() == trace.peak
    assert timeline.start.tolist() == trace.start
    assert timeline.end.tolist() == trace.end
    moved = timeline.transfers
    columns = (
        moved.tensor,
        moved.source,
        moved.target,
        moved.channel,
        moved.reader,
        moved.start,
        moved.end,
    )
    assert list(zip(*(column.tolist() for column in columns), strict=True)) == trace.transfers
    memory = timeline.memory
    rows = list(
        zip(memory.device.tolist(), memory.time.tolist(), memory.used.tolist(), strict=True)
    )
    assert rows == trace.memory
    rooms = None if staging is None else staging.tolist()
    assert timeline.period == period.reference_period(
        problem.arrays, device.tolist(), rooms, problem.overlap
    )


@settings(ANY, max_examples=80)  # of three plans each
@given(st.data())
def test_a_batch_equals_its_plans_one_by_one_on_any_number_of_threads(data):
    problem = data.draw(problems())
    rows = [data.draw(plans(problem)) for _ in range(3)]
    device = np.stack([row[0] for row in rows])
    priority = None
    if all(row[1] is not None for row in rows):
        priority = np.stack([row[1] for row in rows])
    verdict = judge(problem, device, priority, threads=data.draw(st.sampled_from([1, 2, 5])))
    for at, row in enumerate(device):
        trace = expected(problem, row, None if priority is None else priority[at], None)
        assert verdict.step_time[at] == trace.step_time
        assert verdict.peak[at].tolist() == trace.peak
        over = np.maximum(np.array(trace.peak) - problem.arrays.capacity, 0).sum()
        assert verdict.overflow[at] == over
        assert verdict.period[at] == period.reference_period(
            problem.arrays, row.tolist(), None, problem.overlap
        )


@pytest.mark.slow
@settings(ANY, max_examples=5_000)
@given(st.data())
def test_the_kernel_equals_the_reference_on_many_larger_problems(data):
    problem = data.draw(problems(most=30, devices=6))
    device, priority, staging = data.draw(plans(problem))
    trace = expected(problem, device, priority, staging)
    timeline = simulate(problem, Plan.of(problem, device, priority, staging=staging))
    assert timeline.step_time == trace.step_time
    assert timeline.end.tolist() == trace.end
    assert timeline.peak.tolist() == trace.peak
