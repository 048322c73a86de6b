"""The text of a dnn-partitioning workload in, a Problem out.

The format is that of the code release of Tarnawski et al., "Efficient Algorithms for Device
Placement of DNN Graph Operators", NeurIPS 2020, where "FPGA" stands for any accelerator. A node
becomes an op: its id is the op's name, its own name the op's module. Times are taken as they
stand, in milliseconds. The release's max-load is our period without overlap.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from placewright.cluster import HOST, Cluster, Device, Link
from placewright.costs import Table
from placewright.errors import FileError, GraphError
from placewright.frontends.workloads.checks import (
    MOST_BYTES,
    MOST_MILLISECONDS,
    Json,
    amount,
    found,
    objects,
    parse_json,
    place,
    truth,
    whole,
)
from placewright.graph import Op, in_order
from placewright.problem import Problem

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

UNLIMITED = 2**62  # bytes of a host: the format limits the memory of accelerators only
MOST_DEVICES = 256
BANDWIDTH = 2.0**31  # what the public edge costs were made with; the transfer table rules anyway


@dataclass
class _Node:
    identity: int
    name: str
    cpu: float
    accelerator: float
    supported: bool
    backward: bool
    colour: int | None
    size: int
    sources: list[int] = field(default_factory=list)
    cost: float = 0.0  # of moving its tensor; 0 where nobody reads it


def read_partitioning(path: Path, text: str, training: bool, cluster: Cluster | None) -> Problem:
    """The problem that a workload's text describes, on its own cluster unless one is given."""
    where = place(path)
    data = parse_json(where, text)
    nodes = _connected(where, data, training)
    if cluster is None:
        cluster = _cluster(where, data, path.stem)
        bound = [node for node in nodes if not node.supported]
        if bound and cluster.host is None:
            raise GraphError(
                f"{where}: node {bound[0].identity} runs on CPUs only, but maxCPUs is 0: "
                "expected at least 1"
            )
    try:
        graph = in_order(path.stem, _ops(nodes))
    except GraphError as error:
        raise GraphError(f"{where}: {error}") from None
    by_name = {str(node.identity): node for node in nodes}
    ordered = [by_name[op.name] for op in graph.ops]
    costs = Table(
        ops=tuple(op.name for op in graph.ops),
        columns=("gpu", HOST),
        seconds=np.array([(node.accelerator, node.cpu) for node in ordered]) / 1000,
        transfers=np.array([node.cost for node in ordered]) / 1000,
    )
    return Problem(graph, cluster, costs, overlap=False)


def _connected(where: str, data: Json, training: bool) -> list[_Node]:
    """The nodes with what they read, forward ones first, then by id: files are in no order."""
    nodes: dict[int, _Node] = {}
    for spot, entry in objects(where, data, "nodes"):
        node = _node(spot, entry)
        if node.identity in nodes:
            raise GraphError(
                f"{spot} has id {node.identity}, as an earlier node: ids must be unique"
            )
        nodes[node.identity] = node
    for spot, entry in objects(where, data, "edges"):
        ends = []
        for key in ("sourceId", "destId"):
            identity = whole(spot, key, entry.get(key))
            if identity not in nodes:
                raise GraphError(f"{spot} {found(key, identity)}: no node has that id")
            ends.append(nodes[identity])
        source, target = ends
        cost = amount(spot, "cost", entry.get("cost"), MOST_MILLISECONDS)
        if training or not (source.backward or target.backward):
            target.sources.append(source.identity)
            # A tensor has one cost, the same on all its edges; should they differ, the largest.
            source.cost = max(source.cost, cost)
    kept = [node for node in nodes.values() if training or not node.backward]
    return sorted(kept, key=lambda node: (node.backward, node.identity))


def _node(spot: str, entry: Json) -> _Node:
    colour = entry.get("colorClass")
    supported = truth(spot, "supportedOnFpga", entry.get("supportedOnFpga", True))
    accelerator = entry.get("fpgaLatency") if supported else 0
    return _Node(
        identity=whole(spot, "id", entry.get("id")),
        name=str(entry.get("name", "")),
        cpu=amount(spot, "cpuLatency", entry.get("cpuLatency"), MOST_MILLISECONDS),
        accelerator=amount(spot, "fpgaLatency", accelerator, MOST_MILLISECONDS),
        supported=supported,
        backward=truth(spot, "isBackwardNode", entry.get("isBackwardNode", False)),
        colour=None if colour is None else whole(spot, "colorClass", colour),
        size=int(amount(spot, "size", entry.get("size"), MOST_BYTES)),
    )


def _ops(nodes: Sequence[_Node]) -> list[Op]:
    """One op a node; tensors take no memory beside the nodes' own `size`, which is resident."""
    position = {node.identity: at for at, node in enumerate(nodes)}
    return [
        Op(
            name=str(node.identity),
            inputs=tuple((position[source], 0) for source in dict.fromkeys(node.sources)),
            outputs=(0,),
            resident=node.size,
            module=node.name,
            phase="backward" if node.backward else "forward",
            colocate=None if node.colour is None else f"colour {node.colour}",
            runs_on=() if node.supported else (HOST,),
        )
        for node in nodes
    ]


def _cluster(where: str, data: Json, name: str) -> Cluster:
    """The accelerators and CPUs that the file allows, each pair with a link of its own."""
    accelerators, hosts = (_count(where, data, key) for key in ("maxFPGAs", "maxCPUs"))
    if accelerators + hosts == 0:
        raise FileError(f"{where} has maxFPGAs 0 and maxCPUs 0: expected at least one device")
    try:
        memory = int(amount(where, "maxSizePerFPGA", data.get("maxSizePerFPGA"), MOST_BYTES))
    except GraphError as error:
        raise FileError(str(error)) from None
    devices = [
        Device(f"gpu{number}", "gpu", "accelerator", memory=memory)
        for number in range(accelerators)
    ]
    devices += [
        Device("cpu" if hosts == 1 else f"cpu{number}", HOST, memory=UNLIMITED)
        for number in range(hosts)
    ]
    names = [device.name for device in devices]
    link = Link(BANDWIDTH)
    links = {(source, target): link for source in names for target in names if source != target}
    return Cluster(name, tuple(devices), links)


def _count(where: str, data: Json, key: str) -> int:
    value = data.get(key)
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= MOST_DEVICES:
        raise FileError(
            f"{where} {found(key, value)}: expected a whole number from 0 to {MOST_DEVICES}"
        )
    return value
