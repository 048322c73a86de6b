"""PyTorch models that depend on values, hold unknown ops, or cannot be exported."""

from __future__ import annotations

import logging
import sys
from typing import Any

import pytest
from torch_models import Perceptron, log_messages, op_named

from placewright.errors import ConfigError, ExecutionError, GraphError, MissingDependency
from placewright.frontends.pytorch import torch_version
from placewright.frontends.pytorch.frontend import from_torch

torch = pytest.importorskip("torch")
torch.set_num_threads(1)
nn = torch.nn


class Branch(nn.Module):
    def __init__(self, weight: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.full((4, 4), weight))

    def forward(self, x: Any) -> Any:
        y = x @ self.weight
        if y.sum() > 0:
            y = torch.tanh(y)
        return y


def test_a_branch_on_values_is_drafted_from_the_example(caplog: pytest.LogCaptureFixture) -> None:
    for training in (False, True):
        taken = from_torch(Branch(1.0), torch.ones(2, 4), training=training)
        left = from_torch(Branch(-1.0), torch.ones(2, 4), training=training)
        assert "tanh" in taken.position
        assert "tanh" not in left.position
    expected = "model 'Branch' depends on values: its branches and sizes are those of the example"
    assert set(log_messages(caplog)) == {expected}


def test_sizes_that_depend_on_values_are_taken_at_their_largest(
    caplog: pytest.LogCaptureFixture,
) -> None:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(4, 4, bias=False)

        def forward(self, x: Any) -> Any:
            return self.layer(x[(x.sum(-1) > 0).nonzero()[:, 0]])

    graph = from_torch(Net(), torch.ones(8, 4))
    assert op_named(graph, "layer.linear").flops == 2 * 8 * 4 * 4
    assert log_messages(caplog) == [
        "4 ops of 'Net' make tensors whose sizes depend on values: the largest sizes are used"
    ]


def test_an_unknown_op_is_listed_and_costs_its_bytes(caplog: pytest.LogCaptureFixture) -> None:
    class Net(nn.Module):
        def forward(self, x: Any) -> Any:
            return torch.linalg.matrix_exp(x)

    with caplog.at_level(logging.WARNING, "placewright"):
        graph = from_torch(Net(), torch.zeros(8, 8))
    (unknown,) = [op for op in graph.ops if op.kind == "aten::linalg_matrix_exp"]
    assert (unknown.flops, unknown.bytes_moved) == (0, 2 * 8 * 8 * 4)
    name = "aten::linalg_matrix_exp"
    expected = f"torch ops without a known cost, counted by their bytes only: {name} (1)"
    assert log_messages(caplog) == [expected]


def test_an_error_names_the_users_line() -> None:
    class Net(nn.Module):
        def forward(self, x: Any) -> Any:
            return x + len(str(x.sum().numpy()))

    with pytest.raises(GraphError, match=r"^model 'Net' cannot be exported: .*numpy.*") as caught:
        from_torch(Net(), torch.zeros(3), training=True)
    assert "at test_errors.py line" in str(caught.value)
    assert "return x + len(str(x.sum().numpy()))" in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_wrong_shape_is_one_line() -> None:
    with pytest.raises(GraphError, match="model 'Perceptron' cannot be exported: ") as caught:
        from_torch(Perceptron(), torch.zeros(4, 17))
    assert "\n" not in str(caught.value)


def test_wrong_arguments_are_named_before_anything_is_exported() -> None:
    with pytest.raises(
        GraphError, match="'Perceptron' cannot be called: missing a required argument: 'x'"
    ):
        from_torch(Perceptron())
    with pytest.raises(
        GraphError, match="cannot be called: got an unexpected keyword argument 'y'"
    ):
        from_torch(Perceptron(), (), {"x": torch.zeros(1, 16), "y": 1})


def test_a_step_without_gradients_is_refused() -> None:
    model = Perceptron().requires_grad_(False)
    with pytest.raises(GraphError, match="model 'Perceptron' has no backward ops: no parameter"):
        from_torch(model, torch.zeros(4, 16), training=True)


def test_a_model_without_a_floating_output_has_no_loss() -> None:
    class Net(Perceptron):
        def forward(self, x: Any) -> Any:
            return super().forward(x).argmax()

    with pytest.raises(
        GraphError, match="it returns no floating-point tensor that could be a loss"
    ):
        from_torch(Net(), torch.zeros(4, 16), training=True)


def test_a_model_without_tensors_is_refused() -> None:
    class Net(nn.Module):
        def forward(self, x: Any) -> Any:
            return 3

    with pytest.raises(GraphError, match="model 'Net' returns no tensor: there is nothing to"):
        from_torch(Net(), torch.zeros(2))


def test_options_are_checked() -> None:
    with pytest.raises(ConfigError, match="optimizer 'adm' is unknown: did you mean 'adam'"):
        from_torch(Perceptron(), torch.zeros(4, 16), training=True, optimizer="adm")
    with pytest.raises(ConfigError, match="optimizer is 'adam', but training is false"):
        from_torch(Perceptron(), torch.zeros(4, 16), optimizer="adam")
    with pytest.raises(GraphError, match=r"model is of type '\w+': expected a torch\.nn\.Module"):
        from_torch(torch.relu_, torch.zeros(4))  # type: ignore[arg-type]


def test_other_versions_of_torch_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch, "__version__", "2.6.0+cu124")
    with pytest.raises(GraphError, match=r"torch 2.6.0\+cu124 is installed: from_torch works with"):
        from_torch(Perceptron(), torch.zeros(4, 16))


def test_the_message_of_another_torch_names_the_range() -> None:
    with pytest.raises(GraphError, match=r"^torch 3.0.0 is .*: from_torch works .* 2.10 to 2.15$"):
        torch_version.check_planning("3.0.0")
    with pytest.raises(ExecutionError, match=r"^torch 2.10.1 is .*: plans run .* 2.11 to 2.15$"):
        torch_version.check_running("2.10.1")
    for version in ("2.11.0", "2.13.0+cpu", "2.15.0a0+git1"):
        torch_version.check_planning(version)
        torch_version.check_running(version)


def test_a_missing_torch_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)
    with pytest.raises(MissingDependency, match=r"pip install 'placewright\[torch\]'"):
        from_torch(None, ())  # type: ignore[arg-type]
