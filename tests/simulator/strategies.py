"""Random problems and plans for property tests: small, and full of ties and corner cases."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from hypothesis import strategies as st

from placewright import Cluster, Constraints, Device, Graph, Link, Op, Problem, Roofline, Table

# Durations that collide often make simultaneous events, where rules are easiest to break; thirds
# make sums that depend on the order of addition.
TIMES = st.sampled_from([0.0, 0.0, 1.0, 1.0, 2.0, 3.0, 1 / 3, 0.1, 0.7])
SIZES = st.sampled_from([0, 1, 2, 3, 5, 8])
KINDS = (*["op"] * 4, *["weight"] * 2, "view", "state", "input")
STREAMING = ("op", "op", "weight")  # graphs in which most ops read weights


@st.composite
def graphs(draw: st.DrawFn, most: int = 12, kinds: tuple[str, ...] = KINDS) -> Graph:
    """Ops of every kind: weights, views of weights, states, inputs, aliases, unread outputs."""
    ops: list[Op] = []
    for position in range(draw(st.integers(1, most))):
        tensors = [(at, o) for at, op in enumerate(ops) for o in range(len(op.outputs))]
        kind = draw(st.sampled_from(kinds))
        outputs = tuple(draw(st.lists(SIZES, min_size=1, max_size=2)))
        inputs: tuple[tuple[int, int], ...] = ()
        aliases: tuple[tuple[int, int], ...] = ()
        if kind in ("op", "view") and tensors:
            inputs = tuple(draw(st.lists(st.sampled_from(tensors), max_size=3)))
        if inputs and draw(st.booleans()):
            aliases = ((0, draw(st.integers(0, len(inputs) - 1))),)
        ops.append(
            Op(
                f"op{position}",
                kind,
                inputs,
                outputs,
                resident=draw(SIZES),
                workspace=draw(SIZES),
                aliases=aliases,
            )
        )
    outputs_of_graph = None
    if draw(st.booleans()):
        tensors = [(at, o) for at, op in enumerate(ops) for o in range(len(op.outputs))]
        outputs_of_graph = tuple(draw(st.lists(st.sampled_from(tensors), max_size=2, unique=True)))
    return Graph("random", tuple(ops), outputs_of_graph)


@st.composite
def clusters(draw: st.DrawFn, most: int = 4) -> Cluster:
    """One to four devices, hosts among them; private, shared and common channels; issuers."""
    count = draw(st.integers(1, most))
    sharing = draw(st.sampled_from(["private", "sender", "one", "mixed"]))
    issuer = draw(st.sampled_from([None, None, "thread"]))
    devices = tuple(
        Device(
            f"d{at}",
            kind=draw(st.sampled_from(["gpu", "gpu", "cpu"])),
            memory=draw(st.integers(0, 40)),
            launch_overhead=draw(st.sampled_from([0.0, 0.25, 1.0])),
            issuer=issuer if draw(st.booleans()) else None,
        )
        for at in range(count)
    )
    links = {}
    for source in range(count):
        for target in range(count):
            if source != target:
                channel = {"private": "", "sender": f"out{source}", "one": "bus"}.get(sharing)
                if channel is None:
                    channel = draw(st.sampled_from(["", "bus", f"in{target}"]))
                latency = draw(st.sampled_from([0.0, 0.5, 1.0]))
                bandwidth = draw(st.sampled_from([1.0, 2.0, 3.0, float("inf")]))
                links[f"d{source}", f"d{target}"] = Link(bandwidth, latency, channel)
    return Cluster("random", devices, links)


@st.composite
def problems(
    draw: st.DrawFn, most: int = 12, devices: int = 4, kinds: tuple[str, ...] = KINDS
) -> Problem:
    graph, cluster = draw(graphs(most, kinds)), draw(clusters(devices))
    seconds = [[draw(TIMES) for _ in cluster.devices] for _ in graph.ops]
    for row, op in zip(seconds, graph.ops, strict=True):
        if op.kind in ("weight", "state", "input"):
            row[:] = [0.0] * len(row)
    table = Table(
        tuple(op.name for op in graph.ops),
        tuple(device.name for device in cluster.devices),
        np.array(seconds).reshape(len(graph), len(cluster)),
    )
    # Inputs are pinned to the host only by default: pin them anywhere.
    pins = {
        op.name: draw(st.sampled_from(cluster.devices)).name
        for op in graph.ops
        if op.kind == "input"
    }
    return Problem(
        graph,
        cluster,
        table,
        Constraints(pins=pins),
        discipline=draw(st.sampled_from(["in order", "ready"])),
        overlap=draw(st.booleans()),
    )


@st.composite
def placements(draw: st.DrawFn, problem: Problem) -> np.ndarray:
    """A legal device per op: free per unit, weights anywhere."""
    a = problem.arrays
    device = np.zeros(a.ops, dtype=np.int32)
    for unit in range(int(a.unit.max()) + 1):
        members = np.flatnonzero(a.unit == unit)
        choices = np.flatnonzero(a.allowed[members[0]])
        device[members] = draw(st.sampled_from([int(choice) for choice in choices]))
    return device


@st.composite
def plans(
    draw: st.DrawFn, problem: Problem, staged: bool = False
) -> tuple[np.ndarray, np.ndarray | None, np.ndarray | None]:
    """(device, priority or None, staging or None), with staging buffers that are large enough.

    Args:
        staged: Every device has a staging buffer.
    """
    device = draw(placements(problem))
    a = problem.arrays
    priority = None
    if draw(st.booleans()):
        values = st.sampled_from([0.0, 1.0, 2.0, 3.5, -1.0])
        priority = np.array([draw(values) for _ in range(a.ops)])
    staging = None
    if staged or draw(st.booleans()):
        staging = np.full(a.devices, -1, dtype=np.int64)
        for place in range(a.devices):
            if staged or draw(st.booleans()):
                staging[place] = needed_staging(problem, device, place) + draw(st.integers(0, 8))
    return device, priority, staging


def needed_staging(problem: Problem, device: np.ndarray, place: int) -> int:
    """The most bytes of weights from elsewhere that one op on this device reads."""
    a = problem.arrays
    most = 0
    for op in np.flatnonzero(a.scheduled & (device == place)):
        tensors = a.inputs[a.first_input[op] : a.first_input[op + 1]]
        remote = a.is_weight[a.producer[tensors]] & (device[a.producer[tensors]] != place)
        most = max(most, int(a.sizes[tensors][remote].sum()))
    return most


FUSING = ("op", "op", "op", "op", "view", "weight", "state", "input")
MEMBERS = ("elementwise", "elementwise", "cast", "reduce", "matmul", "op", "gather")


@st.composite
def fusible_problems(draw: st.DrawFn, most: int = 12) -> Problem:
    """Problems whose ops are of kinds that fuse and kinds that do not, with either cost model."""
    problem = draw(problems(most, kinds=FUSING))
    ops = []
    for op in problem.graph.ops:
        kind = draw(st.sampled_from(MEMBERS)) if op.kind == "op" else op.kind
        work = draw(st.sampled_from([0.0, 1.0, 2.5, 7.0]))
        moved = draw(st.sampled_from([0, 3, 11, 30]))
        ops.append(replace(op, kind=kind, flops=work, bytes_moved=moved))
    graph = replace(problem.graph, ops=tuple(ops))
    if draw(st.booleans()):
        return replace(problem, graph=graph)
    rates = st.sampled_from([1.0, 3.0, float("inf")])
    bandwidths = st.sampled_from([1.0, 3.0, 1e300])
    devices = tuple(
        replace(device, rates={"float32": draw(rates)}, memory_bandwidth=draw(bandwidths))
        for device in problem.cluster.devices
    )
    cluster = replace(problem.cluster, devices=devices)
    return replace(problem, graph=graph, cluster=cluster, costs=Roofline())
