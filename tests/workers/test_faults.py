"""Workers that die, hang or lose their node: no result is lost, and no process is left over."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import tempfile
import threading
import time
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from process_states import children, is_running, wait_until
from worker_tasks import EndProcess, HangOnce, LogAndScale, Pid, Scale, StartChild

from placewright.errors import WorkerError
from placewright.workers import open_workers

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture(params=["processes:2", "ray:auto"])
def process_workers(request):
    """Workers in processes of their own, which a test may kill."""
    if request.param.startswith("ray"):
        request.getfixturevalue("ray_cluster")
    with open_workers(request.param) as workers:
        yield workers


def kill_during_batch(workers, folder: Path, rng: random.Random) -> None:
    """Run a batch, kill a worker at a random moment of it, and compare the results."""
    folder.mkdir()
    lost, items = workers.lost, list(range(rng.randrange(1000), 1000 + rng.randrange(8, 24)))
    results: list[list[int]] = []
    task = LogAndScale(str(folder), seconds=0.3 / len(items))
    thread = threading.Thread(target=lambda: results.append(workers.map(task, items)))
    thread.start()
    wait_until(lambda: any("." not in log.name for log in folder.iterdir()))
    time.sleep(rng.uniform(0, 0.1))
    pids = {int(log.name.split("-")[0]) for log in folder.iterdir()}
    os.kill(rng.choice(sorted(pids)), signal.SIGKILL)
    thread.join(120)
    assert results == [[3 * item for item in items]]
    # An idle one is missed by the next batch.
    assert workers.map(Scale(2), range(4)) == [0, 2, 4, 6]
    assert workers.lost <= lost + 1


def test_a_batch_is_right_although_a_worker_is_killed_three_times(process_workers, tmp_path):
    rng = random.Random(time.time_ns())
    for number in range(3):
        kill_during_batch(process_workers, tmp_path / str(number), rng)
    assert process_workers.lost >= 1


@pytest.mark.slow
def test_a_batch_is_right_although_a_worker_is_killed_fifty_times(process_workers, tmp_path):
    rng = random.Random(time.time_ns())
    for number in range(50):
        kill_during_batch(process_workers, tmp_path / str(number), rng)
    assert process_workers.lost >= 25


def remove_node_during_batch(workers, cluster, rng: random.Random) -> None:
    """Remove the second node while both run a batch; another takes its place afterwards."""
    assert len(cluster.list_all_nodes()) == 2
    node = next(node for node in cluster.list_all_nodes() if node is not cluster.head_node)
    items = list(range(20))
    results: list[list[int]] = []
    thread = threading.Thread(
        target=lambda: results.append(workers.map(Scale(7, seconds=0.05), items))
    )
    thread.start()
    time.sleep(rng.uniform(0, 0.5))
    cluster.remove_node(node, allow_graceful=False)
    thread.join(120)
    assert results == [[7 * item for item in items]]
    cluster.add_node(num_cpus=1)


def test_a_batch_is_right_although_a_node_is_removed_three_times(ray_cluster):
    with open_workers("ray:auto") as workers:
        for _ in range(3):  # the worker of a lost node begins again on the next one
            wait_until(lambda: len(set(workers.map(Pid(0.05), range(8)))) == 2)
            remove_node_during_batch(workers, ray_cluster, random.Random(time.time_ns()))


@pytest.mark.slow
def test_a_batch_is_right_although_nodes_are_removed_fifty_times(ray_cluster):
    rng = random.Random(time.time_ns())
    with open_workers("ray:auto") as workers:
        for _ in range(50):
            wait_until(lambda: len(set(workers.map(Pid(0.05), range(8)))) == 2)
            remove_node_during_batch(workers, ray_cluster, rng)


@pytest.mark.parametrize("spec", ["threads:2", "processes:2", "ray:auto"])
def test_a_worker_that_hangs_is_replaced_and_its_chunk_given_out_again(spec, request, tmp_path):
    if spec.startswith("ray"):
        request.getfixturevalue("ray_cluster")
    with open_workers(spec, timeout=60) as workers:
        assert workers.map(Scale(1), [1, 2]) == [1, 2]  # it has started
        task = HangOnce(str(tmp_path / "marker"))
        assert workers.map(task, range(6), timeout=0.5) == [1, 2, 3, 4, 5, 6]
        assert workers.lost >= 1


@pytest.mark.parametrize(
    ("spec", "how", "cause"),
    [
        ("threads:2", "exit", "it ended with SystemExit: 3"),
        ("processes:2", "exit", "its process ended with status 3"),
        ("processes:2", "kill", "its process was ended by SIGKILL"),
        ("ray:auto", "kill", "its Ray actor failed: ActorDiedError"),
    ],
)
def test_a_chunk_that_always_fails_is_one_error_that_says_which(spec, how, cause, request):
    if spec.startswith("ray"):
        request.getfixturevalue("ray_cluster")
    with open_workers(spec, attempts=2) as workers:
        futures = [workers.submit(EndProcess(9, how), chunk) for chunk in ([1, 2], [8, 9])]
        assert futures[0].result(120) == [1, 2]
        expected = f"task EndProcess on items 0 to 1 failed 2 times; the last time, {cause}"
        with pytest.raises(WorkerError) as caught:
            futures[1].result(120)
        assert str(caught.value).startswith(expected)
        assert workers.map(Scale(), range(3)) == [0, 2, 4]


def test_the_error_names_the_items_by_their_place_in_the_batch():
    with (
        open_workers("threads:2", attempts=1) as workers,
        pytest.raises(WorkerError, match="EndProcess on items 5 to 9 failed once; the last time"),
    ):
        workers.map(EndProcess(7, "exit"), range(10))


def test_workers_that_cannot_be_started_are_an_error_and_no_wait(monkeypatch):
    monkeypatch.setattr(sys, "executable", "/nowhere/python")
    with (
        open_workers("processes:2", attempts=2) as workers,
        pytest.raises(WorkerError, match="no worker could be started: its process could not be"),
    ):
        workers.map(Scale(), [1])


def test_an_idle_worker_that_was_killed_is_replaced():
    with open_workers("processes:2") as workers:
        for pid in set(workers.map(Pid(0.05), range(4))):
            os.kill(pid, signal.SIGKILL)
        assert workers.map(Scale(), range(4)) == [0, 2, 4, 6]


def test_closing_ends_a_worker_that_hangs_and_what_it_has_started(tmp_path):
    marker = tmp_path / "pids"
    with open_workers("processes:1") as workers:
        future = workers.submit(StartChild(str(marker)), [1])
        wait_until(lambda: marker.exists() and len(marker.read_text().split()) == 2)
    with pytest.raises(WorkerError, match="StartChild on items 0 to 0: the workers were closed"):
        future.result(60)
    for pid in map(int, marker.read_text().split()):
        wait_until(lambda pid=pid: not is_running(pid))


DRIVER = """
import sys, time
sys.path.insert(0, {folder!r})
from worker_tasks import Pid, Print, Scale
from placewright.workers import open_workers

