"""The wiring of a graph: a fingerprint of its kinds of ops and edges, without names and sizes.

Two graphs of one wiring differ in batch, widths or names alone, so a policy that was trained on one
of them knows the other. The fingerprint does not depend on the order of ops in the graph.
"""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

    from placewright.graph import Graph


def wiring_fingerprint(graph: Graph) -> str:
    """The fingerprint: every op with all that comes before it and all that comes after it.

    One pass forwards gives each op a digest of its kind and of what it reads, in the order of its
    inputs; one pass backwards a digest of what reads it, in any order. Some different wirings agree
    in all digests: a graph may count as known that is new, never the other way round.
    """
    before: list[bytes] = []
    readers: list[list[int]] = [[] for _ in graph.ops]
    for at, op in enumerate(graph.ops):
        reads = [before[source] + output.to_bytes(4, "little") for source, output in op.inputs]
        before.append(_digest([op.kind.encode(), *reads]))
        for source, _ in op.inputs:
            readers[source].append(at)
    after = [b""] * len(graph.ops)
    for at in reversed(range(len(graph.ops))):
        kind = graph.ops[at].kind.encode()
        after[at] = _digest([kind, *sorted(after[reader] for reader in readers[at])])
    return _digest(sorted(one + two for one, two in zip(before, after, strict=True))).hex()


def _digest(parts: Iterable[bytes]) -> bytes:
    digest = hashlib.blake2b(digest_size=8)
    for part in parts:
        digest.update(len(part).to_bytes(4, "little") + part)
    return digest.digest()
