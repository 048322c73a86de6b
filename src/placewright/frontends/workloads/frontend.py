"""Reads public workload and split files, and detects their format by content."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING

from placewright.errors import FileError
from placewright.frontends.text_files import file_label, read_text
from placewright.frontends.workloads.pipedream import read_profile
from placewright.frontends.workloads.split import read_plan
from placewright.frontends.workloads.tarnawski import read_workload

if TYPE_CHECKING:
    from placewright.cluster import Cluster
    from placewright.plan import Plan
    from placewright.problem import Problem

_PROFILE_LINE = re.compile(r"^node[0-9]+ -- .* -- forward_compute_time=", re.MULTILINE)


def from_workload(
    path: str | Path, training: bool = True, cluster: Cluster | None = None
) -> Problem:
    """The problem that a dnn-partitioning workload or a PipeDream profile describes.

    Args:
        training: Whether to include backward ops, if the file has any.
        cluster: Replaces the file's own.

    Raises:
        FileError: The file cannot be read, or holds something else.
        GraphError: Its network is malformed; the message names the location.
    """
    path = Path(path)
    text = read_text(path)
    if text.lstrip().startswith(("{", "[")):
        return read_workload(path, text, training, cluster)
    if _PROFILE_LINE.search(text):
        return read_profile(path, text, training, cluster)
    raise FileError(
        f"{file_label(path)} is not a workload: expected dnn-partitioning JSON or a PipeDream "
        "profile"
    )


def is_workload(path: str | Path) -> bool:
    """Whether a file is a public workload, valid or damaged."""
    text = _text_or_empty(path)
    return _is_json_with(text, "maxFPGAs") or _PROFILE_LINE.search(text) is not None


def is_split(path: str | Path) -> bool:
    """Whether a file is a split of a dnn-partitioning workload, valid or damaged."""
    return _is_json_with(_text_or_empty(path), "fpgas")


def read_split(problem: Problem, path: str | Path) -> Plan:
    """The plan that a split file of the dnn-partitioning release describes.

    Raises:
        FileError: The file cannot be read, or is not a split.
        PlanError: It does not fit the problem.
    """
    path = Path(path)
    return read_plan(problem, path, read_text(path))


def _is_json_with(text: str, key: str) -> bool:
    return text.lstrip().startswith("{") and re.search(rf'"{key}"\s*:', text) is not None


def _text_or_empty(path: str | Path) -> str:
    """A file's text, or empty text if it cannot be read."""
    try:
        return read_text(Path(path))
    except FileError:
        return ""
