"""Demonstrations for GO: plans of two small problems, made once per module."""

from __future__ import annotations

import json

import pytest


@pytest.fixture(scope="module")
def taught_file(tmp_path_factory):
    """A file of demonstrations."""
    pytest.importorskip("torch")
    from placewright.training.go.demonstrations import DemonstrationTask, make_demonstration

    tasks = (
        DemonstrationTask("branches:modules=1", "2xP100+cpu", "ready"),
        DemonstrationTask("branches:modules=1", "3xP100+cpu", "in order", 1.5),
    )
    path = tmp_path_factory.mktemp("go") / "teachers.jsonl"
    rows = [make_demonstration(task, task.problem(), (50, 300), 20.0) for task in tasks]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


@pytest.fixture
def lessons(taught_file):
    """The demonstrations of that file."""
    from placewright.training.go.demonstrations import read_demonstrations

    return read_demonstrations(taught_file)
