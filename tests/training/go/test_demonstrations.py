"""Demonstrations: they come back from their file, the best first."""

from __future__ import annotations

import numpy as np
import pytest

from placewright import judge
from placewright.errors import FileError
from placewright.workers import open_workers

torch = pytest.importorskip("torch")

from placewright.training.go.demonstrations import (  # noqa: E402
    DemonstrationTask,
    MakeDemonstrations,
    graph_file,
    read_demonstrations,
    read_records,
)

TASKS = (
    DemonstrationTask("branches:modules=1", "2xP100+cpu", "ready"),
    DemonstrationTask("branches:modules=1", "3xP100+cpu", "in order", 1.5),
)


def test_teachers_plans_come_back_the_best_first(lessons, taught_file, tmp_path):
    assert [lesson.task for lesson in lessons] == list(TASKS)
    for lesson in lessons:
        keys = list(zip(lesson.overflow.tolist(), lesson.objective_values.tolist(), strict=True))
        assert keys == sorted(keys)
        assert {"start", "m-etf", "heft"} & set(lesson.found_by)
        assert len(np.unique(lesson.placements, axis=0)) == len(lesson.placements)
        judge(lesson.problem, lesson.placements)  # raises unless all are lawful
    assert lessons[1].problem.arrays.capacity[0] < lessons[0].problem.arrays.capacity[0]
    assert read_demonstrations(taught_file, tasks=TASKS[1:])[0].task == TASKS[1]
    text = taught_file.read_text()
    cut = tmp_path / "cut.jsonl"
    cut.write_text(text[: len(text) * 3 // 4])  # as when its writer was killed
    assert len(read_records(cut)) == 1
    other = tmp_path / "other.jsonl"
    other.write_text(text.replace("modules=1", "modules=2"))
    with pytest.raises(FileError, match="line 1 was made from another graph"):
        read_demonstrations(other)


def test_a_folders_graph_takes_the_zoos_place(tmp_path):
    from placewright import files, zoo

    files.save(zoo.load("branches:modules=2"), graph_file("branches:modules=1", tmp_path))
    assert len(TASKS[0].problem(tmp_path).graph) > len(TASKS[0].problem().graph)


def test_workers_make_the_demonstrations_of_this_process():
    label = MakeDemonstrations((20,), 1e4, 60.0, min_evaluations=50, max_evaluations=80)

    def plans(lines):
        return [{**line, "seconds": 0} for line in lines]

    with open_workers("threads:2") as workers:
        assert plans(workers.map(label, TASKS)) == plans(label(None, TASKS))
