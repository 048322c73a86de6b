"""`placewright export`: what is printed where, files, and one line for bad input."""

from __future__ import annotations

import json

import pytest

TRANSFORMER = "transformer:blocks=2"


@pytest.fixture
def plan(run, tmp_path):
    """A result file of two blocks on one GPU each, as a person would edit it."""
    ran = run(
        "place",
        TRANSFORMER,
        "--on",
        "2xP100+cpu",
        "--method",
        "single",
        "--no-explain",
        "-o",
        "p.json",
    )
    assert ran.status == 0
    path = tmp_path / "p.json"
    data = json.loads(path.read_text())
    devices = data["plan"]["placement"]
    devices |= {op: "gpu1" for op in devices if op.startswith("blocks.1")}
    devices |= {op: "gpu0" for op in devices if op.startswith("blocks.0")}
    path.write_text(json.dumps(data))
    return path


def test_the_export_is_on_stdout_and_what_it_costs_on_stderr(run, plan):
    ran = run("export", plan, "--to", "vllm")
    assert ran.status == 0
    assert ran.out == "export CUDA_VISIBLE_DEVICES=0,1\nexport VLLM_PP_LAYER_PARTITION=1,1\n"
    assert "usage: vllm serve MODEL --pipeline-parallel-size 2" in ran.err
    assert "every op and weight is where the plan has it" in ran.err
    assert "step time, simulated: " in ran.err


def test_what_is_lost_is_said_with_both_figures(run, plan):
    data = json.loads(plan.read_text())
    data["plan"]["placement"]["blocks.0.mlp.up"] = "gpu1"
    plan.write_text(json.dumps(data))
    ran = run("export", plan, "--to", "accelerate", "-o", "map.py")
    assert ran.status == 0
    flat = " ".join(ran.out.split())
    assert "lost in export: split: ops of module 'blocks.0.mlp' are not placed one by one" in flat
    assert " % of the computing time, 0.0 % of the weights" in flat
    assert "as planned, " in flat
    assert "as exported" in flat
    assert "written to map.py" in flat
    read: dict = {}
    exec((plan.parent / "map.py").read_text(), read)
    assert read["device_map"] == {"blocks.0": 0, "blocks.1": 1}


def test_for_programs_there_is_one_object(run, plan):
    found = run("export", plan, "--to", "llama.cpp", "--device", "gpu1=CUDA7", "--json").data
    assert found["export"] == ["-ngl", "3", "-dev", "CUDA0,CUDA7", "-ts", "1,2"]
    assert found["planned"] == found["exported"]
    assert (found["time_elsewhere"], found["bytes_elsewhere"], found["notes"]) == (0, 0, [])


def test_a_plan_without_its_problem_needs_the_model(run, plan):
    data = json.loads(plan.read_text())
    plan.write_text(json.dumps(data["plan"]))
    ran = run("export", plan, "--to", "vllm")
    assert ran.status == 1
    assert "does not name its problem: give the model with --model" in ran.err
    ran = run("export", plan, "--to", "vllm", "--model", TRANSFORMER, "--on", "2xP100+cpu")
    assert ran.status == 0


def test_an_onnx_model_is_written_with_its_settings(run, tmp_path):
    onnx = pytest.importorskip("onnx")
    import onnxmodels

    onnx.save(onnxmodels.mlp("batch"), tmp_path / "mlp.onnx")
    run(
        "place", "mlp.onnx", "--on", "2xP100+cpu", "--dims", "batch=8", "--method", "single",
        "--no-explain", "-o", "p.json",
    )  # fmt: skip
    ran = run("export", "p.json", "--to", "onnxruntime")
    assert (ran.status, ran.out) == (1, "")
    assert ran.err == "placewright: --to onnxruntime writes a model: name its file with --output\n"
    ran = run("export", "p.json", "--to", "onnxruntime", "-o", "placed.onnx")
    assert ran.status == 0
    node = onnx.load(tmp_path / "placed.onnx").graph.node[0]
    assert node.metadata_props[0].key == "layer_ann"
    assert "session_options" in json.loads((tmp_path / "placed.onnx.json").read_text())


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--to", "vlm"), "--to 'vlm': did you mean 'vllm'?"),
        (("--to", "vllm", "--device", "gpu0"), "--device 'gpu0': expected such as gpu0=1"),
        (("--to", "vllm", "--model", "transformer:blocks=3"), "the plan was made for graph"),
        (("--to", "tensorflow", "-o", "x.pb"), "tensorflow writes the model's file anew"),
        (("--to", "vllm", "-o", "no/x"), "there is no folder 'no'"),
    ],
)
def test_bad_input_is_one_line(run, plan, arguments, said):
    ran = run("export", plan, *arguments)
    assert (ran.status, ran.out) == (1, "")
    assert said in ran.err
    assert ran.err.count("\n") == 1


def test_what_is_no_plan_is_one_line(run, tmp_path):
    (tmp_path / "bad.json").write_text("[1, 2")
    ran = run("export", "bad.json", "--to", "vllm")
    assert ran.status == 1
    assert ran.err.count("\n") == 1
