"""Reads a dnn-partitioning workload (Tarnawski et al. 2020) as a Problem.

The format is that of the code release of Tarnawski et al., "Efficient Algorithms for Device
Placement of DNN Graph Operators", NeurIPS 2020, where "FPGA" stands for any accelerator. A node
becomes an op: its id is the op's name, its own name the op's module. Times are milliseconds. The
release's max-load is Placewright's period without overlap.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from placewright.cluster import Cluster
from placewright.costs import Table
from placewright.device import HOST, Device, Link
from placewright.errors import FileError, GraphError
from placewright.frontends.text_files import file_label
from placewright.frontends.workloads.checks import (
    MAX_BYTES,
    MAX_MILLISECONDS,
    Json,
    describe_value,
    iter_objects,
    parse_json,
    require_bool,
    require_integer,
    require_number,
)
from placewright.graph import Op, sort_topologically
from placewright.problem import Problem

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

UNLIMITED = 2**62  # bytes of a host: the format limits the memory of accelerators only
MAX_DEVICES = 256
LINK_BANDWIDTH = 2.0**31  # that of the public edge costs; the table of transfer times is used


@dataclass
class _WorkloadNode:
    node_id: int
    name: str
    cpu_ms: float
    accelerator_ms: float
    on_accelerator: bool
    is_backward: bool
    colour: int | None
    size: int
    sources: list[int] = field(default_factory=list)
    transfer_ms: float = 0.0  # to transfer its tensor; 0 if nothing reads it


def read_workload(path: Path, text: str, training: bool, cluster: Cluster | None) -> Problem:
    """The problem in a workload's text, on its own cluster unless one is given."""
    file = file_label(path)
    data = parse_json(file, text)
    nodes = _connected_nodes(file, data, training)
    if cluster is None:
        cluster = _cluster(file, data, path.stem)
        cpu_only = [node for node in nodes if not node.on_accelerator]
        if cpu_only and cluster.host is None:
            raise GraphError(
                f"{file}: node {cpu_only[0].node_id} runs on CPUs only, but maxCPUs is 0: "
                "expected at least 1"
            )
    try:
        graph = sort_topologically(path.stem, _ops(nodes))
    except GraphError as error:
        raise GraphError(f"{file}: {error}") from None
    by_name = {str(node.node_id): node for node in nodes}
    ordered_nodes = [by_name[op.name] for op in graph.ops]
    costs = Table(
        ops=tuple(op.name for op in graph.ops),
        columns=("gpu", HOST),
        seconds=np.array([(node.accelerator_ms, node.cpu_ms) for node in ordered_nodes]) / 1000,
        transfers=np.array([node.transfer_ms for node in ordered_nodes]) / 1000,
    )
    return Problem(graph, cluster, costs, overlap=False)


def _connected_nodes(file: str, data: Json, training: bool) -> list[_WorkloadNode]:
    """The nodes with their inputs, forward ones first, then by id: files have no order."""
    nodes: dict[int, _WorkloadNode] = {}
    for location, entry in iter_objects(file, data, "nodes"):
        node = _parse_node(location, entry)
        if node.node_id in nodes:
            raise GraphError(
                f"{location} has id {node.node_id}, as an earlier node: ids must be unique"
            )
        nodes[node.node_id] = node
    for location, entry in iter_objects(file, data, "edges"):
        edge_nodes = []
        for key in ("sourceId", "destId"):
            node_id = require_integer(location, key, entry.get(key))
            if node_id not in nodes:
                raise GraphError(f"{location} {describe_value(key, node_id)}: no node has that id")
            edge_nodes.append(nodes[node_id])
        source, target = edge_nodes
        cost = require_number(location, "cost", entry.get("cost"), MAX_MILLISECONDS)
        if training or not (source.is_backward or target.is_backward):
            target.sources.append(source.node_id)
            # A tensor has the same cost on all its edges; if they differ, the largest.
            source.transfer_ms = max(source.transfer_ms, cost)
    selected = [node for node in nodes.values() if training or not node.is_backward]
    return sorted(selected, key=lambda node: (node.is_backward, node.node_id))


def _parse_node(location: str, entry: Json) -> _WorkloadNode:
    colour = entry.get("colorClass")
    supported = require_bool(location, "supportedOnFpga", entry.get("supportedOnFpga", True))
    accelerator = entry.get("fpgaLatency") if supported else 0
    return _WorkloadNode(
        node_id=require_integer(location, "id", entry.get("id")),
        name=str(entry.get("name", "")),
        cpu_ms=require_number(location, "cpuLatency", entry.get("cpuLatency"), MAX_MILLISECONDS),
        accelerator_ms=require_number(location, "fpgaLatency", accelerator, MAX_MILLISECONDS),
        on_accelerator=supported,
        is_backward=require_bool(location, "isBackwardNode", entry.get("isBackwardNode", False)),
        colour=None if colour is None else require_integer(location, "colorClass", colour),
        size=int(require_number(location, "size", entry.get("size"), MAX_BYTES)),
    )


def _ops(nodes: Sequence[_WorkloadNode]) -> list[Op]:
    """One op per node; tensors need no memory besides the nodes' `size`, which is resident."""
    position = {node.node_id: at for at, node in enumerate(nodes)}
    return [
        Op(
            name=str(node.node_id),
            inputs=tuple((position[source], 0) for source in dict.fromkeys(node.sources)),
            outputs=(0,),
            resident=node.size,
            module=node.name,
            phase="backward" if node.is_backward else "forward",
            colocate=None if node.colour is None else f"colour {node.colour}",
            runs_on=() if node.on_accelerator else (HOST,),
        )
        for node in nodes
    ]


def _cluster(file: str, data: Json, name: str) -> Cluster:
    """The accelerators and CPUs of the file, with a separate link for each pair."""
    accelerator_count, host_count = (_count(file, data, key) for key in ("maxFPGAs", "maxCPUs"))
    if accelerator_count + host_count == 0:
        raise FileError(f"{file} has maxFPGAs 0 and maxCPUs 0: expected at least one device")
    try:
        memory = int(require_number(file, "maxSizePerFPGA", data.get("maxSizePerFPGA"), MAX_BYTES))
    except GraphError as error:
        raise FileError(str(error)) from None
    devices = [
        Device(f"gpu{number}", "gpu", "accelerator", memory=memory)
        for number in range(accelerator_count)
    ]
    devices += [
        Device("cpu" if host_count == 1 else f"cpu{number}", HOST, memory=UNLIMITED)
        for number in range(host_count)
    ]
    names = [device.name for device in devices]
    link = Link(LINK_BANDWIDTH)
    links = {(source, target): link for source in names for target in names if source != target}
    return Cluster(name, tuple(devices), links)


def _count(file: str, data: Json, key: str) -> int:
    value = data.get(key)
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= MAX_DEVICES:
        raise FileError(
            f"{file} {describe_value(key, value)}: expected a whole number from 0 to {MAX_DEVICES}"
        )
    return value
