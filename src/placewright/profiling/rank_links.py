"""Measures the links between ranks, and makes one cluster of all of their machines.

Tensors pass through the same streams as in a step, so that latency has all that a hand-over costs:
threads that wake up, frames that are packed, and the network.
"""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass, replace
from statistics import median
from typing import TYPE_CHECKING, Any

from placewright.cluster import Cluster
from placewright.device import HOST_SEPARATOR, Link
from placewright.errors import ExecutionError
from placewright.files.cluster import cluster_data, read_cluster
from placewright.runtime.distributed.control_channel import ControlMessage, MessageKind
from placewright.runtime.distributed.tensor_frames import HEADER_BYTES
from placewright.runtime.distributed.tensor_streams import ExpectedTensor
from placewright.runtime.machine import load_torch

if TYPE_CHECKING:
    from collections.abc import Sequence

    from placewright.runtime.distributed.session import RankSession

ROUND_TRIPS, WARMUP_TRIPS = 60, 10
LARGE_BYTES, BURST, BURSTS = 1 << 20, 6, 3
"""A burst of tensors of a layer's size, which follow each other without a pause."""
MEASURE_STAGE = 15
"""A stream of its own, beyond those of steps."""


@dataclass(frozen=True)
class RankLink:
    """The measured link from one rank to another.

    Args:
        bandwidth: Bytes per second of large tensors, one after the other.
        latency: Seconds until a small tensor is there.
    """

    source: int
    target: int
    bandwidth: float
    latency: float

    @property
    def link(self) -> Link:
        return Link(self.bandwidth, self.latency, f"{host_name(self.source)}-net")


def host_name(rank: int) -> str:
    """The name of a rank's host in a cluster of all ranks."""
    return f"host{rank}"


def measure_rank_links(session: RankSession) -> list[RankLink]:
    """Measure a link for every ordered pair of ranks, one after the other; empty but on rank 0.

    All ranks call it, and the other ranks serve rank 0 until it has measured all.

    Raises:
        ExecutionError: A rank has failed.
    """
    finished = threading.Event()

    def take_part(message: ControlMessage) -> None:
        if message.data.get("end"):
            finished.set()
            return
        seconds = _measure(session, message.data["source"], message.data["target"])
        session.send(0, ControlMessage(MessageKind.MEASURED, data={"seconds": seconds}))

    if not session.is_leader:
        session.handlers[MessageKind.MEASURE] = take_part
        session.serve(finished.is_set)
        return []
    links = []
    ranks = range(session.world_size)
    for source, target in [(a, b) for a in ranks for b in ranks if a != b]:
        pair = {"source": source, "target": target}
        others = [rank for rank in (source, target) if rank != 0]
        for rank in others:
            session.send(rank, ControlMessage(MessageKind.MEASURE, data=pair))
        seconds = _measure(session, source, target) if 0 in (source, target) else []
        for rank in others:
            theirs = session.reply(rank, MessageKind.MEASURED).data.get("seconds", [])
            seconds = theirs or seconds
        latency, burst_seconds = (float(value) for value in seconds)
        sent = BURST * (LARGE_BYTES + HEADER_BYTES)
        bandwidth = sent / max(burst_seconds - 2 * latency, 1e-9)
        links.append(RankLink(source, target, bandwidth, latency))
    session.broadcast(ControlMessage(MessageKind.MEASURE, data={"end": True}))
    return links


def join_clusters(session: RankSession, cluster: Cluster, links: Sequence[RankLink]) -> Cluster:
    """One cluster of the machines of all ranks, on rank 0; on the others their own.

    Devices are named `host0/cpu`: the host of rank 0 first, so that a plan's hosts are numbered as
    the ranks were when they were measured.

    Args:
        cluster: This rank's machine.
        links: The measured links, on rank 0.
    """
    if not session.is_leader:
        session.send(0, ControlMessage(MessageKind.MEASURED, data=cluster_data(cluster)))
        session.reply(0, MessageKind.WELCOME)
        return cluster
    clusters = [cluster]
    for peer in session.channels:
        data = session.reply(peer, MessageKind.MEASURED).data
        clusters.append(read_cluster(dict(data), f"the cluster of rank {peer}"))
    session.broadcast(ControlMessage(MessageKind.WELCOME))
    named = [_with_host(each, host_name(rank)) for rank, each in enumerate(clusters)]
    devices = [device for each in named for device in each.devices]
    all_links = {pair: link for each in named for pair, link in each.links.items()}
    for link in links:
        for one in named[link.source].devices:
            for other in named[link.target].devices:
                all_links[one.name, other.name] = link.link
    return Cluster("ranks", tuple(devices), all_links)


def _with_host(cluster: Cluster, host: str) -> Cluster:
    """A cluster whose names of devices, channels and issuers begin with its host."""

    def full(name: str) -> str:
        return f"{host}{HOST_SEPARATOR}{name}"

    devices = tuple(
        replace(
            device,
            name=full(device.name),
            issuer=None if device.issuer is None else full(device.issuer),
        )
        for device in cluster.devices
    )
    links = {
        (full(source), full(target)): replace(link, channel=full(link.channel))
        for (source, target), link in cluster.links.items()
    }
    return Cluster(cluster.name, devices, links)


def _measure(session: RankSession, source: int, target: int) -> list[float]:
    """This rank's part in measuring a link: seconds of a small tensor and of a burst.

    Nothing on the target, which sends small tensors back.
    """
    torch = load_torch()
    small = torch.empty(16, dtype=torch.float32)
    large = torch.empty(LARGE_BYTES // 4, dtype=torch.float32)
    sent = [small] * ROUND_TRIPS + [*[large] * BURST] * BURSTS
    replies = [*range(ROUND_TRIPS), *(ROUND_TRIPS + BURST * (at + 1) - 1 for at in range(BURSTS))]
    peer = target if session.rank == source else source
    arrived = threading.Semaphore(0)
    sender = session.streams.sender(peer, MEASURE_STAGE)
    receiver = session.streams.receiver(peer, MEASURE_STAGE)

    def await_reply() -> None:
        while not arrived.acquire(timeout=0.5):
            session.check()

    def reply(index: int) -> Any:
        def deliver(_: Any) -> None:
            if index in replies:
                sender.offer(index, (0, 0), small)
            if index == len(sent) - 1:
                arrived.release()

        return deliver

    if session.rank == target:
        sender.expect([ExpectedTensor(index, (0, 0), small) for index in replies])
        receiver.expect(
            [
                ExpectedTensor(index, (0, 0), tensor, reply(index))
                for index, tensor in enumerate(sent)
            ]
        )
        await_reply()
        return []
    if session.rank != source:
        raise ExecutionError(f"rank {session.rank} has no part in a link of {source} and {target}")
    receiver.expect(
        [ExpectedTensor(index, (0, 0), small, lambda _: arrived.release()) for index in replies]
    )
    sender.expect([ExpectedTensor(index, (0, 0), tensor) for index, tensor in enumerate(sent)])
    trips, bursts = [], []
    for index in range(ROUND_TRIPS):
        start = time.perf_counter()
        sender.offer(index, (0, 0), small)
        await_reply()
        trips.append((time.perf_counter() - start) / 2)
    for at in range(BURSTS):
        start = time.perf_counter()
        for index in range(ROUND_TRIPS + BURST * at, ROUND_TRIPS + BURST * (at + 1)):
            sender.offer(index, (0, 0), large)
        await_reply()
        bursts.append(time.perf_counter() - start)
    return [median(trips[WARMUP_TRIPS:]), median(bursts)]
