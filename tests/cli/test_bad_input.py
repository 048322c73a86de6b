"""Bad input: one clear line on stderr, nothing on stdout, exit status 1; bad usage: 2."""

from __future__ import annotations

import json

import pytest

import placewright as pw

ON = ("--on", "2xP100+cpu")


def graph_data(**changes):
    """A good graph file's data: a, then b, which reads it."""
    graph = pw.Graph("pair", (pw.Op("a", flops=1), pw.Op("b", flops=1, inputs=((0, 0),))))
    return pw.files.to_data(graph) | changes


def refused(run, *arguments) -> str:
    """The one line that a command is refused with."""
    ran = run(*arguments)
    assert ran.status == 1
    assert ran.out == ""
    assert ran.err.startswith("placewright: ")
    assert ran.err.count("\n") == 1
    assert "Traceback" not in ran.err
    return ran.err[len("placewright: ") : -1]


def write(path, data):
    path.write_text(data if isinstance(data, str) else json.dumps(data))


def op(name, **parts):
    return {"name": name, **parts}


@pytest.mark.parametrize(
    ("data", "said"),
    [
        pytest.param(
            {"ops": [op("a", inputs=["b"]), op("b", inputs=["a"])]},
            "bad.json: graph 'pair' has a cycle: ",
            id="cyclic",
        ),
        pytest.param(
            {"ops": [op("a", flops=-1)]},
            "bad.json: op 'a' has flops -1.0: expected a finite number >= 0",
            id="negative cost",
        ),
        pytest.param(
            {"ops": [op("a", moved=-8)]},
            "bad.json: op 'a' has bytes_moved -8",
            id="negative bytes",
        ),
        pytest.param(
            {"ops": [op("a"), op("a")]},
            "bad.json: two ops are named 'a': names must be unique",
            id="duplicate name",
        ),
        pytest.param(
            {"version": 4},
            "bad.json: the file has version 4: this release of placewright reads versions ",
            id="wrong version",
        ),
        pytest.param({"ops": []}, "bad.json: graph 'pair' has no ops", id="no ops"),
    ],
)
def test_a_malformed_graph_is_refused_in_a_line(run, tmp_path, data, said):
    write(tmp_path / "bad.json", graph_data(**data))
    assert said in refused(run, "place", "bad.json", *ON)


def test_nan_is_refused_in_a_line(run, tmp_path):
    text = json.dumps(graph_data(ops=[op("a", flops=float("nan"))]))
    assert "NaN" in text
    write(tmp_path / "bad.json", text)
    assert refused(run, "place", "bad.json", *ON) == (
        'bad.json: holds NaN, which is not JSON: expected finite numbers, or "inf" as text'
    )


