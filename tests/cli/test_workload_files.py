"""Workload files on the command line: placed, simulated, explained, compared and shown."""

from __future__ import annotations

import json
import re

import pytest

from placewright import Call, Cluster, Problem, Workload, load, save, zoo


@pytest.fixture
def calls(tmp_path):
    """Prefill and decode of two blocks, of which the GPU holds one."""
    cluster = Cluster.parse("V100+cpu")
    made = []
    for name, text, count in (("prefill", "tokens=32", 1), ("decode", "context=32", 8)):
        graph = zoo.load(f"transformer:blocks=2,width=256,hidden=512,heads=4,{text}")
        made.append(Call(name, Problem(graph, cluster, limits={"gpu0": "1026MiB"}), count))
    path = tmp_path / "calls.json"
    save(Workload(made), path)
    return path


def test_a_workload_is_placed_and_its_plan_read_by_every_command(run, calls, tmp_path):
    placed = run("place", calls, "--evaluations", 3000, "-o", "plan.json", "--json")
    assert placed.status == 0, placed.err
    assert placed.data["fits"]
    assert [call["name"] for call in placed.data["calls"]] == ["prefill", "decode"]
    total = sum(call["count"] * call["step_time"] for call in placed.data["calls"])
    assert placed.data["objective_value"] == pytest.approx(total, rel=1e-12)
    assert placed.data["bound"] <= placed.data["objective_value"]
    result = load(tmp_path / "plan.json", "workload_result")
    assert load(tmp_path / "plan.json", "workload_plan") == result.plan
    sizes = placed.data["weights"]
    assert sum(sizes.values()) == sum(
        op.resident + sum(op.outputs) for op in load(calls).weights.values()
    )

    simulated = run("simulate", calls, "--plan", "plan.json", "--json")
    assert simulated.data["objective_value"] == placed.data["objective_value"]
    assert simulated.data["method"] == "auto"
    shown = run("simulate", calls, "--plan", "plan.json")
    assert re.search(r"^sum of step times .* by auto", shown.out, re.M)
    assert re.search(r"^decode +8 ", shown.out, re.M)

    page = run("report", "plan.json", "-o", "page.html")
    assert (page.status, page.out) == (0, "report written to page.html: open it in a browser\n")
    data = re.search(r'id="data">(.*?)</script>', (tmp_path / "page.html").read_text())
    assert data is not None
    contents = json.loads(data[1])["calls"]
    assert [content["model"] for content in contents] == ["prefill", "decode (8 times)"]
    assert contents[1]["methods"][contents[1]["answer"]]["value"] == pytest.approx(
        placed.data["calls"][1]["step_time"]
    )

    explained = run("explain", "plan.json", "--call", "decode")
    assert explained.out.startswith("decode of")
    one_op = run("explain", "plan.json", "--call", "decode", "--op", "blocks.0.mlp.up", "--json")
    assert one_op.status == 0, one_op.err


def test_plans_of_workloads_are_compared(run, calls):
    run("place", calls, "--evaluations", 500, "-o", "one.json")
    run("place", calls, "--method", "streamed", "-o", "two.json")
    same = run("diff", "one.json", "one.json")
    assert "the plans are the same" in same.out
    other = run("diff", "one.json", "two.json", "--json")
    assert other.status == 0, other.err
    assert other.data["first"]["objective_value"] > 0
    named = {move["op"] for move in other.data["moves"]}
    weights = load("one.json").plan.weights
    assert all(name in weights or name.split("/")[0] in ("prefill", "decode") for name in named)
    assert named


def test_a_workload_takes_limits_and_a_warm_start_and_nothing_else(run, calls):
    placed = run("place", calls, "--limit", "gpu0=1.2GiB", "--method", "single", "-o", "p.json")
    assert placed.status == 0, placed.err
    again = run(
        *("place", calls, "--limit", "gpu0=1.2GiB", "--start", "p.json"),
        *("--evaluations", 2, "--json"),
    )
    assert again.status == 0, again.err
    assert again.data["found_by"] == "start"
    for arguments, message in (
        (("--on", "2xP100"), "--on with a workload"),
        (("--pin", "*=cpu"), "--pin with a workload"),
        (("--robust",), "for one problem"),
        (("--trace", "t.json"), "for one problem"),
    ):
        refused = run("place", calls, *arguments)
        assert refused.status != 0
        assert message in refused.err
    assert (
        "--trace and --in-flight"
        in run(*("simulate", calls, "--plan", "p.json", "--in-flight", 3)).err
    )


def test_what_does_not_go_together_is_refused_in_a_line(run, calls):
    run("place", calls, "--method", "single", "-o", "plan.json")
    run("place", "chain", "--on", "2xP100", "--method", "single", "-o", "other.json")
    for arguments, message in (
        (("explain", "plan.json"), "has a plan for prefill, decode: name one of them"),
        (("explain", "plan.json", "--call", "dekode"), "did you mean 'decode'?"),
        (("explain", "other.json", "--call", "decode"), "not of a workload"),
        (("diff", "plan.json", "other.json"), "compare two of a kind"),
        (("report", "plan.json", "plan.json"), "give one file"),
        (("simulate", calls, "--plan", "other.json"), "expected a workload's plan or result"),
        (
            ("simulate", "chain", "--on", "2xP100", "--plan", "plan.json"),
            "holds a workload's result",
        ),
    ):
        refused = run(*arguments)
        assert refused.status != 0, arguments
        assert message in refused.err, refused.err
