"""`placewright place` says why, in two lines and in JSON."""

from __future__ import annotations

import pytest

import placewright as pw

ON = ("--on", "V100+cpu", "--limit", "gpu0=3GiB")
STREAMED = ("place", "transformer:tokens=512", *ON, "--method", "baselines")


def test_two_lines_say_what_binds_and_what_would_help(run):
    ran = run(*STREAMED)
    assert (ran.status, ran.err) == (0, "")
    said = " ".join(ran.out[ran.out.index("\nwhy: ") :].split())
    assert "the link cpu→gpu0 is busy 76 % of the step streaming others to it" in said
    assert "what would help: gpu0 twice as fast: 336.4 ms → 258.3 ms (−23 %); the link" in said
    assert max(map(len, ran.out.splitlines())) <= 80


def test_json_has_shares_the_longest_pieces_and_helps(run):
    found = run(*STREAMED, "--json").data
    why = found["why"]
    assert sum(each["seconds"] for each in why["shares"]) == pytest.approx(found["step_time"])
    assert sum(each["share"] for each in why["shares"]) == pytest.approx(1)
    assert sum(why["waits"].values()) == pytest.approx(found["step_time"])
    assert len(why["longest"]) == 10
    lengths = [piece["seconds"] for piece in why["longest"]]
    assert lengths == sorted(lengths, reverse=True)
    assert {piece["kind"] for piece in why["longest"]} <= {"compute", "send", "stream"}
    names = {op.name for op in pw.zoo.load("transformer:tokens=512").ops}
    assert {piece["op"] for piece in why["longest"]} <= names
    for help_ in why["helps"]:
        assert help_["before"] == found["step_time"]
        assert help_["gain"] == pytest.approx(1 - help_["after"] / help_["before"])
    assert {help_["kind"] for help_ in why["helps"]} == {"device", "link", "memory"}


def test_it_can_be_left_out(run):
    assert "why: " not in run(*STREAMED, "--no-explain").out
    assert "why" not in run(*STREAMED, "--no-explain", "--json").data


def test_a_period_has_no_critical_path(run):
    why = run("place", "diamond", "--on", "2xP100", "--objective", "period", "--json").data["why"]
    assert (why["waits"], why["longest"]) == ({}, [])
    assert why["shares"][0]["share"] == pytest.approx(1)
    assert "of the period" in why["sentence"]


def test_another_runtime_plans_again_by_itself(run):
    """What `accelerate` would gain counts no plans that only we can make."""
    options = ("place", "offload", "--on", "P100+cpu", "--limit", "3GiB", "--method")
    theirs, ours = (run(*options, method, "--json").data for method in ("accelerate", "baselines"))
    helps = {each["kind"]: each for each in theirs["why"]["helps"]}
    assert "plan" not in helps
    assert helps["memory"]["after"] > ours["step_time"]