def test_a_truncated_file_is_refused_in_a_line(run, tmp_path):
    text = json.dumps(graph_data())
    write(tmp_path / "cut.json", text[: len(text) // 2])
    assert refused(run, "place", "cut.json", *ON).startswith(
        "cut.json: is not JSON, or truncated: "
    )


def test_garbage_folders_and_empty_files_are_refused_in_a_line(run, tmp_path):
    (tmp_path / "garbage.json").write_bytes(bytes(range(128, 256)) * 4)
    (tmp_path / "empty.json").write_text("")
    (tmp_path / "folder.json").mkdir()
    said = [refused(run, "place", f"{name}.json", *ON) for name in ("garbage", "empty", "folder")]
    assert said == [
        "garbage.json: byte 0 is not UTF-8: expected text",
        "empty.json: the file is empty",
        "folder.json: is a folder: expected a file",
    ]


@pytest.mark.parametrize("name", ["missing.json", "a/b/missing", "missing.toml", "gone.txt"])
def test_a_missing_file_is_said_to_be_missing(run, name):
    assert refused(run, "place", name, *ON) == f"{name}: there is no such file"


def test_a_truncated_workload_is_refused_in_a_line(run, workload):
    text = workload.read_text()
    workload.write_text(text[: len(text) // 2])
    assert refused(run, "place", workload).endswith("is it truncated?")


def test_a_workload_with_a_negative_cost_is_refused_in_a_line(run, workload):
    workload.write_text(workload.read_text().replace('"fpgaLatency": 4.0', '"fpgaLatency": -4.0'))
    assert "has fpgaLatency -4.0: expected a number from 0" in refused(run, "place", workload)


def test_a_plan_of_the_wrong_length_is_refused_in_a_line(run):
    run("place", "chain:ops=4", *ON, "-o", "plan.json")
    said = refused(run, "simulate", "chain:ops=5", *ON, "--plan", "plan.json")
    assert said == (
        "plan.json: the plan places 4 ops, graph 'chain:ops=5,seed=0,weights=false' has 5: "
        "op 'op4' has no device"
    )
    said = refused(run, "place", "chain:ops=3", *ON, "--warm-start", "plan.json")
    assert said.startswith("plan.json: the plan places op 'op3', which graph 'chain:ops=3,")


def test_a_plan_for_other_devices_is_refused_in_a_line(run):
    run("place", "chain:ops=4", *ON, "--method", "cpu-only", "-o", "plan.json")
    said = refused(run, "simulate", "chain:ops=4", "--on", "2xP100", "--plan", "plan.json")
    assert said.startswith("plan.json: the plan uses device 'cpu', which cluster '2xP100' does not")


def test_a_file_of_another_kind_is_named(run, tmp_path):
    pw.save(pw.Cluster.parse("cpu"), tmp_path / "cluster.json")
    write(tmp_path / "graph.json", graph_data())
    pw.save(pw.Roofline(), tmp_path / "costs.json")
    assert refused(run, "place", "cluster.json", *ON) == (
        "cluster.json: holds a cluster: expected a graph, a problem or a workload"
    )
    assert refused(run, "place", "costs.json", *ON) == (
        "costs.json: holds costs: expected a graph, a problem or a workload"
    )
    assert refused(run, "simulate", "chain", *ON, "--plan", "graph.json") == (
        "graph.json: holds a graph: expected a plan or a result"
    )
    assert "expected 'cluster'" in refused(run, "place", "chain", "--on", "graph.json")
    assert "expected 'costs'" in refused(run, "place", "chain", *ON, "--costs", "graph.json")


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("place", "layerd", *ON), "no network is named 'layerd': did you mean 'layered'?"),
        (
            ("place", "chain", "--on", "2xP10O"),
            "cluster '2xP10O', character 3: unknown device 'P10O': did you mean 'P100'?",
        ),
        (
            ("place", "chain", *ON, "--devices", "gpu9"),
            "cluster '2xP100+cpu' has no device 'gpu9': did you mean 'gpu1'?",
        ),
        (
            ("place", "chain", *ON, "--reserve", "gpu9=1GiB"),
            "--reserve 'gpu9=1GiB': the cluster has no device 'gpu9': did you mean 'gpu1'?",
        ),
        (
            ("place", "chain", *ON, "--limit", "gpu9=1GiB"),
            "--limit 'gpu9=1GiB': the cluster has no device 'gpu9': did you mean 'gpu1'?",
        ),
        (
            ("place", "chain", *ON, "--pin", "op1=gpu9"),
            "a constraint names device 'gpu9', which cluster '2xP100+cpu' does not have: "
            "did you mean 'gpu1'?",
        ),
        (
            ("place", "chain", *ON, "--pin", "opp1=gpu0"),
            "a constraint names op 'opp1', which the graph does not have: did you mean 'op1'?",
        ),
        (
            ("place", "chain", *ON, "--method", "hefty"),
            "no method is named 'hefty': did you mean 'heft'?",
        ),
        (
            ("compare", "chain", *ON, "--methods", "heft,singel"),
            "no method is named 'singel': did you mean 'single'?",
        ),
    ],
)
def test_for_an_unknown_name_the_nearest_is_offered(run, arguments, said):
    assert refused(run, *arguments) == said


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (
            ("--limit", "gpu0=banana"),
            "--limit 'gpu0=banana': size 'banana': expected a number and a unit, such as "
            "'16 GiB' or '500 MB'",
        ),
        (
            ("--reserve", "-1GiB"),
            "--reserve '-1GiB': size '-1GiB': expected a number and a unit, such as "
            "'16 GiB' or '500 MB'",
        ),
        (
            ("--budget", "-3s"),
            "--budget: time '-3s': expected a number and a unit, such as '30s' or '5 min'",
        ),
        (
            ("--pin", "op1"),
            "--pin 'op1': expected ops and a device, such as 'blocks.0.*=gpu0'",
        ),
        (("--pin", "op1=gpu0", "--pin", "op1=cpu"), "--pin puts 'op1' on 'gpu0' and on 'cpu'"),
        (("--forbid", "=cpu"), "--forbid '=cpu': expected ops and a device, such as '*.norm=cpu'"),
        (("--devices", " , "), "--devices ' , ': expected names with commas between them"),
        (("--colocate", ","), "--colocate ',': expected names with commas between them"),
        (("--pin", "op*=gpu0", "--forbid", "op1=gpu0"), "no device is left for 'op1'"),
        (("-o", "nowhere/plan.json"), "nowhere/plan.json: cannot be written: there is no folder"),
        (("--trace", "."), ".: is a folder: expected the name of a file"),
        (("-o", "a.json", "--trace", "./a.json"), "a.json: is to be written twice: give each outp"),
        (("-o", "a.json", "--report", "a.json"), "a.json: is to be written twice: give each outp"),
        (("-o", "a.toml.gz"), "a.toml.gz: a result is written as JSON: end the name in .json"),
        (("--training",), "--training is for model.py:build: 'chain' is a built-in model"),
        (("--optimizer", "x"), "--optimizer is for model.py:build: 'chain' is a built-in"),
        (("--dims", "batch=8"), "--dims is for ONNX and TensorFlow files: 'chain' has no symbolic"),
    ],
)
def test_a_bad_value_of_an_option_is_refused_in_a_line(run, options, said):
    assert refused(run, "place", "chain", *ON, *options).startswith(said)


