"""Splits the weights that a GPU cannot hold between copies to it and its host, read by read.

While the host computes with some of these weights, others are copied to the GPU, so both
bandwidths add up. A product inside a step waits for the one before it; so host and copies are busy
together only if what the host computes lies between the reads of what is copied, and if the staging
buffer holds the copies that are ahead.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from placewright import simulator
from placewright.plan import NO_STAGING
from placewright.plan_batch import PlanBatch

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from numpy.typing import NDArray

    from placewright.problem import Problem
    from placewright.problem_arrays import Ints
    from placewright.solvers.workloads.call_plans import Residency

_Partial = tuple[float, float, float, int, tuple[tuple[float, int], ...], int, int]

BUFFER_SHARES = (1.0, 0.8, 0.6)
"""Sizes of staging buffers, as shares of the memory that is left."""


@dataclass(frozen=True)
class Effort:
    """How reads are split.

    Args:
        width: Partial splits that are kept at every read.
        hand_over_factor: Times the seconds of every hand-over: with more, host and GPU meet less.
    """

    width: int = 4
    hand_over_factor: float = 1.0


QUICK = (Effort(1),)
EFFORTS = (Effort(1), Effort(4), Effort(4, 3.0))


class _Data(NamedTuple):
    """What a read has for input beside weights.

    Args:
        bit: Tells the tensor from others.
        sources: Bits of the reads whose outputs alone it is made of; 0 if there are other inputs,
            so that it is made on the GPU.
        up, down: Seconds to hand it over to the host, and to the GPU.
    """

    bit: int
    sources: int
    up: float
    down: float


class _Read(NamedTuple):
    """An op of the GPU that reads weights which may be elsewhere.

    Args:
        bit: Tells it from others.
        weights: Its weights: ops of the problem, each with bytes and seconds of its copy.
        before: Seconds of the GPU's ops ahead of it, if all ops are there.
        gpu_seconds: Its own on the GPU.
        host_seconds: Its own on the host; infinite if it may not be there.
        data: What else it reads.
        linked: The part of it that is made of other reads' outputs alone.
        down: Seconds to hand over what it makes to the GPU; 0 if other reads alone need that.
    """

    op: int
    bit: int
    weights: tuple[tuple[int, int, float], ...]
    before: float
    gpu_seconds: float
    host_seconds: float
    data: tuple[_Data, ...]
    linked: tuple[_Data, ...]
    down: float


class _Demand(NamedTuple):
    """A read, and the copies that it waits for if it is on the GPU."""

    read: _Read
    size: int
    seconds: float
    may_host: bool


class HostSplit:
    """The plans of one call for one GPU that splits the other devices' weights with the host.

    Args:
        weights: The ops that are weights or states, in the order of a residency.
        device: The GPU.
        host: The device of the weights that it cannot hold.
    """

    def __init__(
        self, problem: Problem, weights: NDArray[np.int64], device: int, host: int
    ) -> None:
        a = problem.arrays
        self.problem, self.weights, self.device, self.host = problem, weights, device, host
        self.base = problem.legalize(np.full(a.ops, device, dtype=np.int32))
        members = np.bincount(a.unit, minlength=a.ops)
        self._may_host = a.allowed[:, host] & (members[a.unit] == 1) & (self.base == device)
        self._down, self._up = int(a.link_class[host, device]), int(a.link_class[device, host])
        self.reads = list(self._all_reads())
        self.link_start = self._first_link_seconds()

    @cached_property
    def free_bytes(self) -> int:
        """Bytes of the GPU beside activations: for weights, states and the staging buffer."""
        a = self.problem.arrays
        peak = int(simulator.judge(self.problem, self.base).peak[0, self.device])
        resident = int(a.resident[self.base == self.device].sum())
        return int(a.capacity[self.device]) - (peak - resident)

    def _all_reads(self) -> Iterable[_Read]:
        a, before = self.problem.arrays, 0.0
        sources, stays_in_reads = self._flow()
        self._set_followers(sources)
        tensor_bits: dict[int, int] = {}
        for op in np.flatnonzero(a.scheduled & (self.base == self.device)).tolist():
            seconds = float(a.compute[op, self.device])
            if sources[op] == (op,):
                tensors = self._inputs(op)
                weights = tensors[self._are_weights_of(op, tensors)]
                others = tensors[~a.is_resident[a.producer[tensors]]].tolist()
                outputs = slice(int(a.first_tensor[op]), int(a.first_tensor[op + 1]))
                may_host = self._may_host[op] and len(weights) + len(others) == len(tensors)
                data = tuple(
                    _Data(
                        1 << tensor_bits.setdefault(tensor, len(tensor_bits)),
                        sum(1 << source for source in sources[int(a.producer[tensor])]),
                        float(a.transfer[self._up, tensor]),
                        float(a.transfer[self._down, tensor]),
                    )
                    for tensor in others
                )
                yield _Read(
                    op,
                    1 << op,
                    tuple(
                        zip(
                            a.producer[weights].tolist(),
                            a.sizes[weights].tolist(),
                            a.transfer[self._down, weights].tolist(),
                            strict=True,
                        )
                    ),
                    before,
                    seconds,
                    float(a.compute[op, self.host]) if may_host else math.inf,
                    data,
                    tuple(each for each in data if each.sources),
                    0.0 if stays_in_reads[op] else float(a.transfer[self._down, outputs].sum()),
                )
            before += seconds

    def _flow(self) -> tuple[list[tuple[int, ...]], list[bool]]:
        """Of each op the reads that its output is made of alone; and whether only reads need that.

        Ops between two products, such as activations, follow these to the host.
        """
        a = self.problem.arrays
        sources: list[tuple[int, ...]] = [()] * a.ops
        for op in np.flatnonzero(a.scheduled & (self.base == self.device)).tolist():
            tensors = self._inputs(op)
            if self._are_weights_of(op, tensors).any():
                sources[op] = (op,)
            elif len(tensors) and self._is_cheap(op):
                parts = [sources[producer] for producer in a.producer[tensors].tolist()]
                if all(parts):
                    sources[op] = tuple(sorted({source for part in parts for source in part}))
        stays = [False] * a.ops
        for op in range(a.ops - 1, -1, -1):
            outputs = slice(int(a.first_tensor[op]), int(a.first_tensor[op + 1]))
            if sources[op] and not a.is_output[outputs].any():
                stays[op] = all(
                    sources[reader] and (sources[reader] == (reader,) or stays[reader])
                    for reader in self._readers(op)
                )
        return sources, stays

    def _set_followers(self, sources: list[tuple[int, ...]]) -> None:
        """Find ops that follow all reads which their inputs are made of to the host.

        Not those whose inputs the GPU needs anyway.
        """
        producer = self.problem.arrays.producer
        follows = [False] * len(sources)
        for op, own in enumerate(sources):
            if own and own != (op,):
                follows[op] = all(
                    (follows[producer[tensor]] or sources[producer[tensor]] == (producer[tensor],))
                    and self._tensor_readers(tensor) == [op]
                    for tensor in self._inputs(op).tolist()
                )
        self._followers = np.flatnonzero(follows)
        counts = [len(sources[op]) for op in self._followers.tolist()]
        self._follower_sources = np.array(
            [source for op in self._followers.tolist() for source in sources[op]], dtype=np.int64
        )
        self._first_source = np.concatenate([[0], np.cumsum(counts)])[:-1].astype(np.int64)

    def _with_followers(self, on_host: list[int]) -> NDArray[np.bool_]:
        """Flags of these reads, and of the ops that follow them."""
        flags = np.zeros(self.problem.arrays.ops, dtype=bool)
        flags[on_host] = True
        if len(self._followers):
            follows = np.logical_and.reduceat(flags[self._follower_sources], self._first_source)
            flags[self._followers[follows]] = True
        return flags

    def _are_weights_of(self, op: int, tensors: Ints) -> NDArray[np.bool_]:
        """Which inputs are weights that may be elsewhere."""
        a = self.problem.arrays
        producer = a.producer[tensors]
        flags: NDArray[np.bool_] = a.is_weight[producer] & (a.unit[producer] != a.unit[op])
        return flags

    def _is_cheap(self, op: int) -> bool:
        """Whether the host may compute it in about the time that its inputs take to the GPU."""
        a, tensors = self.problem.arrays, self._inputs(op)
        return bool(
            self._may_host[op]
            and not a.is_resident[a.producer[tensors]].any()
            and a.compute[op, self.host]
            <= a.compute[op, self.device] + float(a.transfer[self._down, tensors].sum())
        )

    def _inputs(self, op: int) -> Ints:
        a = self.problem.arrays
        tensors: Ints = a.inputs[a.first_input[op] : a.first_input[op + 1]]
        return tensors

    def _first_link_seconds(self) -> float:
        """Seconds for which the model's inputs occupy the link, ahead of all weights."""
        a = self.problem.arrays
        is_input = ~a.scheduled & ~a.is_resident & (self.base != self.device)
        seconds = 0.0
        for tensor in np.flatnonzero(is_input[a.producer]).tolist():
            if any(self.base[reader] == self.device for reader in self._tensor_readers(tensor)):
                seconds += float(a.transfer[self._down, tensor])
        return seconds

    def plans(
        self,
        residency: Residency,
        efforts: Sequence[Effort] = EFFORTS,
        shares: Sequence[float] = BUFFER_SHARES,
    ) -> PlanBatch | None:
        """Plans for weights on these devices; None if there is no memory for a staging buffer.

        Args:
            residency: The device of each weight and state.
            shares: Of the memory that is left, for staging buffers.
        """
        a = self.problem.arrays
        fixed = np.full(a.ops, -1, dtype=np.int32)
        fixed[a.unit[self.weights]] = residency
        fixed = fixed[a.unit]
        base = np.where(fixed >= 0, fixed, self.base)
        left = self.free_bytes - int(a.resident[base == self.device].sum())
        demands = self._demands(base)
        waiting = sum(demand.size > 0 for demand in demands)
        if left < 0 or not waiting:
            return None
        rows: dict[bytes, tuple[NDArray[np.int32], NDArray[np.int64]]] = {}
        for share in shares:
            for effort in efforts:
                buffer = int(share * left)
                on_host = _split_reads(demands, buffer, effort, self.link_start)
                if on_host is None:
                    continue
                placement = np.where(self._with_followers(on_host), np.int32(self.host), base)
                staging = np.full(a.devices, NO_STAGING, dtype=np.int64)
                if len(on_host) < waiting:
                    staging[self.device] = buffer
                rows.setdefault(placement.tobytes() + staging.tobytes(), (placement, staging))
        if not rows:
            return None
        placements, stagings = zip(*rows.values(), strict=True)
        return PlanBatch(np.stack(placements), None, np.stack(stagings))

    def _demands(self, placement: NDArray[np.int32]) -> list[_Demand]:
        """The reads of weights that are elsewhere, and those that read what these make."""
        device = placement.tolist()
        demands = []
        for read in self.reads:
            if device[read.op] != self.device:
                continue
            copies = [
                (each_size, each_seconds)
                for weight, each_size, each_seconds in read.weights
                if device[weight] != self.device
            ]
            if copies or read.linked:
                may_host = len(copies) == len(read.weights) and read.host_seconds < math.inf
                size = sum(each_size for each_size, _ in copies)
                seconds = sum(each_seconds for _, each_seconds in copies)
                demands.append(_Demand(read, size, seconds, may_host))
        return demands

    def _tensor_readers(self, tensor: int) -> list[int]:
        a = self.problem.arrays
        readers: list[int] = a.readers[a.first_reader[tensor] : a.first_reader[tensor + 1]].tolist()
        return readers

    def _readers(self, op: int) -> list[int]:
        a = self.problem.arrays
        first, last = a.first_tensor[op], a.first_tensor[op + 1]
        readers: list[int] = a.readers[a.first_reader[first] : a.first_reader[last]].tolist()
        return readers


