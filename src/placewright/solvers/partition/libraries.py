"""Graph partitioning libraries: loads, ties and shares in, a part for each item out.

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

_TOTAL = 2**30  # all loads, or all ties, together: sums still fit 32 bits
_LARGE = 4_000  # items above which KaHIP's strong setting takes many seconds
_IMBALANCE = 0.03  # what KaHIP allows a part above its share; METIS and Scotch have their own
_FARTHEST = 1_000  # Scotch's distance between devices, in links of the nearest
_DEEP = 2**10  # domain of Scotch from which on it is parted in equal halves
_DETERMINISTIC = 0  # SCOTCH_OPTIONNUMDETERMINISTIC of scotch.h
_lock = threading.Lock()  # the libraries have global random states, and so have file descriptors


@dataclass(frozen=True, eq=False)
class Web:
    """What is to be partitioned: items with loads, and ties both ways, all positive integers."""

    load: Ints  # items
    first: Ints  # items + 1
    other: Ints  # ties: the item at the other end; those of item i are first[i]:first[i + 1]
    weight: Ints  # ties

    @classmethod
    def of(
        cls,
        load: NDArray[np.float64],
        one: Ints,
        other: Ints,
        seconds: NDArray[np.float64],
    ) -> Web:
        """From seconds, and ties that are named once."""
        start, end = np.concatenate([one, other]), np.concatenate([other, one])
        order = np.lexsort((end, start))
        count = np.bincount(start, minlength=len(load))
        return cls(
            _scaled(load, len(load)),
            np.concatenate([[0], np.cumsum(count)]).astype(np.int64),
            end[order].astype(np.int64),
            _scaled(np.concatenate([seconds, seconds])[order], len(start)),
        )

    def __len__(self) -> int:
        return len(self.load)


def metis(web: Web, share: Shares, seed: int) -> Ints:
    """METIS's parts: by recursive bisection up to eight, which balances better, else k-way."""
    pymetis = _library("pymetis")
    with _quiet():
        parts = pymetis.part_graph(
            len(share),
            pymetis.CSRAdjacency(web.first, web.other),
            vweights=web.load,
            eweights=web.weight,
            tpwgts=(share / share.sum()).tolist(),
            options=pymetis.Options(seed=seed),
        ).vertex_part
    return np.array(parts, dtype=np.int64)


def kahip(web: Web, parts: int, seed: int) -> Ints:
    """KaHIP's parts, all of equal load."""
    library = _library("kahip")
    mode = library.ECO if len(web) > _LARGE else library.STRONG
    with _quiet():
        _, found = library.kaffpa(
            web.load.tolist(),
            web.first.tolist(),
            web.weight.tolist(),
            web.other.tolist(),
            parts,
            _IMBALANCE,
            True,  # no output
            seed,
            mode,
        )
    return np.array(found, dtype=np.int64)


def scotch(web: Web, share: Shares, apart: NDArray[np.float64], seed: int) -> Ints:
    """Scotch's static mapping onto devices of unequal speed and distance.

    Args:
        share: What each device should get of the load.
        apart: Devices × devices: the seconds of an average tensor from one to the other.
    """
    library = _library("pyscotch")
    with _quiet(), _one_thread():
        library.random_seed(seed)
        library.random_reset()
        with library.Graph() as graph, library.Context() as context:
            graph.build(web.first, web.other, web.load, web.weight)
            context.option_set(_DETERMINISTIC, 1)
            context.random_seed(seed)
            context.random_reset()
            with _architecture(library, share, apart) as target:
                bound = context.bind_graph(graph)
                try:
                    return np.array(bound.map(target), dtype=np.int64)
                finally:
                    bound.close()


