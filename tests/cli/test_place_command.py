"""`placewright place`: what it prints, what it writes, and what its options do."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

import placewright as pw
from placewright import files
from placewright.units import format_seconds

ON = ("--on", "2xP100+cpu")
CPU = ("--on", "cpu")


def test_the_answer_comes_first_then_devices_then_memory(run):
    ran = run("place", "branches:modules=2", *ON, "--method", "baselines")
    assert ran.status == 0
    assert ran.err == ""
    lines = ran.out.splitlines()
    assert lines[0] == "branches:modules=2 on 2xP100+cpu: 53 ops, 3 devices"
    assert lines[1].startswith("step time ")
    assert " by baselines (heft), " in lines[1]
    assert lines[2].startswith("lower bound ")
    headers = [line.split() for line in lines if line.startswith(("device", "memory"))]
    assert headers == [
        ["device", "model", "ops", "busy", "of", "step", "time"],
        ["memory", "total", "reserve", "usable", "peak", "free", "fits"],
    ]
    gpu = next(line for line in lines if line.startswith("gpu0") and "GiB" in line)
    assert gpu.split()[1:7] == ["16", "GiB", "1", "GiB", "15", "GiB"]
    assert max(map(len, lines)) <= 80


def test_json_is_one_object_in_seconds_and_bytes(run):
    ran = run("place", "diamond", *ON, "--json", "--seed", "3")
    assert (ran.status, ran.err) == (0, "")
    found = ran.data
    need = "method step_time period bound bound_name gap fits overflow evaluations seconds seed"
    assert set(need.split()) | {"objective", "devices"} <= found.keys()
    assert [device["name"] for device in found["devices"]] == ["gpu0", "gpu1", "cpu"]
    assert {"name", "ops", "busy", "peak", "limit", "reserve"} <= found["devices"][0].keys()
    assert (found["method"], found["seed"], found["fits"]) == ("auto", 3, True)
    assert found["devices"][0]["limit"] == 15 * 2**30
    assert found["devices"][0]["reserve"] == 2**30
    assert found["gap"] == pytest.approx(found["step_time"] / found["bound"] - 1)
    problem = pw.Problem(pw.zoo.load("diamond"), pw.Cluster.parse("2xP100+cpu"))
    same = pw.solve(problem, pw.solvers.Baselines(), seed=3)
    assert found["step_time"] == same.step_time
    assert found["best_single"]["step_time"] >= found["step_time"]


def test_the_same_seed_and_evaluations_give_the_same_answer(run):
    options = ("--method", "random", "--evaluations", "50", "--seed", "7", "--json")
    one, other = (run("place", "layered", *ON, *options).data for _ in range(2))
    assert one.pop("seconds") > 0
    assert other.pop("seconds") > 0
    assert one == other
    assert one["evaluations"] == 50


def test_a_plan_is_written_with_its_figures_and_its_trace(run, tmp_path):
    ran = run("place", "fork-join", *ON, "-o", "plan.json", "--trace", "trace.json")
    assert "plan written to plan.json" in ran.out
    assert "trace written to trace.json: open it at ui.perfetto.dev" in ran.out
    result = files.load(tmp_path / "plan.json", "result")
    assert format_seconds(result.step_time) in ran.out
    assert json.loads((tmp_path / "trace.json").read_text())["traceEvents"]


def test_json_stays_alone_on_stdout_when_files_are_written(run):
    ran = run("place", "diamond", *ON, "--json", "-o", "plan.json", "--trace", "trace.json")
    assert ran.data["fits"]


def test_a_start_is_never_lost(run, tmp_path):
    run("place", "layered", *ON, "--method", "m-etf", "-o", "good.json")
    good = files.load(tmp_path / "good.json", "result")
    started = run(
        "place", "layered", *ON, "--method", "cpu-only", "--warm-start", "good.json", "--json"
    )
    assert started.data["step_time"] == good.step_time
    assert run("place", "layered", *ON, "--method", "cpu-only", "--json").data["step_time"] > (
        good.step_time
    )


def test_a_plan_edited_by_hand_is_a_start_too(run, tmp_path):
    run("place", "chain:ops=4", *ON, "--method", "single", "-o", "plan.json")
    data = json.loads((tmp_path / "plan.json").read_text())["plan"]
    data["placement"]["op2"] = "gpu1"
    (tmp_path / "edited.json").write_text(json.dumps(data))
    ran = run("simulate", "chain:ops=4", *ON, "--plan", "edited.json", "--json")
    assert [device["ops"] for device in ran.data["devices"]] == [3, 1, 0]
    both = run("place", "chain:ops=4", *ON, "--method", "single", "--warm-start", "edited.json")
    assert both.status == 0


def test_objective_and_discipline_belong_to_the_problem(run):
    graph = "layered:ops=40"
    step = run("place", graph, *ON, "--json").data
    period = run("place", graph, *ON, "--json", "--objective", "period").data
    assert (step["objective"], period["objective"]) == ("step", "period")
    assert period["period"] <= step["period"]
    ready = run("place", graph, *ON, "--json", "--discipline", "ready").data
    assert (step["discipline"], ready["discipline"]) == ("in order", "ready")
    shown = run("place", graph, *ON, "--objective", "period").out
    assert "\nperiod " in shown
    assert "of period" in shown


def test_use_takes_some_of_the_devices(run):
    found = run("place", "layered", *ON, "--devices", "gpu1, cpu", "--json").data
    assert [device["name"] for device in found["devices"]] == ["gpu1", "cpu"]


def test_reserve_and_limit_change_what_may_be_used(run):
    def limits(*options):
        devices = run("place", "diamond", *ON, "--json", *options).data["devices"]
        return [(device["limit"] / 2**30, device["reserve"] / 2**30) for device in devices]

    assert limits() == [(15, 1), (15, 1), (256, 0)]
    assert limits("--reserve", "2GiB") == [(14, 2), (14, 2), (256, 0)]  # hosts keep nothing back
    assert limits("--reserve", "gpu0=3GiB,cpu=56GiB") == [(13, 3), (15, 1), (200, 56)]
    assert limits("--reserve", "gpu1=4GiB", "--reserve", "0B") == [(16, 0), (12, 4), (256, 0)]
    assert limits("--limit", "gpu0=8GiB") == [(8, 1), (15, 1), (256, 0)]
    assert limits("--limit", "8GiB", "--limit", "gpu1=4GiB") == [(8, 1), (4, 1), (256, 0)]
    assert limits("--limit", "16GiB") == [(15, 1), (15, 1), (256, 0)]  # the reserve stays free


def test_a_limit_has_a_column_of_its_own(run):
    lines = run("place", "diamond", *ON, "--limit", "gpu0=8GiB").out.splitlines()
    (header,) = [line for line in lines if line.startswith("memory")]
    assert " ".join(header.split()) == "memory total limit reserve usable peak free fits"


def test_a_plan_that_does_not_fit_is_an_answer(run):
    ran = run("place", "offload", "--on", "P100", "--limit", "2GiB")
    assert ran.status == 0
    # 16 weights of 352 MiB are 5.5 GiB.
    assert "does not fit: out of memory on gpu0 by 3.5 GiB" in ran.out
    (row,) = [line for line in ran.out.splitlines() if line.startswith("gpu0") and "GiB" in line]
    assert row.split()[-3:] == ["−3.5", "GiB", "no"]
    found = run("place", "offload", "--on", "P100", "--limit", "2GiB", "--json").data
    assert found["fits"] is False
    assert found["overflow"] > 3 * 2**30


def test_streamed_weights_are_told_of(run):
    ran = run("place", "offload", "--on", "P100+cpu", "--limit", "3GiB", "--method", "streamed")
    assert " of streamed weights\n" in ran.out
    assert "transfers per step: " in ran.out


def test_pins_forbidden_devices_and_colocation_hold(run, tmp_path):
    options = ("--pin", "op1*=gpu1", "--forbid", "op2=gpu0,gpu1", "--colocate", "op3,op4,op5")
    run("place", "layered:ops=20", *ON, *options, "-o", "plan.json")
    plan = files.load(tmp_path / "plan.json", "plan")
    device = {op: plan.device_names[at] for op, at in zip(plan.ops, plan.placement, strict=True)}
    assert {device[f"op{at}"] for at in (1, *range(10, 20))} == {"gpu1"}
    assert device["op2"] == "cpu"
    assert len({device["op3"], device["op4"], device["op5"]}) == 1


def test_a_single_device_is_the_one_that_ops_end_up_on(run):
    bound = ("--pin", "op0=cpu", "--colocate", "op*")
    ran = run("place", "chain:ops=4", *ON, *bound)
    assert "everything on cpu" in ran.out
    assert run("place", "chain:ops=4", *ON, *bound, "--json").data["best_single"]["device"] == "cpu"


def test_pins_of_an_option_go_before_those_of_a_problem_file(run, tmp_path):
    problem = pw.Problem(
        pw.zoo.load("chain:ops=3"),
        pw.Cluster.parse("2xP100+cpu"),
        constraints=pw.Constraints(pins={"op0": "cpu", "op1": "gpu0"}),
        objective="period",
    )
    pw.save(problem, tmp_path / "problem.json")
    run("place", "problem.json", "--pin", "op0=gpu1", "-o", "plan.json")
    result = files.load(tmp_path / "plan.json", "result")
    placed = [result.plan.device_names[at] for at in result.plan.placement[:2]]
    assert placed == ["gpu1", "gpu0"]
    assert result.objective == "period"


def test_graph_cluster_and_cost_files_are_read(run, tmp_path):
    graph = pw.zoo.load("chain:ops=3")
    pw.save(graph, tmp_path / "graph.json.gz")
    pw.save(pw.Cluster.parse("2xP100+cpu"), tmp_path / "mine.toml")
    seconds = [[1.0, 30.0], [2.0, 30.0], [3.0, 30.0]]
    table = pw.Table(tuple(op.name for op in graph.ops), ("gpu", "cpu"), seconds)
    pw.save(table, tmp_path / "costs.json")
    found = run(
        "place", "graph.json.gz", "--on", "mine.toml", "--costs", "costs.json", "--json"
    ).data
    assert found["step_time"] == 1 + 2 + 3
    assert found["cluster"] == "2xP100+cpu"


def test_a_workload_brings_its_own_cluster_unless_told_otherwise(run, workload):
    own = run("place", workload, "--json").data
    assert [device["name"] for device in own["devices"]] == ["gpu0", "gpu1", "cpu"]
    assert own["devices"][2]["limit"] == 2**62
    other = run("place", workload, "--on", "3xV100", "--json").data
    assert [device["name"] for device in other["devices"]] == ["gpu0", "gpu1", "gpu2"]
    assert "no limit" in run("place", workload).out


def test_a_name_of_the_zoo_goes_before_a_folder_of_that_name(run, tmp_path):
    (tmp_path / "chain").mkdir()
    assert run("place", "chain", *ON, "--json").data["ops"] == 16


def test_a_budget_of_no_time_still_gives_an_answer(run):
    assert run("place", "layered", *ON, "--budget", "0s", "--json").data["evaluations"] >= 1


def test_the_best_plan_until_an_interruption_is_kept(run, monkeypatch, tmp_path):
    class Impatient(pw.solvers.RandomSearch):
        def run(self, search):
            super().run(search)
            raise KeyboardInterrupt

    monkeypatch.setitem(pw.solvers.METHODS, "random", Impatient)
    ran = run("place", "layered", *ON, "--method", "random", "-o", "plan.json")
    assert ran.status == 130
    assert "interrupted: this is the best plan so far" in ran.out
    kept = files.load(tmp_path / "plan.json", "result")
    whole = pw.solve(
        pw.Problem(pw.zoo.load("layered"), pw.Cluster.parse("2xP100+cpu")),
        pw.solvers.RandomSearch(),
    )
    assert kept.plan == whole.plan
    assert kept.evaluations == whole.evaluations == 100
    assert run("place", "layered", *ON, "--method", "random", "--json").data["interrupted"]


def test_an_interruption_before_any_plan_leaves_nothing(run, monkeypatch, tmp_path):
    class Hasty(pw.solvers.RandomSearch):
        def run(self, search):
            raise KeyboardInterrupt

    monkeypatch.setitem(pw.solvers.METHODS, "random", Hasty)
    ran = run("place", "layered", *ON, "--method", "random", "-o", "plan.json")
    assert (ran.status, ran.out) == (130, "")
    assert not (tmp_path / "plan.json").exists()


def test_many_devices_are_shown_where_they_do_something(run):
    ran = run("place", "diamond", "--on", "40xP100+cpu")
    assert sum(line.startswith("gpu") for line in ran.out.splitlines()) == 2  # of 2 tables
    assert "40 more devices are idle and empty" in ran.out


def test_a_narrow_terminal_costs_no_digits(run, monkeypatch):
    options = ("place", "branches", *ON, "--method", "baselines")
    wide = run(*options).out.split()
    monkeypatch.setenv("COLUMNS", "30")
    assert run(*options).out.split() == wide


@pytest.mark.parametrize(
    ("model", "options", "said"),
    [
        ("chain", (*CPU, "--method", "baselines"), "everything on cpu: no plan tried is faster"),
        ("chain", CPU, "this plan is provably optimal"),
        ("layered", ("--on", "2xP100", "--method", "round-robin"), "× slower than gpu0 alone"),
        ("layered", ("--on", "8xV100-nvlink", "--evaluations", "400"), "× faster than gpu0 alone"),
        (
            "offload",
            ("--on", "4xP100", "--limit", "2GiB", "--evaluations", "400"),
            "on 4 devices: no single one holds it",
        ),
    ],
)
def test_the_answer_says_why(run, model, options, said):
    assert said in " ".join(run("place", model, *options).out.split())


def test_names_with_markup_are_shown_as_they_are(run, tmp_path):
    links = {("[red]a", "b"): pw.Link(1e9), ("b", "[red]a"): pw.Link(1e9)}
    odd = pw.Device("[red]a", memory=10**9, rates={"float32": 1e9}, memory_bandwidth=1e9)
    places = (odd, replace(odd, name="b"))
    pw.save(pw.Cluster("[bold]odd", places, links), tmp_path / "odd.json")
    ran = run("place", "diamond", "--on", "odd.json")
    assert ran.status == 0
    assert "[red]a" in ran.out
    assert "diamond on [bold]odd: 4 ops" in ran.out


def test_ops_are_fused_when_asked_for(run):
    options = ("place", "cifar10", "--on", "P100", "--no-explain", "--json", "--evaluations", "200")
    plain, fused = run(*options).data, run(*options, "--fuse").data
    assert fused["step_time"] < plain["step_time"]
    refused = run("place", "cifar10", *ON, "--method", "heft", "--fuse")
    assert refused.status == 1
    assert "--fuse with method 'heft': only auto fuses ops" in refused.err


def test_a_proposer_is_for_auto_alone(run):
    """The scout has no opinion on so few ops; it is named all the same."""
    for name in ("scout", "pair", "none"):
        words = ("place", "diamond", "--on", "2xP100", "--proposer", name, "--evaluations", "200")
        assert run(*words).status == 0
    bad = run("place", "diamond", "--on", "2xP100", "--method", "heft", "--proposer", "pair")
    assert bad.status != 0
    assert "--proposer with method 'heft': only auto takes proposers" in bad.err


def test_an_answer_is_printed_though_a_file_cannot_be_written(run, tmp_path, monkeypatch):
    from placewright.errors import FileError

    def full_disk(*_, **__):
        raise FileError("page.html: cannot be written: no space left on device")

    monkeypatch.setattr("placewright.reporting.report", full_disk)
    words = ("place", "diamond", "--on", "2xP100", "--method", "heft", "--report", "page.html")
    for more in ((), ("--json",)):
        ran = run(*words, "-o", "plan.json", *more)
        assert ran.status == 1
        assert ran.err == "placewright: page.html: cannot be written: no space left on device\n"
        assert (tmp_path / "plan.json").exists()
        assert "step" in ran.out
    compared = run("compare", "diamond", "--on", "2xP100", "--methods", "heft", *words[-2:])
    assert (compared.status, "heft" in compared.out) == (1, True)