def _split_reads(
    demands: Sequence[_Demand], buffer: int, effort: Effort, link_start: float
) -> list[int] | None:
    """The ops for the host, by a beam search over the reads in order.

    None if the buffer cannot hold the copies of an op that may not be on the host.

    A partial split is judged by when the GPU has the last read's output and when the link is free,
    each weighted by the bytes per second that the host, or the link, adds to what is left. The link
    is at most one buffer ahead.

    Args:
        link_start: When the link is free for weights and for what the host makes.
    """
    waiting = [demand for demand in demands if demand.size]
    copy_seconds = sum(demand.seconds for demand in waiting)
    host_seconds = sum(demand.read.host_seconds for demand in waiting if demand.may_host)
    # The same bytes: bytes per second are as one over these seconds.
    weight = copy_seconds / (copy_seconds + host_seconds) if host_seconds else 0.0
    ahead = buffer * copy_seconds / sum(demand.size for demand in waiting)
    factor = effort.hand_over_factor
    # Score, time, time of the link, free bytes, held copies, reads on the host, tensors there
    beam: list[_Partial] = [(0.0, 0.0, link_start, buffer, (), 0, 0)]
    done = 0.0
    for read, size, seconds, may_host in demands:
        gap, done = read.before - done, read.before + read.gpu_seconds
        following: list[_Partial] = []
        for _, now, link, room, held, hosted, sent in beam:
            now += gap
            on_gpu = now
            for _, sources, _, down in read.linked if hosted else ():
                if hosted & sources:
                    on_gpu = max(on_gpu, link_start) + down * factor
            if not size:
                on_gpu += read.gpu_seconds
                following.append((on_gpu, on_gpu, link, room, held, hosted, sent))
                continue
            if size <= buffer:
                start, free, taken = link, room, 0
                while free < size:
                    end, given = held[taken]
                    start, free, taken = max(start, end), free + given, taken + 1
                end = start + seconds
                on_gpu = max(on_gpu, end) + read.gpu_seconds
                score = weight * on_gpu + (1 - weight) * max(end, on_gpu - ahead)
                still_held = (*held[taken:], (on_gpu, size))
                following.append((score, on_gpu, end, free - size, still_held, hosted, sent))
            if may_host:
                on_host, all_sent = now, sent
                for bit, sources, up, _ in read.data:
                    if not (sent & bit or (sources and hosted & sources == sources)):
                        on_host += up * factor
                    all_sent |= bit
                on_host += read.host_seconds
                if read.down:
                    on_host = max(on_host, link_start) + read.down * factor
                score = weight * on_host + (1 - weight) * max(link, on_host - ahead)
                following.append((score, on_host, link, room, held, hosted | read.bit, all_sent))
        beam = following if len(following) <= effort.width else sorted(following)[: effort.width]
        if not beam:
            return None
    hosted = min(beam, key=lambda partial: partial[1])[5]
    return [demand.read.op for demand in waiting if hosted & demand.read.bit]
