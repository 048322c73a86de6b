"""Names that carry control characters: a terminal gets them escaped, whatever prints them."""

from __future__ import annotations

import re

import pytest

from placewright import Cluster, Device, Graph, Link, Op, Problem, Roofline, save
from placewright.errors import GraphError, printable

TITLE = "\x1b]0;owned\x07"  # sets a window's title
HOSTILE = f"{TITLE}\x1b[2J\x9b31m\r\n\x85\u2028\u202eevil"
CONTROL = re.compile("[\x00-\x09\x0b-\x1f\x7f-\x9f\u2028-\u202e]")


@pytest.fixture
def hostile(tmp_path):
    """A problem whose every name is hostile, in a file."""
    ops = tuple(
        Op(
            f"{HOSTILE}{at}",
            kind=f"{HOSTILE}kind",
            module=f"{HOSTILE}.{at}",
            inputs=((at - 1, 0),) if at else (),
            outputs=(8,),
            flops=1e9 * (1 + at % 2),
        )
        for at in range(6)
    )
    devices = tuple(
        Device(
            f"{HOSTILE}d{at}",
            kind=HOSTILE,
            model=HOSTILE,
            memory=20,
            rates={"float32": 1e9},
            memory_bandwidth=1e30,
        )
        for at in range(2)
    )
    names = [device.name for device in devices]
    links = {(a, b): Link(1e9, channel=HOSTILE) for a in names for b in names if a != b}
    problem = Problem(Graph(HOSTILE, ops), Cluster(HOSTILE, devices, links), Roofline())
    path = tmp_path / "problem.json"
    save(problem, path)
    return path


def refuse_controls(ran, *statuses):
    assert ran.status in (statuses or (0,))
    assert "evil" in ran.out + ran.err
    found = CONTROL.findall(ran.out + ran.err)
    assert found == []


def test_every_command_escapes_names(run, hostile):
    heft = ("--method", "heft")
    refuse_controls(run("place", hostile, *heft, "-o", "plan.json", "--robust"))
    refuse_controls(run("compare", hostile, "--methods", "single,heft"))
    refuse_controls(run("simulate", hostile, "--plan", "plan.json"))
    refuse_controls(run("explain", "plan.json"))
    for method in ("single", "round-robin"):
        run("place", hostile, "--method", method, "-o", f"{method}.json")
    refuse_controls(run("diff", "single.json", "round-robin.json", "--all"))
    refuse_controls(run("diff", "single.json", "round-robin.json"))
    refuse_controls(run("place", hostile, *heft, "--json"))
    refuse_controls(run("explain", "plan.json", "--op", "nobody"), 1)
    refuse_controls(run("place", f"{HOSTILE}.json", "--on", "cpu"), 1)


@pytest.mark.slow  # policies are read
def test_an_op_is_explained_with_names_escaped(run, hostile):
    run("place", hostile, "--method", "heft", "-o", "plan.json")
    refuse_controls(run("explain", "plan.json", "--op", f"{HOSTILE}0"))


def test_an_error_is_one_line_whatever_it_names():
    error = GraphError(f"op {HOSTILE} is odd")
    assert len(str(error).splitlines()) == 1
    assert str(error) == f"op {printable(HOSTILE)} is odd"
    assert printable("Größe µs – 'a'\\b") == "Größe µs – 'a'\\b"
