"""ONNX Runtime, ONNX device configurations and OpenVINO: what is written, and what loads it."""

from __future__ import annotations

import json

import numpy as np
import pytest

import placewright as pw
from placewright.errors import FileError, GraphError, PlanError
from placewright.exporters.onnxruntime_session import misplaced
from placewright.exporters.openvino_hetero import apply

onnx = pytest.importorskip("onnx")
import onnxmodels  # noqa: E402

BODY = ("/body/first/MatMul", "/body/first/Add", "/body/Relu")


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    path = tmp_path_factory.mktemp("onnx") / "mlp.onnx"
    model = onnxmodels.mlp()
    rng = np.random.default_rng(0)
    for weight in model.graph.initializer:
        values = rng.normal(size=tuple(weight.dims)).astype(np.float32)
        weight.CopyFrom(onnx.numpy_helper.from_array(values, weight.name))
    onnx.save(model, path)
    return path


@pytest.fixture(scope="module")
def case(path, make_case):
    return make_case(pw.from_onnx(path))


def exported(case, target, rule, path, **more):
    plan = case.problem.legalize(case.plan(rule).placement)
    return pw.export(case.problem, pw.Plan.of(case.problem, plan), target, model=path, **more)


def by_body(op):
    return "gpu0" if op.name in BODY else "cpu"


def annotations(made):
    model = onnx.load_from_string(made.model)
    return {node.name: [(e.key, e.value) for e in node.metadata_props] for node in model.graph.node}


def test_nodes_are_annotated_with_their_device(case, path):
    made = exported(case, "onnxruntime", by_body, path)
    assert annotations(made) == {
        **{name: [("layer_ann", "gpu0")] for name in BODY},
        "/head/Gemm": [("layer_ann", "cpu")],
    }
    assert made.data["session_options"] == {
        "session.layer_assignment_settings": "gpu(=gpu0); cpu(=cpu)",
        "session.record_ep_graph_assignment_info": "1",
    }
    limit = int(case.problem.arrays.capacity[0])
    assert made.data["providers"] == [
        ["CUDAExecutionProvider", {"device_id": 0, "gpu_mem_limit": limit}],
        "CPUExecutionProvider",
    ]
    assert json.loads(made.text) == made.data
    assert (made.cost.moved_time, made.cost.moved_bytes) == (0, 0)


def test_a_session_has_one_accelerator(case, path):
    def rule(op):
        return "gpu1" if op.name in BODY[1:] else "gpu0"

    made = exported(case, "onnxruntime", rule, path, names={"gpu0": "3"})
    assert {pairs[0][1] for pairs in annotations(made).values()} == {"gpu0"}
    assert made.data["providers"][0][1]["device_id"] == 3
    assert made.data["session_options"]["session.layer_assignment_settings"] == "gpu(=gpu0)"
    assert made.notes[0] == "devices: a session has one accelerator; ops of gpu1 go to gpu0"
    assert made.cost.moved_time > 0
    assert made.plan.placement[case.graph.position["/body/Relu"]] == 0


def test_onnx_runtime_loads_what_is_exported(case, path, tmp_path, capfd):
    ort = pytest.importorskip("onnxruntime")
    made = exported(case, "onnxruntime", by_body, path)
    files = made.save(tmp_path / "placed.onnx")
    settings = json.loads(files[1].read_text())
    options = ort.SessionOptions()
    options.log_severity_level = 1  # it then says what it made of the settings
    options.intra_op_num_threads = 1
    for key, value in settings["session_options"].items():
        options.add_session_config_entry(key, value)
    session = ort.InferenceSession(files[0], options, providers=["CPUExecutionProvider"])
    said = capfd.readouterr().err
    assert "Parsed 2 annotation-based layering rules" in said
    assert "Matched 1 out of 2 rules" in said  # there is no GPU here
    # So it runs nodes on the host that were to be on the GPU, and that can be read back.
    wrong = misplaced(session, made)
    assert wrong
    assert set(wrong) <= set(BODY)
    x = np.random.default_rng(1).normal(size=(8, 16)).astype(np.float32)
    plain = ort.InferenceSession(path, providers=["CPUExecutionProvider"])
    assert np.array_equal(session.run(None, {"x": x})[0], plain.run(None, {"x": x})[0])


def test_onnx_runtime_runs_on_the_host_what_the_plan_does(case, path):
    ort = pytest.importorskip("onnxruntime")
    made = exported(case, "onnxruntime", lambda op: "cpu", path)
    assert made.data["providers"] == ["CPUExecutionProvider"]
    options = ort.SessionOptions()
    for key, value in made.data["session_options"].items():
        options.add_session_config_entry(key, value)
    session = ort.InferenceSession(made.model, options, providers=made.data["providers"])
    assert misplaced(session, made) == []


def test_nodes_name_their_device_and_stage(case, path):
    made = exported(case, "onnx", lambda op: "gpu1" if op.name in BODY else "gpu0", path)
    model = onnx.load_from_string(made.model)
    onnx.checker.check_model(model, full_check=True)
    assert model.ir_version == 11
    [configuration] = model.configuration
    assert (configuration.name, configuration.num_devices) == ("placewright", 3)
    assert list(configuration.device) == ["gpu0", "gpu1", "cpu0"]
    for node in model.graph.node:
        [said] = node.device_configurations
        assert said.configuration_id == "placewright"
        assert said.pipeline_stage == (0 if node.name in BODY else 1)
        assert [(spec.tensor_name, list(spec.device)) for spec in said.sharding_spec] == [
            (node.output[0], [1 if node.name in BODY else 0])
        ]
    assert made.data["stages"] == {"gpu1": 0, "gpu0": 1}


