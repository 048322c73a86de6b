"""Help: panels, names that can be used, plain usage lines, at most 80 columns."""

from __future__ import annotations

import re

import pytest
import typer

from placewright.cli import names
from placewright.cli.app import app
from placewright.cli.panels import PANELS

COMMANDS = typer.main.get_command(app).commands


@pytest.mark.parametrize("command", ["", *COMMANDS])
def test_no_line_of_help_is_wider_than_80_columns(run, command, monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")  # a wide terminal changes nothing
    ran = run(*filter(None, [command]), "--help")
    assert ran.status == 0
    assert max(map(len, ran.out.splitlines())) <= 80


@pytest.mark.parametrize("command", COMMANDS)
def test_every_option_is_in_a_panel_and_none_shows_its_range(run, command):
    out = run(command, "--help").out
    assert not re.search(r"x[<>]=?\d|<int>|<str>|\{|\[\[", out)
    assert "\nOptions:" not in out
    headings = re.findall(r"^(\w+):$", out, re.M)
    assert set(headings) <= {"Arguments", *PANELS}
    assert headings[-1] == "General"
    for parameter in COMMANDS[command].params:
        if parameter.param_type_name == "option" and not parameter.hidden:
            assert parameter.rich_help_panel in PANELS, parameter.name


def test_usage_names_arguments_as_people_write_them(run):
    usage = {name: run(name, "--help").out.splitlines()[0] for name in COMMANDS}
    assert usage["place"] == "Usage: placewright place [OPTIONS] MODEL"
    assert usage["train"] == "Usage: placewright train [OPTIONS] [RECIPE] [MODEL]"
    assert usage["profile"] == "Usage: placewright profile [OPTIONS] [MODEL]"
    assert usage["diff"] == "Usage: placewright diff [OPTIONS] FIRST SECOND"
    assert usage["report"] == "Usage: placewright report [OPTIONS] RESULT..."


def test_names_in_the_help_are_those_of_the_library():
    from placewright.exporters import TARGETS
    from placewright.solvers import METHODS
    from placewright.training import RECIPES
    from placewright.training.policy_solver import POLICY_SOLVERS

    assert tuple(METHODS) == names.METHOD_NAMES
    assert tuple(POLICY_SOLVERS) == names.POLICY_NAMES
    assert tuple(RECIPES) == names.RECIPE_NAMES
    assert tuple(TARGETS) == names.TARGET_NAMES


@pytest.mark.parametrize(
    ("command", "listed"),
    [
        ("place", (*names.METHOD_NAMES, *names.POLICY_NAMES)),
        ("train", names.RECIPE_NAMES),
        ("export", names.TARGET_NAMES),
    ],
)
def test_help_lists_every_name_whole(run, command, listed):
    words = re.findall(r"[\w.-]+", run(command, "--help").out)
    assert {word.rstrip(".") for word in words} >= set(listed)


def test_an_unknown_choice_is_named_once(run):
    ran = run("place", "diamond", "--on", "2xP100", "--objective", "throughput")
    assert ran.status == 2
    assert "Invalid value for '--objective': 'throughput' is not one of 'step', 'period'" in ran.err
    assert "Value error" not in ran.err


@pytest.mark.parametrize("option", ["-V", "--version"])
def test_the_version_has_two_options(run, option):
    from placewright.version import __version__

    assert run(option).out == f"placewright {__version__}\n"