@contextmanager
def _architecture(library: Any, share: Shares, apart: NDArray[np.float64]) -> Iterator[Any]:
    """The cluster as Scotch sees it: the devices' weights, how they group, how far apart they are.

    Scotch can group them itself, but does not look at distances then.
    """
    both = (apart + apart.T) / 2
    near = both[both > 0].min(initial=np.inf)
    distance = np.clip(np.rint(both / near * 4), 1, 4 * _FARTHEST).astype(np.int64)
    weight = np.maximum(1, np.rint(share / share.max() * 1_000)).astype(np.int64)
    domain = _domains(distance)
    lines = ["deco", "0", f"{len(share)} {max(domain)}"]
    lines += [f"{at} {weight[at]} {domain[at]}" for at in range(len(share))]
    lines += [" ".join(map(str, distance[at, :at])) for at in range(1, len(share))]
    with TemporaryDirectory() as folder, library.Architecture() as target:
        path = Path(folder, "cluster.tgt")
        path.write_text("\n".join(lines) + "\n", encoding="ascii")
        target.load(path)
        yield target


def _domains(distance: Ints) -> list[int]:
    """Each device's number in a tree in which domain d is made of domains 2 d and 2 d + 1.

    A group is parted between its two farthest devices, each with those that are nearer to it.
    """
    numbers = [1] * len(distance)

    def part(group: list[int], number: int) -> None:
        if len(group) == 1:
            numbers[group[0]] = number
            return
        halves = group[: len(group) // 2], group[len(group) // 2 :]
        if number < _DEEP:
            inner = distance[np.ix_(group, group)]
            one, other = divmod(int((inner * ~np.eye(len(group), dtype=bool)).argmax()), len(group))
            closer = (inner[one] - inner[other]).tolist()
            closer[one], closer[other] = -1, 1
            halves = [], []
            for at in sorted(range(len(group)), key=lambda at: closer[at] == 0):
                side = closer[at] > 0 or (closer[at] == 0 and len(halves[1]) < len(halves[0]))
                halves[side].append(group[at])
        for side, half in enumerate(halves):
            part(sorted(half), 2 * number + side)

    part(list(range(len(distance))), 1)
    return numbers


def _scaled(values: NDArray[np.float64], count: int) -> Ints:
    """Positive integers in proportion, whose sum is about `_TOTAL` at most."""
    total = float(values.sum())
    if not total > 0:
        return np.ones(count, dtype=np.int64)
    return np.maximum(1, np.rint(values / total * _TOTAL)).astype(np.int64)


def _library(name: str) -> Any:
    """A library, imported in silence.

    Raises:
        MissingDependency: It is not installed.
    """
    try:
        # In a notebook Python's streams are not the descriptors 1 and 2.
        with _quiet(), redirect_stdout(StringIO()), redirect_stderr(StringIO()):
            module = import_module(name)
            if name == "pyscotch":
                import_module("pyscotch.libscotch")  # announces itself when first used
    except ImportError:
        raise MissingDependency(name, "partition") from None
    return module


@contextmanager
def _quiet() -> Iterator[None]:
    """Whatever is written to standard output and error meanwhile, by C code too, is dropped."""
    with _lock:
        kept = {}
        _flush()
        try:
            nowhere = os.open(os.devnull, os.O_WRONLY)
            for stream in (1, 2):
                try:
                    kept[stream] = os.dup(stream)
                except OSError:  # closed: there is nothing to write to
                    continue
                os.dup2(nowhere, stream)
            os.close(nowhere)
            yield
        finally:
            _flush()  # what C has buffered must not come out later
            for stream, copy in kept.items():
                os.dup2(copy, stream)
                os.close(copy)


def _flush() -> None:
    for stream in (sys.stdout, sys.stderr):
        with suppress(AttributeError, OSError, ValueError):  # none, broken or closed
            stream.flush()
    if os.name == "posix":
        ctypes.CDLL(None).fflush(None)


@contextmanager
def _one_thread() -> Iterator[None]:
    """Scotch's parts depend on its threads, which cost more than they bring at our sizes."""
    name = "SCOTCH_PTHREAD_NUMBER"
    before = os.environ.get(name)
    os.environ[name] = "1"
    try:
        yield
    finally:
        if before is None:
            del os.environ[name]
        else:
            os.environ[name] = before