with open_workers({spec!r}) as workers:
    workers.map(Pid(0.02), range(8))
    workers.map(Print(), ["printed"])
    print("ready", flush=True)
    {then}
"""


@contextmanager
def run_driver(spec: str, then: str) -> Iterator[tuple[subprocess.Popen[str], set[int]]]:
    """A driver whose workers run, and all the processes below it; it is killed at the end."""
    code = DRIVER.format(folder=str(Path(__file__).parent), spec=spec, then=then)
    with (
        tempfile.TemporaryFile("w+") as errors,
        subprocess.Popen(
            [sys.executable, "-c", code],
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
            start_new_session=True,
        ) as driver,
    ):
        try:
            assert driver.stdout is not None
            first_line = driver.stdout.readline()
            errors.seek(0)
            assert first_line == "ready\n", errors.read()  # without what tasks print
            yield driver, children(driver.pid)
        finally:
            driver.kill()


@pytest.mark.parametrize(
    ("then", "ending"),
    [
        ("workers.map(Scale(1, 3600), [1, 2])", signal.SIGKILL),
        ("workers.map(Scale(1, 3600), [1, 2])", signal.SIGINT),
        ("raise SystemExit('an error')", None),
        ("sys.stdin.close(); import os; os._exit(0)", None),
    ],
    ids=["killed", "interrupted", "failed", "gone"],
)
def test_no_worker_outlives_its_driver(then, ending):
    with run_driver("processes:2", then) as (driver, processes):
        if ending is not None:
            assert len(processes) == 2
            driver.send_signal(ending)
        driver.wait(60)
    wait_until(lambda: not any(map(is_running, processes)))


def test_a_ray_cluster_of_our_own_is_on_loopback_and_ends_with_a_killed_driver():
    pytest.importorskip("ray")
    with run_driver("ray:1", "workers.map(Scale(1, 3600), [1, 2])") as (driver, processes):
        assert len(processes) >= 3  # its servers and the actor
        addresses = listening_addresses({driver.pid, *processes})
        assert len(addresses) >= 3
        assert [address for address in addresses if not is_loopback(address)] == []
        # Ray's agents notice the end of their node after a minute; workers and servers do at once.
        prompt = {pid for pid in processes if "Agent" not in command_line(pid)}
        assert len(prompt) >= 3
        driver.kill()
    wait_until(lambda: not any(map(is_running, prompt)))


@pytest.mark.slow
def test_nothing_of_a_ray_cluster_of_our_own_outlives_a_killed_driver():
    pytest.importorskip("ray")
    with run_driver("ray:1", "workers.map(Scale(1, 3600), [1, 2])") as (driver, processes):
        driver.kill()
    wait_until(lambda: not any(map(is_running, processes)), seconds=180)


def command_line(pid: int) -> str:
    """What a process was started with, or calls itself."""
    return Path(f"/proc/{pid}/cmdline").read_text()


def listening_addresses(pids: set[int]) -> list[str]:
    """The addresses, in the kernel's hexadecimal form, at which these processes listen."""
    inodes = set()
    for pid in pids:
        for link in Path(f"/proc/{pid}/fd").iterdir():
            try:
                target = os.readlink(link)
            except OSError:
                continue
            if target.startswith("socket:["):
                inodes.add(target[8:-1])
    addresses = []
    for table in ("/proc/net/tcp", "/proc/net/tcp6"):
        for line in Path(table).read_text().splitlines()[1:]:
            fields = line.split()
            if fields[3] == "0A" and fields[9] in inodes:  # LISTEN
                addresses.append(fields[1].partition(":")[0])
    return addresses


def is_loopback(address: str) -> bool:
    """Whether it is 127.0.0.1 or ::1, also as an IPv4 address within IPv6."""
    return address[-8:] == "0100007F" or address == "0" * 24 + "01000000"
