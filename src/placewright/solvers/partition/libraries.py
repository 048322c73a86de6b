"""Graph partitioning libraries: METIS, Scotch and KaHIP, seeded and silenced.

METIS (Karypis and Kumar 1998), Scotch (Pellegrini 2009) and KaHIP (Sanders and Schulz 2013) are
called so that the same seed gives the same parts, and so that none of them writes to the terminal.
"""

from __future__ import annotations

import ctypes
import os
import sys
import threading
from contextlib import contextmanager, redirect_stderr, redirect_stdout, suppress
from dataclasses import dataclass
from importlib import import_module
from io import StringIO
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from placewright.errors import MissingDependency

if TYPE_CHECKING:
    from collections.abc import Iterator

Ints = NDArray[np.int64]
Shares = NDArray[np.float64]

_WEIGHT_TOTAL = 2**30  # of all loads, or of all edges: sums still fit 32 bits
_MIN_SHARE = 1e-6  # of the largest share: METIS fails on one that is 0 in its 32-bit numbers
_LARGE_GRAPH = 4_000  # items above which KaHIP's strong setting takes many seconds
_IMBALANCE = 0.03  # KaHIP's tolerance above a part's share; METIS and Scotch have their own
_MAX_DISTANCE = 1_000  # Scotch's distance between devices, in units of the shortest
_MAX_DOMAIN = 2**10  # domain of Scotch from which on it is split into equal halves
_DETERMINISTIC = 0  # SCOTCH_OPTIONNUMDETERMINISTIC of scotch.h
_lock = threading.Lock()  # the libraries have global random states, and file descriptors are global


@dataclass(frozen=True, eq=False)
class CsrGraph:
    """The graph to be partitioned: items with loads, and edges both ways, as positive integers."""

    load: Ints  # items
    first_edge: Ints  # items + 1
    neighbour: Ints  # edges: the other end; those of item i are first_edge[i]:first_edge[i + 1]
    edge_weight: Ints  # edges

    @classmethod
    def of(
        cls,
        load: NDArray[np.float64],
        node: Ints,
        neighbour: Ints,
        seconds: NDArray[np.float64],
    ) -> CsrGraph:
        """From seconds, and edges that are listed once."""
        start, end = np.concatenate([node, neighbour]), np.concatenate([neighbour, node])
        order = np.lexsort((end, start))
        count = np.bincount(start, minlength=len(load))
        return cls(
            _to_integers(load, len(load)),
            np.concatenate([[0], np.cumsum(count)]).astype(np.int64),
            end[order].astype(np.int64),
            _to_integers(np.concatenate([seconds, seconds])[order], len(start)),
        )

    def __len__(self) -> int:
        return len(self.load)


def metis(csr: CsrGraph, share: Shares, seed: int) -> Ints:
    """METIS's parts: by recursive bisection up to eight, which balances better, else k-way."""
    pymetis = _import_library("pymetis")
    share = np.maximum(share, share.max() * _MIN_SHARE)
    with _silence():
        parts = pymetis.part_graph(
            len(share),
            pymetis.CSRAdjacency(csr.first_edge, csr.neighbour),
            vweights=csr.load,
            eweights=csr.edge_weight,
            tpwgts=(share / share.sum()).tolist(),
            options=pymetis.Options(seed=seed),
        ).vertex_part
    return np.array(parts, dtype=np.int64)


def kahip(csr: CsrGraph, parts: int, seed: int) -> Ints:
    """KaHIP's parts, all of equal load."""
    library = _import_library("kahip")
    mode = library.ECO if len(csr) > _LARGE_GRAPH else library.STRONG
    with _silence():
        _, assignment = library.kaffpa(
            csr.load.tolist(),
            csr.first_edge.tolist(),
            csr.edge_weight.tolist(),
            csr.neighbour.tolist(),
            parts,
            _IMBALANCE,
            True,  # no output
            seed,
            mode,
        )
    return np.array(assignment, dtype=np.int64)


def scotch(csr: CsrGraph, share: Shares, distances: NDArray[np.float64], seed: int) -> Ints:
    """Scotch's static mapping onto devices of unequal speed and distance.

    Args:
        share: The share of the load for each device.
        distances: Devices × devices: seconds of an average tensor from one to the other.
    """
    library = _import_library("pyscotch")
    with _silence(), _single_thread():
        library.random_seed(seed)
        library.random_reset()
        with library.Graph() as graph, library.Context() as context:
            graph.build(csr.first_edge, csr.neighbour, csr.load, csr.edge_weight)
            context.option_set(_DETERMINISTIC, 1)
            context.random_seed(seed)
            context.random_reset()
            with _architecture(library, share, distances) as target:
                bound_graph = context.bind_graph(graph)
                try:
                    return np.array(bound_graph.map(target), dtype=np.int64)
                finally:
                    bound_graph.close()


