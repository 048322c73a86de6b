"""The cast: small graphs and clusters, each with a sentence, for every test to use.

Sizes are toys so that sums can be done in the head: a device does 1 FLOP a second, so an op of 3
FLOPs takes 3 s there with the `exact` costs, and a link carries 1 byte a second unless said.
"""

from __future__ import annotations

import gc
import logging
from typing import TYPE_CHECKING

import numpy as np
import pytest
from hypothesis import HealthCheck, settings

from placewright import (
    Cluster,
    Device,
    Graph,
    Link,
    Op,
    Plan,
    Problem,
    Result,
    Roofline,
    Timeline,
)
from placewright.result import DeviceUse
from placewright.timeline import MemoryTrace, Transfers

if TYPE_CHECKING:
    from collections.abc import Iterator

# A busy machine makes any example slow: how long one takes is no property of the code.
settings.register_profile(
    "any machine", deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("any machine")

# PyTorch and its captures leave millions of objects behind, which take a third of a second to be
# searched for garbage: let that be done rarely.
gc.set_threshold(5_000, 20, 50)

# PyTorch writes a trace of each capture if its logger has a handler, and pytest adds three to each
# logger that does not propagate. Nobody reads that trace.
logging.getLogger("torch.__trace").addHandler = lambda handler: None


@pytest.fixture(autouse=True)
def no_user_files(tmp_path_factory, monkeypatch) -> None:
    """Tests know no devices of the user's own, and no plans that were stored before."""
    monkeypatch.setenv("PLACEWRIGHT_CONFIG", str(tmp_path_factory.getbasetemp() / "no-config"))
    monkeypatch.setenv("PLACEWRIGHT_STORE", "none")


@pytest.fixture
def frozen_heap() -> Iterator[None]:
    """What is there before a test is not searched for garbage, which takes a second each time."""
    gc.freeze()
    yield
    gc.unfreeze()


def device(name: str, kind: str = "gpu", memory: int = 1000, rate: float = 1.0) -> Device:
    """A device that does `rate` FLOPs a second and starts ops in no time."""
    rates = {"float32": rate}
    return Device(name, kind, memory=memory, rates=rates, memory_bandwidth=AMPLE)


def pair(name: str, one: Device, other: Device, bandwidth: float, latency: float = 0.0) -> Cluster:
    """Two devices and an equal link each way, each with a channel of its own."""
    link = Link(bandwidth, latency)
    return Cluster(name, (one, other), {(one.name, other.name): link, (other.name, one.name): link})


AMPLE = 1e30
"""A memory bandwidth in bytes a second at which no op of a test waits for memory."""


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--workloads", metavar="DIR", help="folder of the public workload files (docs/workloads.md)"
    )


@pytest.fixture
def chain() -> Graph:
    """Three ops of 1, 2 and 3 FLOPs, each reading 4 bytes from the one before."""
    return Graph(
        "chain",
        (
            Op("a", flops=1, outputs=(4,)),
            Op("b", flops=2, outputs=(4,), inputs=((0, 0),)),
            Op("c", flops=3, outputs=(4,), inputs=((1, 0),)),
        ),
    )


@pytest.fixture
def diamond() -> Graph:
    """One op feeds two heavy ones, which a fourth joins: 1, 10, 10, 1 FLOPs, 2 bytes a tensor."""
    return Graph(
        "diamond",
        (
            Op("top", flops=1, outputs=(2,)),
            Op("left", flops=10, outputs=(2,), inputs=((0, 0),)),
            Op("right", flops=10, outputs=(2,), inputs=((0, 0),)),
            Op("bottom", flops=1, outputs=(2,), inputs=((1, 0), (2, 0))),
        ),
    )


