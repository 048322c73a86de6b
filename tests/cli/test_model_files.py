"""Models of other libraries on the command line, whole and broken: one line each, no traceback."""

from __future__ import annotations

import pytest

ON = ("--on", "4xK80+cpu")
MODEL = """
import torch

def build():
    with torch.device("meta"):
        layers = torch.nn.Linear(32, 64), torch.nn.ReLU(), torch.nn.Linear(64, 8)
        model = torch.nn.Sequential(*layers)
        example = torch.zeros(4, 32)
    return model, (example,), {}

def broken():
    return build()[0]

def fails():
    raise ValueError("no such layer")

class Loud(torch.nn.Linear):
    def forward(self, x):
        print("forward")
        return super().forward(x)

def loud():
    print("build")
    return Loud(8, 8), (torch.zeros(2, 8),), {}
"""


@pytest.fixture(autouse=True)
def own_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


def refused(run, *arguments):
    ran = run(*arguments)
    assert (ran.status, ran.out) == (1, "")
    lines = ran.err.strip().splitlines()
    assert len(lines) == 1
    assert lines[0].startswith("placewright: ")
    return lines[0]


def test_a_python_file_is_placed(run, tmp_path):
    pytest.importorskip("torch")
    (tmp_path / "model.py").write_text(MODEL)
    forward = run("place", "model.py:build", *ON, "--json").data
    step = run("place", "model.py:build", *ON, "--training", "--optimizer", "adam", "--json").data
    assert forward["fits"]
    assert step["ops"] > forward["ops"]
    assert run("place", "model.py", *ON).status == 0
    said = refused(run, "place", "model.py:build", *ON, "--dims", "batch=8")
    assert said.endswith("'model.py:build' has no symbolic dimensions")


def test_what_a_model_prints_goes_to_stderr(run, tmp_path):
    pytest.importorskip("torch")
    (tmp_path / "model.py").write_text(MODEL)
    ran = run("place", "model.py:loud", "--on", "2xcpu", "-o", "plan.json", "--json")
    assert ran.data["fits"]
    assert "build\n" in ran.err
    ran = run("execute", "plan.json", "--model", "model.py:loud", "--verify", "--json")
    assert ran.data["step_time"] > 0
    assert "build\nforward\n" in ran.err
    for command in ("explain", "report"):
        ran = run(command, "plan.json", "--model", "model.py:loud", "--json")
        assert ran.data["model"]


def test_a_python_file_that_goes_wrong_is_told_in_a_line(run, tmp_path):
    pytest.importorskip("torch")
    (tmp_path / "model.py").write_text(MODEL)
    broken = run("place", "model.py:broken", *ON)
    assert broken.err.startswith("placewright: file 'model.py': broken() re")
    assert "expected (model, args" in broken.err
    assert "no such layer" in refused(run, "place", "model.py:fails", *ON)
    assert "did you mean 'build'" in refused(run, "place", "model.py:biuld", *ON)
    (tmp_path / "syntax.py").write_text("def build(:\n")
    assert "syntax.py" in refused(run, "place", "syntax.py:build", *ON)
    refused(run, "place", "missing.py:build", *ON)


def test_an_onnx_file_is_placed_and_an_open_dimension_asked_for(run, tmp_path):
    onnx = pytest.importorskip("onnx")
    from onnx import TensorProto, helper, numpy_helper

    weight = numpy_helper.from_array(__import__("numpy").zeros((16, 4), "float32"), "w")
    graph = helper.make_graph(
        [helper.make_node("MatMul", ["x", "w"], ["y"])],
        "net",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["batch", 16])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["batch", 4])],
        [weight],
    )
    onnx.save(helper.make_model(graph), tmp_path / "net.onnx")
    assert "batch" in refused(run, "place", "net.onnx", *ON)
    assert run("place", "net.onnx", *ON, "--dims", "batch=8", "--json").data["fits"]
    (tmp_path / "cut.onnx").write_bytes((tmp_path / "net.onnx").read_bytes()[:-9])
    refused(run, "place", "cut.onnx", *ON)
    (tmp_path / "text.onnx").write_text("this is no model")
    refused(run, "place", "text.onnx", *ON)
    (tmp_path / "liar.onnx").write_bytes(b"\x3a\xff\xff\xff\xff\x07")  # claims 2 GB of graph
    refused(run, "place", "liar.onnx", *ON)
    assert "--dims 'batch=many'" in refused(run, "place", "net.onnx", *ON, "--dims", "batch=many")


def test_a_graphdef_is_placed(run, tmp_path):
    pytest.importorskip("tensorboard")
    (tmp_path / "net.pbtxt").write_text(
        """
        node { name: "x" op: "Placeholder"
               attr { key: "dtype" value { type: DT_FLOAT } }
               attr { key: "shape" value { shape { dim { size: 8 } dim { size: 16 } } } } }
        node { name: "y" op: "Relu" input: "x" attr { key: "T" value { type: DT_FLOAT } } }
        """
    )
    assert run("place", "net.pbtxt", *ON, "--json").data["fits"]
    (tmp_path / "cut.pbtxt").write_text("node { name: ")
    refused(run, "place", "cut.pbtxt", *ON)
    (tmp_path / "garbage.pb").write_bytes(bytes(range(256)))
    refused(run, "place", "garbage.pb", *ON)


def test_a_network_of_the_zoo_is_captured_and_placed(run):
    pytest.importorskip("torch")
    ran = run("place", "nmt-2:size=test", *ON, "--json")
    assert ran.data["fits"]
    assert ran.err == "capturing nmt-2:size=test (one-time; may take a minute)\n"
    compared = run("compare", "nmt-2:size=test", *ON, "--methods", "single,expert", "--json")
    assert [each["method"] for each in compared.data["methods"]] == ["single", "expert"]
    assert compared.err == ""
