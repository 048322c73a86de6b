"""Issue order: in-order devices run ops as a ready executor would start them."""

from __future__ import annotations

import numpy as np
import pytest

from placewright import Plan, judge, simulate

torch = pytest.importorskip("torch")

from placewright.training.go.demonstrations import (  # noqa: E402
    DemonstrationTask,
)
from placewright.training.go.issue_order import IssueOrderEnvironment, issue_priorities  # noqa: E402


@pytest.fixture(autouse=True)
def one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def test_in_order_devices_are_issued_what_a_ready_executor_would_start():
    problem = DemonstrationTask("layered:ops=60,seed=1", "3xP100", "in order").problem()
    rng = np.random.default_rng(0)
    device = rng.integers(0, 3, size=(2, 60)).astype(np.int32)
    rank = -np.arange(60.0)[None].repeat(2, axis=0)
    orders = issue_priorities(problem, device, rank)
    ready = DemonstrationTask("layered:ops=60,seed=1", "3xP100", "ready").problem()
    expected = simulate(ready, Plan.of(ready, device[1], rank[1])).start
    assert (orders[1] == expected).all()
    assert issue_priorities(ready, device, rank) is rank
    assert issue_priorities(problem, device, None) is None
    environment = IssueOrderEnvironment(problem)
    judged = environment.judge(device, "test", rank)
    assert judged.seconds.tolist() == judge(problem, device, orders).value.tolist()
    best = judge(problem, environment.best_placement[None], environment.best_priority[None])
    assert best.value[0] == environment.best_key[1]
