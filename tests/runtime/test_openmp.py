"""A thread's OpenMP team: released, and made again."""

from __future__ import annotations

import os
import threading

import pytest

from placewright.runtime import real_devices
from placewright.runtime.openmp import release_openmp_team
from placewright.runtime.real_devices import RealDevice

torch = pytest.importorskip("torch")
TASKS = "/proc/self/task"

pytestmark = pytest.mark.skipif(not os.path.isdir(TASKS), reason="needs Linux")


def threads():
    return len(os.listdir(TASKS))


def in_thread(work):
    """In a thread of its own, so that no other test has its team."""
    found = []
    thread = threading.Thread(target=lambda: found.append(work()))
    thread.start()
    thread.join()
    return found[0]


def work_together():
    return float((torch.ones(1 << 20) + 1).sum())


def test_a_team_is_released_and_made_again():
    def work():
        torch.set_num_threads(3)  # which starts threads of other libraries, too
        work_together()
        busy = threads()
        told = release_openmp_team()
        return busy, told, threads(), work_together(), threads()

    busy, told, home, made, again = in_thread(work)
    if not told:
        pytest.skip("this PyTorch has no OpenMP")
    assert home == busy - 2
    assert again == busy
    assert made == 2 << 20


def test_a_thread_that_waits_for_a_device_has_no_team(monkeypatch):
    monkeypatch.setattr(
        real_devices, "run_in_main_arena", lambda work: work()
    )  # in its first thread

    def work():
        torch.set_num_threads(3)
        work_together()
        before = threads()
        core = min(os.sched_getaffinity(0))
        return before, RealDevice("cpu", cores=(core,)).run(threads)

    before, meanwhile = in_thread(work)
    assert meanwhile == before - 2 + 1  # the team is released, and one thread works
