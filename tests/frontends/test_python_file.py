"""Python files in: the graph of what they build, or one line about what went wrong."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import pytest
from torch_models import flops

from placewright.errors import FileError
from placewright.frontends.python_file import from_python

if TYPE_CHECKING:
    from pathlib import Path

torch = pytest.importorskip("torch")
torch.set_num_threads(1)
nn = torch.nn


MODEL = """
import torch
from neighbour import WIDTH

def build():
    return torch.nn.Linear(WIDTH, 2), (torch.zeros(3, WIDTH),), {}

def broken():
    return 1 / 0

def wrong():
    return torch.nn.Linear(WIDTH, 2)

def number():
    return torch.nn.Linear(WIDTH, 2), (torch.zeros(3, WIDTH),), 5
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "model.py").write_text(MODEL)
    (tmp_path / "neighbour.py").write_text("WIDTH = 4\n")
    yield tmp_path
    sys.modules.pop("neighbour", None)


def test_a_python_file_gives_the_graph_of_what_it_builds(folder: Path) -> None:
    graph = from_python(f"{folder}/model.py:build")
    assert flops(graph) == 2 * 3 * 4 * 2 + 3 * 2
    assert from_python(folder / "model.py").fingerprint == graph.fingerprint
    step = from_python(f"{folder}/model.py:build", training=True, optimizer="adam", name="step")
    assert step.name == "step"
    assert str(folder) not in sys.path


@pytest.mark.parametrize(
    ("function", "message"),
    [
        ("broken", r"model.py': broken\(\) line 9: ZeroDivisionError: division by zero$"),
        (
            "wrong",
            r"wrong\(\) returns a model of type Linear without an example input, which sets the "
            r"sizes of a step: expected \(model, args\)",
        ),
        ("number", r"number\(\) returned arguments by name of type int: expected a dict$"),
        ("biuld", r"model.py' has no function 'biuld': did you mean 'build'\?$"),
    ],
)
def test_errors_in_a_python_file_name_its_line(folder: Path, function: str, message: str) -> None:
    with pytest.raises(FileError, match=message):
        from_python(f"{folder}/model.py:{function}")


def test_a_line_is_named_of_a_file_that_is_given_from_where_one_is(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(folder)
    with pytest.raises(FileError, match=r"broken\(\) line 9: ZeroDivisionError"):
        from_python("model.py:broken")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("def build(:\n", r"model.py' line 1: invalid syntax$"),
        ("x = 1\nimport not_there\n", r"model.py' line 2: ModuleNotFoundError: No module named"),
        ("raise SystemExit(3)\n", r"model.py' line 1: SystemExit: 3$"),
    ],
)
def test_a_python_file_that_cannot_be_run_is_one_line(
    tmp_path: Path, text: str, message: str
) -> None:
    (tmp_path / "model.py").write_text(text)
    with pytest.raises(FileError, match=message):
        from_python(tmp_path / "model.py")


def test_a_missing_python_file_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(FileError, match=r"nothing\.py' does not exist: expected a Python file"):
        from_python(f"{tmp_path}/nothing.py:build")
    (tmp_path / "model.txt").write_text(MODEL)
    with pytest.raises(FileError, match=r"model\.txt' is not a Python file: expected a name that"):
        from_python(tmp_path / "model.txt")
