"""The key of a problem: a digest of everything that makes two plans of it comparable."""

from __future__ import annotations

import hashlib
import json
from dataclasses import fields
from typing import TYPE_CHECKING, Any

import numpy as np

from placewright.simulator import RULES_VERSION
from placewright.workload import Workload

if TYPE_CHECKING:
    from placewright.problem import Problem

KEY_VERSION = 1
"""Raised when a key is made of other facts."""


def digest_facts(facts: dict[str, Any]) -> str:
    """The digest of plain data, whatever the order of their keys."""
    text = json.dumps(facts, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()


def problem_key(problem: Problem | Workload, fuse: bool = False) -> str:
    """The key of a problem or a workload.

    It has the graph, the cluster, op and transfer times, constraints and limits, the objective and
    the discipline, and the version of the simulator's rules. The release is no part of it: a
    release that captures a model as another graph has another key for it.

    Args:
        fuse: Whether plans may fuse ops: those that do not, never start from one that does.
    """
    if isinstance(problem, Workload):
        calls = [
            [call.name, float(call.count), problem_key(call.problem, fuse)]
            for call in problem.calls
        ]
        return digest_facts({"version": KEY_VERSION, "calls": calls})
    return digest_facts(
        {
            "version": KEY_VERSION,
            "rules": RULES_VERSION,
            "graph": problem.graph.fingerprint,
            "cluster": problem.cluster.fingerprint,
            "objective": problem.objective,
            "discipline": problem.discipline,
            "overlap": bool(problem.overlap),
            "arrays": _digest_arrays(problem.arrays),
            "fused": _digest_arrays(_fused_parts(problem)) if fuse else "",
        }
    )


def _fused_parts(problem: Problem) -> Any:
    return problem.costs.fused_parts(problem.graph, problem.cluster)


def _digest_arrays(instance: Any) -> str:
    """A digest of all arrays of a data type: their names, types, shapes and bytes."""
    digest = hashlib.sha256()
    for each in fields(instance):
        array = np.ascontiguousarray(getattr(instance, each.name))
        digest.update(f"{each.name}:{array.dtype.str}:{array.shape}:".encode())
        digest.update(array.tobytes())
    return digest.hexdigest()
