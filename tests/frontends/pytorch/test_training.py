"""PyTorch training steps in: backward ops, updates, names, phases and dtypes."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
from torch_models import Perceptron, flops, inputs_of, op_named

from placewright.frontends.pytorch.frontend import from_torch

torch = pytest.importorskip("torch")
torch.set_num_threads(1)
nn = torch.nn


@pytest.mark.parametrize(
    ("optimizer", "states", "each"), [(None, 0, 2), ("momentum", 1, 4), ("adam", 2, 12)]
)
def test_each_weight_has_an_update_on_its_device(
    optimizer: str | None, states: int, each: int
) -> None:
    graph = from_torch(Perceptron(), torch.zeros(4, 16), training=True, optimizer=optimizer)
    weights = [op for op in graph.ops if op.kind == "weight"]
    updates = [op for op in graph.ops if op.phase == "update"]
    assert [op.name for op in updates] == [f"{op.name}.update" for op in weights]
    for weight, update in zip(weights, updates, strict=True):
        (size,) = weight.outputs
        assert update.kind == "optimizer"
        assert update.colocate == weight.colocate == weight.name
        assert update.resident == states * size
        assert update.flops == each * size / 4
        assert (
            update.bytes_moved == (3 + 2 * states) * size
        )  # weight and gradient read, weight written
        assert update.outputs == (0,)


def test_backward_ops_are_named_after_their_forward_ops_and_share_their_module() -> None:
    graph = from_torch(Perceptron(), torch.zeros(4, 16), training=True)
    phases = Counter(op.phase for op in graph.ops)
    assert phases["backward"] > 5
    backward = op_named(graph, "down.addmm.backward.mm")
    assert (backward.module, backward.phase) == ("down", "backward")
    assert op_named(graph, "relu.backward").kind == "elementwise"
    assert op_named(graph, "up.weight").module == "up"
    assert inputs_of(graph, "loss.backward.ones") == ["sum"]


def test_the_loss_is_the_only_output_of_a_step() -> None:
    class Net(Perceptron):
        def forward(self, x: Any) -> Any:
            y = super().forward(x)
            return {"loss": y.pow(2).mean(), "y": y}

    step = from_torch(Net(), torch.zeros(4, 16), training=True)
    assert [step.ops[op].name for op, _ in step.outputs] == ["mean"]
    call = from_torch(Net(), torch.zeros(4, 16))
    assert [call.ops[op].name for op, _ in call.outputs] == ["mean", "down.linear"]


def test_a_weight_that_needs_no_gradient_gets_no_update() -> None:
    model = Perceptron()
    model.up.requires_grad_(False)
    graph = from_torch(model, torch.zeros(4, 16), training=True)
    updates = [op.name for op in graph.ops if op.phase == "update"]
    assert updates == ["down.weight.update", "down.bias.update"]
    forward = 2 * 4 * 16 * 64
    assert flops(graph, "matmul", phase="backward") == forward  # the kernel of `down` alone


def test_dtypes_are_those_of_the_arithmetic() -> None:
    model = Perceptron().to(torch.bfloat16)
    graph = from_torch(model, torch.zeros(4, 16, dtype=torch.bfloat16))
    assert op_named(graph, "up.linear").dtype == "bfloat16"
    assert op_named(graph, "up.weight").outputs == (2 * 16 * 64,)


def test_autocast_shows_its_casts() -> None:
    class Net(Perceptron):
        def forward(self, x: Any) -> Any:
            with torch.autocast("cpu", dtype=torch.bfloat16):
                return super().forward(x).float()

    for training in (False, True):
        graph = from_torch(Net(), torch.zeros(4, 16), training=training)
        assert {op.dtype for op in graph.ops if op.kind == "matmul"} == {"bfloat16"}
        assert any(op.kind == "cast" for op in graph.ops)


def test_arguments_name_the_inputs() -> None:
    class Net(nn.Module):
        def forward(self, x: Any, rest: Any, scale: Any = 1.0, *, bias: Any) -> Any:
            return x * scale + rest["one"][0] + bias

    x = torch.zeros(3)
    for training in (False, True):
        kwargs = {"bias": torch.zeros(3, requires_grad=True)}
        graph = from_torch(Net(), (x, {"one": [x]}), kwargs, training=training, name="sum")
        assert [op.name for op in graph.ops if op.kind == "input"] == ["x", "rest.one.0", "bias"]
        assert graph.name == "sum"


def test_an_argument_with_a_buffers_name_is_told_apart_from_it() -> None:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("mask", torch.ones(4))

        def forward(self, x: Any, mask: Any) -> Any:
            mask.add_(1)
            return x * mask * self.mask

    graph = from_torch(Net(), (torch.zeros(4), torch.zeros(4)))
    kinds = {op.name: op.kind for op in graph.ops[:3]}
    assert kinds == {"mask": "weight", "x": "input", "mask.input": "state"}


def test_the_same_model_gives_the_same_fingerprint() -> None:
    x = torch.zeros(4, 16)
    one, two = (from_torch(Perceptron(), x, training=True) for _ in range(2))
    assert one.fingerprint == two.fingerprint


def test_outputs_in_unknown_objects_are_found() -> None:
    class Holder:
        def __init__(self, tensors: list[Any]) -> None:
            self.tensors = tensors

    class Net(nn.Module):
        def forward(self, x: Any) -> Any:
            return torch.relu(x), Holder([torch.tanh(x)])

    graph = from_torch(Net(), torch.zeros(3))
    assert [graph.ops[op].name for op, _ in graph.outputs] == ["relu", "tanh"]
