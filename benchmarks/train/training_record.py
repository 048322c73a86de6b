"""What a policy was trained with: seed, commit, data and a digest of its graphs.

Weights can be made again only from the same graphs. Their file has the digest of those that need no
capture; `tests/benchmarks/test_training_sets.py` compares it with the digest of today's graphs.
"""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, Any

from benchmarks.common import provenance
from placewright import zoo

if TYPE_CHECKING:
    from collections.abc import Iterable

    from placewright.graph import Graph

GENERATED = ("cifar10", "ptb", "nmt", "layered", "series-parallel", "fork-join")
"""Kinds of network that are generated; others are captured, and depend on PyTorch's release."""


def graph_digest(graphs: Iterable[Graph]) -> str:
    """A digest of everything in the graphs that matters to plans, in their order."""
    digest = hashlib.blake2b(digest_size=16)
    for graph in graphs:
        digest.update(graph.fingerprint.encode())
    return digest.hexdigest()


def generated_networks(networks: Iterable[str]) -> list[str]:
    """Those of the networks that need no capture, each once."""
    named = dict.fromkeys(networks)
    return [network for network in named if network.partition(":")[0] in GENERATED]


def training_record(seed: int, data: str, networks: Iterable[str]) -> dict[str, Any]:
    """The record that a policy's file has.

    Args:
        data: What it was trained on, in words.
        networks: The networks of those problems, by name.
    """
    graphs = (zoo.load(network) for network in generated_networks(networks))
    commit = provenance()["commit"]
    return {"seed": seed, "commit": commit, "data": data, "graphs": graph_digest(graphs)}
