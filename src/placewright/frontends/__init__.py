"""Frontends: a model of another library or a public workload in, a Graph or a Problem out."""

from __future__ import annotations

from placewright.frontends.workloads import from_workload, is_split, is_workload, read_split

__all__ = ["from_workload", "is_split", "is_workload", "read_split"]
