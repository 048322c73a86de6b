"""What GO reads of a plan: transfers, loads and times."""

from __future__ import annotations

import numpy as np
import pytest

from placewright import Cluster, Plan, Problem, simulate, zoo

torch = pytest.importorskip("torch")

from placewright.policies.go.observation import GoObservation  # noqa: E402
from placewright.policies.go.plan_features import pair_features  # noqa: E402

HERE, INTO, LOAD, LATE = 0, 1, 7, 15


def problem(text="layered:ops=40,seed=1,weights=yes", cluster="3xP100+cpu", **how) -> Problem:
    return Problem(zoo.load(text), Cluster.parse(cluster), **how)


def told(given: Problem, plan: np.ndarray) -> np.ndarray:
    seen = GoObservation.of(given, 10**6)
    return pair_features(seen.tensors(torch.device("cpu")), torch.as_tensor(plan)).numpy()


def test_what_is_told_of_transfers_and_loads_is_what_a_plan_means():
    """By hand: seconds of all tensors from elsewhere, and all work on a device after a move."""
    given = problem(cluster="3xP100+cpu")
    seen, a = GoObservation.of(given, 10**6), given.arrays
    rng = np.random.default_rng(0)
    plan = rng.integers(0, a.devices, size=(2, len(seen)))
    found = told(given, plan)
    mean = np.where(seen.legal, seen.seconds, np.inf).min(axis=1).mean()
    for row in range(2):
        assert (found[row, :, :, HERE] == np.eye(a.devices)[plan[row]]).all()
        unit = int(np.argmax(np.bincount(seen.unit[a.producer[a.inputs]])))  # most read
        reads = {
            (int(t), int(seen.unit[a.producer[t]]))
            for op in np.flatnonzero(seen.unit == unit)
            for t in a.inputs[a.first_input[op] : a.first_input[op + 1]]
            if seen.unit[a.producer[t]] != unit
        }
        seconds = np.zeros(a.devices)
        for device in range(a.devices):
            for tensor, source in reads:
                link = a.link_class[plan[row, source], device]
                seconds[device] += a.transfer[link, tensor] / mean if link >= 0 else 0.0
        expected = np.log1p(np.minimum(seconds - seconds.min(), 20))
        np.testing.assert_allclose(found[row, unit, :, INTO], expected, rtol=1e-4, atol=1e-5)
        load = np.array([seen.seconds[plan[row] == d, d].sum() for d in range(a.devices)])
        own = seen.seconds[unit] * (np.arange(a.devices) != plan[row, unit])
        share = 1 / (1 / seen.seconds.sum(axis=0)).sum()
        expected = np.clip((load + own) / share - 1, -1, 4)
        np.testing.assert_allclose(found[row, unit, :, LOAD], expected, rtol=1e-3, atol=1e-3)


def test_what_is_told_of_times_is_when_things_would_be_there():
    """By hand, for the unit that reads most: its inputs' arrival on each device, less its start."""
    given = problem(cluster="3xP100+cpu", discipline="ready")
    seen, a = GoObservation.of(given, 10**6), given.arrays
    plan = np.random.default_rng(1).integers(0, 4, size=len(seen))
    run = simulate(given, Plan.of(given, seen.legalize(plan), -seen.path_lengths[0]))
    start, end = seen.unit_times(run.start[None], run.end[None])
    on = seen.tensors(torch.device("cpu"))
    times = torch.as_tensor(start), torch.as_tensor(end)
    found = pair_features(on, torch.as_tensor(plan[None]), times).numpy()[0]
    assert (pair_features(on, torch.as_tensor(plan[None])).numpy()[0, :, :, LATE:] == 0).all()
    edges = list(zip(seen.features.edges.source, seen.features.edges.target, strict=True))
    unit = max(range(len(seen)), key=lambda at: sum(target == at for _, target in edges))
    for device in range(4):
        arrive = [
            end[0, source] + (0 if link < 0 else seen.features.edges.seconds[link, at])
            for at, (source, target) in enumerate(edges)
            if target == unit
            for link in [a.link_class[plan[source], device]]
        ]
        late = max(arrive) - start[0, unit]
        expected = np.sign(late) * np.log1p(abs(late)) / 2
        assert found[unit, device, LATE] == pytest.approx(expected, rel=1e-3, abs=1e-4)
    assert (found[:, :, LATE][np.arange(len(seen)), plan] <= 1e-4).all()  # all had come by then
    assert ((found[:, :, LATE + 2] >= 0) & (found[:, :, LATE + 2] <= 1)).all()