@pytest.fixture
def fork_join() -> Graph:
    """An op of two outputs feeds four branches of 5 FLOPs, two from each, which one op joins."""
    return Graph(
        "fork_join",
        (
            Op("fork", kind="split", flops=1, outputs=(3, 4)),
            *(Op(f"branch{at}", flops=5, outputs=(1,), inputs=((0, at // 2),)) for at in range(4)),
            Op("join", flops=1, outputs=(8,), inputs=tuple((at, 0) for at in range(1, 5))),
        ),
    )


@pytest.fixture
def layers() -> Graph:
    """An input and two layers of 4 FLOPs, each with a weight of 50 bytes; one is viewed."""
    return Graph(
        "layers",
        (
            Op("x", kind="input", outputs=(8,)),
            Op("w1", kind="weight", outputs=(50,)),
            Op("layer1", kind="matmul", flops=4, outputs=(8,), inputs=((0, 0), (1, 0))),
            Op("w2", kind="weight", outputs=(50,)),
            Op("w2.t", kind="view", outputs=(50,), inputs=((3, 0),), aliases=((0, 0),)),
            Op("layer2", kind="matmul", flops=4, outputs=(8,), inputs=((2, 0), (4, 0))),
        ),
    )


@pytest.fixture
def one_device() -> Cluster:
    """A single GPU: nothing to decide."""
    return Cluster("one_device", (device("gpu0"),), {})


@pytest.fixture
def two_devices() -> Cluster:
    """Two equal GPUs, 1 byte a second each way."""
    return pair("two_devices", device("gpu0"), device("gpu1"), bandwidth=1)


@pytest.fixture
def slow_link() -> Cluster:
    """Two equal GPUs so far apart (100 s a message) that splitting never pays."""
    return pair("slow_link", device("gpu0"), device("gpu1"), bandwidth=1, latency=100)


@pytest.fixture
def gpu_and_host() -> Cluster:
    """A small fast GPU and a big host that is ten times slower, 2 bytes a second each way."""
    gpu = device("gpu0", memory=100, rate=10)
    return pair("gpu_and_host", gpu, device("cpu", "cpu", memory=10_000), bandwidth=2)


@pytest.fixture
def shared_wire() -> Cluster:
    """A host and two GPUs; whatever leaves the host, and whatever comes back, shares one wire."""
    down, up = Link(2, 1, "down"), Link(2, 1, "up")
    return Cluster(
        "shared_wire",
        (device("gpu0"), device("gpu1"), device("cpu", "cpu", memory=10_000)),
        {
            ("cpu", "gpu0"): down,
            ("cpu", "gpu1"): down,
            ("gpu0", "cpu"): up,
            ("gpu1", "cpu"): up,
            ("gpu0", "gpu1"): Link(8),
            ("gpu1", "gpu0"): Link(8),
        },
    )


@pytest.fixture
def in_a_row() -> Cluster:
    """Three devices, of which the outer two know only the middle one."""
    names = ("left", "middle", "right")
    wide, narrow = Link(4, 1), Link(2, 3)
    return Cluster(
        "in_a_row",
        tuple(device(name) for name in names),
        {
            ("left", "middle"): wide,
            ("middle", "left"): wide,
            ("middle", "right"): narrow,
            ("right", "middle"): narrow,
        },
    )


@pytest.fixture
def exact() -> Roofline:
    """Costs in which an op takes its FLOPs over the device's rate, to the letter."""
    return Roofline(compute=1, memory=1)


@pytest.fixture
def diamond_problem(diamond: Graph, two_devices: Cluster, exact: Roofline) -> Problem:
    """The diamond on two devices: 22 s on one, 1 + 2 + 10 + 2 + 1 = 16 s when split."""
    return Problem(diamond, two_devices, exact)


@pytest.fixture
def layers_problem(layers: Graph, gpu_and_host: Cluster, exact: Roofline) -> Problem:
    """Two layers whose weights fill a GPU of 100 bytes to the brim, with a host beside it."""
    return Problem(layers, gpu_and_host, exact)


@pytest.fixture
def split_timeline(diamond_problem: Problem) -> Timeline:
    """The diamond split in two: top, then left beside right and its transfers, then bottom."""
    return Timeline(
        plan=Plan.of(diamond_problem, [0, 0, 1, 0]),
        step_time=16.0,
        period=12.0,
        start=np.array([0.0, 1, 3, 15]),
        end=np.array([1.0, 11, 13, 16]),
        transfers=Transfers(
            tensor=np.array([0, 2], dtype=np.int32),
            source=np.array([0, 1], dtype=np.int32),
            target=np.array([1, 0], dtype=np.int32),
            channel=np.array([0, 1], dtype=np.int32),
            reader=np.array([-1, -1], dtype=np.int32),
            start=np.array([1.0, 13]),
            end=np.array([3.0, 15]),
        ),
        memory=MemoryTrace(
            device=np.array([0, 1], dtype=np.int32),
            time=np.array([0.0, 1]),
            used=np.array([2, 2], dtype=np.int64),
        ),
        peak=np.array([6, 4], dtype=np.int64),
        capacity=np.array([1000, 1000], dtype=np.int64),
    )


@pytest.fixture
def split_result(diamond_problem: Problem) -> Result:
    """The diamond split in two, in milliseconds: 16, where no plan can take less than 12."""
    return Result(
        solver="heft",
        plan=Plan.of(diamond_problem, [0, 0, 1, 0], priority=[0, 1, 2, 3], staging={"gpu1": 8}),
        objective="step",
        step_time=0.016,
        period=0.012,
        bound=0.012,
        bound_name="critical path",
        overflow=0,
        evaluations=1234,
        seconds=0.5,
        seed=0,
        devices=(
            DeviceUse("gpu0", ops=3, busy=0.012, peak=2**29, limit=2**30),
            DeviceUse("gpu1", ops=1, busy=0.01, peak=0, limit=2**30, reserve=2**20),
        ),
        history=((1, 0.1, 0.022), (7, 0.2, 0.016)),
        options={"model": "diamond", "limit": ("8GiB", "gpu1=4GiB"), "training": True},
    )