def test_a_training_step_is_asked_of_a_network_by_its_name(run):
    said = refused(run, "place", "nmt-2:size=test", *ON, "--training")
    assert said.endswith("'nmt-2:size=test' is a built-in model: write training=true in its name")
    said = refused(run, "place", "nmt-2:size=test", *ON, "--optimizer", "adam")
    assert said.endswith("is a built-in model: write optimizer=NAME in its name")
    assert refused(run, "place", "nmt-3", *ON, "--training").startswith("no network is named")


def test_a_file_leaves_neither_step_nor_dimensions_open(run, tmp_path, workload):
    write(tmp_path / "graph.json", graph_data())
    for name in ("graph.json", workload.name):
        said = refused(run, "place", name, *ON, "--training")
        assert said.startswith(f"--training is for model.py:build: {name!r} is a file that defines")
        said = refused(run, "place", name, *ON, "--dims", "x=8x8")
        assert said.endswith(f"TensorFlow files: {name!r} has no symbolic dimensions")


def test_bad_outputs_are_told_before_a_search(run, tmp_path):
    for command in ("place", "compare"):
        refused(run, command, "chain", *ON, "-o", "plan.toml", "--budget", "1 h")
    (tmp_path / "link.json").symlink_to("plan.json")
    said = refused(run, "compare", "chain", *ON, "-o", "plan.json", "--trace", "link.json")
    assert said.startswith("link.json: is to be written twice")
    two = ("-o", "/dev/null", "--trace", "/dev/null")  # where nothing is lost that is to be kept
    assert run("place", "chain", *ON, *two).status == 0


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("place", "chain"), "chain includes no cluster: name one, e.g. 2xP100+cpu"),
        (("place",), "Missing argument 'MODEL'"),
        (("simulate", "chain", *ON), "Missing option '--plan'"),
        (("place", "chain", *ON, "--evaluations", "0"), "'--evaluations'"),
        (("place", "chain", *ON, "--seed", "-1"), "'--seed'"),
        (("place", "chain", *ON, "--objective", "speed"), "'--objective'"),
        (("place", "chain", *ON, "--bogus"), "No such option: --bogus"),
        (("plaice",), "No such command 'plaice'"),
    ],
)
def test_bad_usage_exits_with_2(run, arguments, said):
    ran = run(*arguments)
    assert (ran.status, ran.out) == (2, "")
    assert said in ran.err
    assert "Traceback" not in ran.err


def test_a_name_with_a_line_break_stays_on_one_line(run):
    message = r"two\nlines.json: there is no such file"
    assert refused(run, "place", "two\nlines.json", *ON) == message
