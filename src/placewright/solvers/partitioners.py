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
from ctypes import byref
from dataclasses import dataclass
from importlib import import_module
from io import StringIO
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
    """The cluster as a complete graph: devices weigh their speed, links the time they take."""
    devices = len(share)
    everyone = np.arange(devices)
    other = np.concatenate([everyone[everyone != device] for device in everyone])
    one = np.repeat(everyone, devices - 1)
    seconds = ((apart + apart.T) / 2)[one, other]
    near = seconds[seconds > 0].min(initial=np.inf)
    distance = np.clip(np.rint(seconds / near * 4), 1, 4 * _FARTHEST).astype(np.int64)
    speed = np.maximum(1, np.rint(share / share.max() * 1_000)).astype(np.int64)
    low = library.libscotch
    strategy = low.SCOTCH_Strat()
    with library.Graph() as links, library.Architecture() as target:
        links.build(np.arange(devices + 1) * (devices - 1), other, speed, distance)
        low.SCOTCH_stratInit(byref(strategy))  # an empty one: the library's default
        try:
            # The package has no method for this one; its own classes hold these structures.
            failed = low.SCOTCH_archBuild(
                byref(target._arch), byref(links._graph), 0, None, byref(strategy)
            )
        finally:
            low.SCOTCH_stratExit(byref(strategy))
        if failed:
            raise low.scotch_error("Scotch could not build the architecture", failed)
        yield target


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
