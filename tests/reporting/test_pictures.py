"""Pictures: SVG with a lane for each device and a mark for each op, PNG of the same, in a file."""

from __future__ import annotations

import xml.etree.ElementTree as ElementTree
from dataclasses import replace

import pytest

from placewright import Cluster, Problem, load, plot, save, solve, solvers, zoo
from placewright.errors import ConfigError, FileError, MissingDependency, PlanError
from placewright.reporting.palette import CRITICAL, device_colours

SVG = "{http://www.w3.org/2000/svg}"


@pytest.fixture(scope="module")
def problem():
    return Problem(zoo.load("branches:modules=2"), Cluster.parse("2xP100+cpu"))


@pytest.fixture(scope="module")
def result(problem):
    return solve(problem, solvers.METF())


def shapes(picture, tag):
    return list(ElementTree.fromstring(picture.svg).iter(SVG + tag))


def test_the_graph_has_a_mark_for_each_op_in_its_devices_colour(problem, result):
    marks = {}
    for rect in shapes(plot(result, "graph"), "rect"):
        title = rect.find(SVG + "title")
        if title is not None:
            marks[title.text] = rect.get("fill")
    colours = device_colours(problem.cluster.devices)
    wanted = {
        op.name: colours[result.plan.placement[at]] for at, op in enumerate(problem.graph.ops)
    }
    assert marks == wanted


def test_the_timeline_names_devices_and_draws_the_critical_path(problem, result):
    picture = plot(result)
    words = {text.text for text in shapes(picture, "text")}
    assert {"gpu0", "gpu1", "cpu", "critical path"} <= words
    assert [path for path in shapes(picture, "path") if path.get("stroke") == CRITICAL]
    colours = device_colours(problem.cluster.devices)
    drawn = [rect for rect in shapes(picture, "rect") if rect.get("fill") == colours[0]]
    # in all as wide as the device is busy, but for the hair between neighbours
    wide = sum(float(rect.get("width", 0)) for rect in drawn)
    share = result.devices[0].busy / result.step_time
    assert wide / (1000 - 130 - 12) == pytest.approx(share, abs=0.06)


def test_a_large_graph_is_folded():
    problem = Problem(zoo.load("layered:ops=5000"), Cluster.parse("2xP100+cpu"))
    picture = plot(solve(problem, solvers.RoundRobin()), "graph")
    assert len(shapes(picture, "rect")) < 400
    assert "ops 1–119" in picture.svg or "ops 1–120" in picture.svg


def test_pictures_are_written_by_their_ending(result, tmp_path):
    pytest.importorskip("resvg_py", reason="resvg-py is not installed")
    for what in ("timeline", "graph"):
        picture = plot(result, what)
        picture.save(tmp_path / "step.svg")
        assert (tmp_path / "step.svg").read_text() == picture.svg == picture._repr_svg_()
        picture.save(tmp_path / "step.png")
        content = (tmp_path / "step.png").read_bytes()
        assert content.startswith(b"\x89PNG")
        assert int.from_bytes(content[16:20]) == 2000  # twice the picture's points
    with pytest.raises(FileError, match=r"step.gif: a picture is SVG or PNG"):
        picture.save(tmp_path / "step.gif")
    with pytest.raises(FileError, match="cannot be written"):
        picture.save(tmp_path / "nowhere" / "step.svg")


def test_a_missing_package_is_named(result, monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "resvg_py", None)
    with pytest.raises(MissingDependency, match=r"placewright\[png\]"):
        plot(result).png()


def test_a_result_from_a_file_needs_its_problem(problem, result, tmp_path):
    save(result, tmp_path / "result.json")
    loaded = load(tmp_path / "result.json", "result")
    with pytest.raises(PlanError, match="does not know its problem: give it"):
        plot(loaded)
    assert plot(loaded, problem=problem).svg == plot(result).svg
    with pytest.raises(ConfigError, match="no picture 'timelime' of a result: did you mean"):
        plot(result, "timelime")
    other = replace(problem, graph=zoo.load("diamond"))
    with pytest.raises(PlanError, match="the plan places op"):
        plot(loaded, problem=other)