@contextmanager
def _architecture(library: Any, share: Shares, distances: NDArray[np.float64]) -> Iterator[Any]:
    """The cluster as Scotch's target architecture: weights, domains and distances of devices.

    Scotch can make the domains itself, but then ignores distances.
    """
    symmetric = (distances + distances.T) / 2
    nearest = symmetric[symmetric > 0].min(initial=np.inf)
    distance = np.clip(np.rint(symmetric / nearest * 4), 1, 4 * _MAX_DISTANCE).astype(np.int64)
    weight = np.maximum(1, np.rint(share / share.max() * 1_000)).astype(np.int64)
    domain = _domains(distance)
    lines = ["deco", "0", f"{len(share)} {max(domain)}"]
    lines += [f"{index} {weight[index]} {domain[index]}" for index in range(len(share))]
    lines += [" ".join(map(str, distance[index, :index])) for index in range(1, len(share))]
    with TemporaryDirectory() as folder, library.Architecture() as target:
        path = Path(folder, "cluster.tgt")
        path.write_text("\n".join(lines) + "\n", encoding="ascii")
        target.load(path)
        yield target


def _domains(distance: Ints) -> list[int]:
    """Each device's number in a tree in which domain d is made of domains 2 d and 2 d + 1.

    A group is split between its two farthest devices, each with those that are nearer to it.
    """
    numbers = [1] * len(distance)

    def assign(group: list[int], number: int) -> None:
        if len(group) == 1:
            numbers[group[0]] = number
            return
        halves = group[: len(group) // 2], group[len(group) // 2 :]
        if number < _MAX_DOMAIN:
            pairwise = distance[np.ix_(group, group)]
            far_end, opposite = divmod(
                int((pairwise * ~np.eye(len(group), dtype=bool)).argmax()), len(group)
            )
            preference = (pairwise[far_end] - pairwise[opposite]).tolist()
            preference[far_end], preference[opposite] = -1, 1
            halves = [], []
            for index in sorted(range(len(group)), key=lambda index: preference[index] == 0):
                side = preference[index] > 0 or (
                    preference[index] == 0 and len(halves[1]) < len(halves[0])
                )
                halves[side].append(group[index])
        for side, half in enumerate(halves):
            assign(sorted(half), 2 * number + side)

    assign(list(range(len(distance))), 1)
    return numbers


def _to_integers(values: NDArray[np.float64], count: int) -> Ints:
    """Positive integers in proportion, whose sum is about `_WEIGHT_TOTAL` at most."""
    total = float(values.sum())
    if not total > 0:
        return np.ones(count, dtype=np.int64)
    return np.maximum(1, np.rint(values / total * _WEIGHT_TOTAL)).astype(np.int64)


def _import_library(name: str) -> Any:
    """A library, imported in silence.

    Raises:
        MissingDependency: It is not installed.
    """
    try:
        # In a notebook Python's streams are not the descriptors 1 and 2.
        with _silence(), redirect_stdout(StringIO()), redirect_stderr(StringIO()):
            module = import_module(name)
            if name == "pyscotch":
                import_module("pyscotch.libscotch")  # announces itself when first used
    except ImportError:
        raise MissingDependency(name, "partition") from None
    return module


@contextmanager
def _silence() -> Iterator[None]:
    """Discards what is written to standard output and error meanwhile, also by C code."""
    with _lock:
        saved = {}
        _flush()
        try:
            null = os.open(os.devnull, os.O_WRONLY)
            for stream in (1, 2):
                try:
                    saved[stream] = os.dup(stream)
                except OSError:  # closed: there is nothing to write to
                    continue
                os.dup2(null, stream)
            os.close(null)
            yield
        finally:
            _flush()  # buffered output of C must not appear later
            for stream, copy in saved.items():
                os.dup2(copy, stream)
                os.close(copy)


def _flush() -> None:
    for stream in (sys.stdout, sys.stderr):
        with suppress(AttributeError, OSError, ValueError):  # none, broken or closed
            stream.flush()
    if os.name == "posix":
        ctypes.CDLL(None).fflush(None)


@contextmanager
def _single_thread() -> Iterator[None]:
    """Scotch's parts depend on its threads, which cost more than they gain at our sizes."""
    name = "SCOTCH_PTHREAD_NUMBER"
    previous = os.environ.get(name)
    os.environ[name] = "1"
    try:
        yield
    finally:
        if previous is None:
            del os.environ[name]
        else:
            os.environ[name] = previous