def test_a_plan_that_comes_back_to_a_device_has_no_stages(case, path):
    made = exported(case, "onnx", lambda op: "gpu1" if op.name == BODY[1] else "gpu0", path)
    [said] = onnx.load_from_string(made.model).graph.node[0].device_configurations
    assert not said.HasField("pipeline_stage")
    assert made.notes[0].startswith("stages: the plan goes back and forth")


def test_exporting_twice_says_it_once(case, path, tmp_path):
    first = exported(case, "onnx", lambda op: "gpu0", path)
    again = tmp_path / "mlp.onnx"
    first.save(again)
    second = exported(case, "onnx", lambda op: "gpu1", again)
    model = onnx.load_from_string(second.model)
    assert len(model.configuration) == 1
    assert [len(node.device_configurations) for node in model.graph.node] == [1, 1, 1, 1]


def test_onnx_runtime_loads_a_model_with_device_configurations(case, path):
    ort = pytest.importorskip("onnxruntime")
    made = exported(case, "onnx", by_body, path)
    session = ort.InferenceSession(made.model, providers=["CPUExecutionProvider"])
    assert session.run(None, {"x": np.ones((8, 16), np.float32)})[0].shape == (8, 4)


def test_nodes_without_names_and_known_branches_are_found(make_case, tmp_path):
    model = onnxmodels.conditional("known")  # the branch's MatMul takes the place of the If
    path = tmp_path / "if.onnx"
    onnx.save(model, path)
    case = make_case(pw.from_onnx(path))
    made = exported(case, "onnxruntime", lambda op: "gpu1", path)
    assert annotations(made) == {"choice": [("layer_ann", "gpu1")]}
    for node in model.graph.node:
        node.name = ""
    onnx.save(model, path)
    made = exported(case, "onnxruntime", lambda op: "gpu1", path)
    assert annotations(made) == {"": [("layer_ann", "gpu1")]}
    assert made.data["nodes"] == {"y": "gpu1"}


def test_the_wrong_file_is_refused(case, path, tmp_path):
    other = tmp_path / "other.onnx"
    onnx.save(onnxmodels.mlp(batch=4), other)
    with pytest.raises(PlanError, match=r"other.onnx: is not the model of the plan"):
        exported(case, "onnxruntime", by_body, other)
    other.write_bytes(b"\x00garbage")
    with pytest.raises((FileError, GraphError), match=r"other.onnx"):
        exported(case, "onnx", by_body, other)
    with pytest.raises(FileError, match=r"mlp.onnx: is the model itself"):
        exported(case, "onnx", by_body, path).save(path)
    with pytest.raises(FileError, match=r"placed.onnx: cannot be written: no such file"):
        exported(case, "onnx", by_body, path).save(tmp_path / "no" / "placed.onnx")


class Port:
    def __init__(self, node):
        self.node = node

    def get_node(self):
        return self.node


class Node:
    """An op of OpenVINO's, as far as `apply` looks at it."""

    def __init__(self, name, *read):
        self.name, self.read, self.readers, self.info = name, read, [], {}
        for node in read:
            node.readers.append(self)

    def get_friendly_name(self):
        return self.name

    def input_values(self):
        return [Port(node) for node in self.read]

    def outputs(self):
        return [self]

    def get_target_inputs(self):
        return [Port(node) for node in self.readers]

    def get_rt_info(self):
        return self.info


class Model:
    def __init__(self, *ops):
        self.ops = ops

    def get_ordered_ops(self):
        return self.ops


def test_openvino_gets_an_affinity_for_every_op(case, path):
    made = exported(case, "openvino", by_body, path)
    assert made.data["device"] == "HETERO:GPU.0,CPU"
    assert made.data["affinity"] == {
        **dict.fromkeys(BODY, "GPU.0"),
        "/head/Gemm": "CPU",
    }
    assert made.cost.moved_time == 0
    x, weight = Node("x"), Node("w2")
    body = Node("/body/Relu", x)
    part = Node("/head/Gemm/WithoutBiases", body, weight)
    end = Node("y", part)
    assert apply(Model(x, weight, body, part, end), made) == {
        "x": "GPU.0", "w2": "CPU", "/body/Relu": "GPU.0", "/head/Gemm/WithoutBiases": "CPU",
        "y": "CPU",
    }  # fmt: skip
    assert [node.info["affinity"] for node in (x, weight, end)] == ["GPU.0", "CPU", "CPU"]
    with pytest.raises(PlanError, match="none of the model's ops is in the map"):
        apply(Model(Node("a")), json.loads(made.text))


def test_openvino_knows_modules_of_a_pytorch_model(six, block_of):
    made = pw.export(
        six.problem,
        six.plan(lambda op: "gpu1" if op.name.startswith("blocks.2.mlp.norm") else "gpu0"),
        "openvino",
    )
    assert made.cost.moved_time > 0
    assert any(note.startswith("modules:") for note in made.notes)
    found = apply(Model(Node("__module.blocks.2.mlp.up/aten::linear/MatMul")), made)
    assert list(found.values()) == ["GPU.0"]


def test_openvino_itself_takes_the_affinities(case, path):
    openvino = pytest.importorskip("openvino")
    names = dict.fromkeys(("gpu0", "gpu1", "cpu"), "CPU")
    made = exported(case, "openvino", by_body, path, names=names)
    core = openvino.Core()
    model = core.read_model(path)
    apply(model, made)
    x = np.ones((8, 16), np.float32)
    placed = core.compile_model(model, made.data["device"])(x)[0]
    assert np.allclose(placed, core.compile_model(path, "CPU")(x)[0], atol=1e-5)
