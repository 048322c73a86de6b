"""Problems, constraints and costs in files."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from placewright import Constraints, load, save
from placewright.errors import ConfigError, FileError, PlacewrightError, ProblemError
from placewright.files import from_data, to_data

Data = dict[str, Any]
Write = Callable[..., Path]
GRAPH = {"placewright": "graph", "version": 2}
COSTS = {"placewright": "costs", "version": 2}


def test_constraints_are_read_from_toml(write: Write) -> None:
    text = """
        placewright = "constraints"
        version = 3
        colocate = [["a", "b*"]]
        [pins]
        a = "gpu0"
        [forbid]
        "c.*" = ["cpu", "gpu1"]
        [limits]
        gpu0 = "8 GiB"
        gpu1 = 100
    """
    assert load(write(text, "c.toml"), kind="constraints") == Constraints(
        pins={"a": "gpu0"},
        forbid={"c.*": ("cpu", "gpu1")},
        colocate=(("a", "b*"),),
        limits={"gpu0": 8 * 2**30, "gpu1": 100},
    )


@pytest.mark.parametrize(
    ("body", "error", "message"),
    [
        (
            {"model": "magic"},
            ProblemError,
            "cost model 'magic' is unknown: known: roofline, table",
        ),
        ({"model": "tabel"}, ProblemError, "cost model 'tabel' is unknown: did you mean 'table'?"),
        ({}, ConfigError, "the file has no 'model': add it"),
        ({"model": 7}, ConfigError, "model is 7: expected text"),
        ({"model": "roofline", "compute": "x"}, ConfigError, "compute is 'x': expected a number"),
        ({"model": "roofline", "share": 1}, ConfigError, "the file has an unknown key 'share'"),
        ({"model": "table", "ops": []}, ConfigError, "the file has no 'columns': add it"),
        (
            {"model": "table", "ops": ["a"], "columns": ["gpu"], "seconds": [[1, 2]]},
            ProblemError,
            "row 0 of the cost table has 2 entries: expected one for each of 1 columns",
        ),
        (
            {"model": "table", "ops": ["a"], "columns": ["gpu"], "seconds": []},
            ProblemError,
            "the cost table has shape (0, 1): expected 1 ops x 1 columns",
        ),
        (
            {"model": "table", "ops": ["a"], "columns": ["gpu"], "seconds": [[-1]]},
            ProblemError,
            "the cost table holds -1.0 seconds: expected 0 to 1e+18",
        ),
        (
            {"model": "table", "ops": ["a"], "columns": ["gpu"], "seconds": [["1"]]},
            ConfigError,
            "seconds[0] is '1': expected a number",
        ),
        (
            {"model": "table", "ops": "a", "columns": ["gpu"], "seconds": [[1]]},
            ConfigError,
            "ops is 'a': expected a list",
        ),
    ],
)
def test_malformed_costs_are_refused(
    body: Data, error: type[PlacewrightError], message: str
) -> None:
    with pytest.raises(error, match=f"^{re.escape(message)}"):
        from_data(COSTS | body)


def test_costs_of_ones_own_cannot_be_saved(tmp_path: Path) -> None:
    class Oracle:
        """Knows everything, says nothing."""

    message = "costs of type Oracle cannot be saved: expected a Roofline or a Table"
    with pytest.raises(FileError, match=f": {message}$"):
        save(Oracle(), tmp_path / "costs.json")  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("changes", "error", "message"),
    [
        (
            {"discipline": "eager"},
            ProblemError,
            "discipline 'eager': expected 'in order' or 'ready'",
        ),
        ({"objective": ["step"]}, ConfigError, "objective is ['step']: expected text"),
        ({"overlap": "no"}, ConfigError, "overlap is 'no': expected true or false"),
        ({"cluster": {}}, FileError, "cluster does not say what it holds"),
        (
            {"graph": GRAPH | {"name": "g", "ops": [{"name": "a", "flops": "x"}]}},
            ConfigError,
            "graph.ops[0].flops is 'x': expected a number",
        ),
        (
            {"graph": GRAPH | {"name": "g", "ops": [{"name": "a"}], "op": 1}},
            ConfigError,
            "graph has an unknown key 'op': did you mean 'ops'?",
        ),
        (
            {"constraints": {"placewright": "constraints", "version": 2, "pin": {}}},
            ConfigError,
            "constraints has an unknown key 'pin': did you mean 'pins'?",
        ),
        (
            {"constraints": {"placewright": "constraints", "version": 2, "pins": {"a": 1}}},
            ConfigError,
            "constraints.pins['a'] is 1: expected text",
        ),
        (
            {"constraints": {"placewright": "constraints", "version": 2, "colocate": ["ab"]}},
            ConfigError,
            "constraints.colocate[0] is 'ab': expected a list",
        ),
        (
            {"constraints": {"placewright": "constraints", "version": 2, "limits": {"a": -1}}},
            ProblemError,
            "the limit of device 'a' is -1 bytes: expected >= 0",
        ),
    ],
)
def test_a_malformed_problem_says_which_part(
    nouns: dict[str, Any], changes: Data, error: type[PlacewrightError], message: str
) -> None:
    with pytest.raises(error, match=f"^{re.escape(message)}"):
        from_data(to_data(nouns["problem"]) | changes)
