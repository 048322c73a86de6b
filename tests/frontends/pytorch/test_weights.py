"""PyTorch weights, buffers, states and views in: each once, in its own kind."""

from __future__ import annotations

from typing import Any

import pytest
from torch_models import inputs_of, op_named, weight_bytes

from placewright.frontends.pytorch.frontend import from_torch

torch = pytest.importorskip("torch")
torch.set_num_threads(1)
nn = torch.nn
functional = torch.nn.functional


class Tied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(100, 16)
        self.head = nn.Linear(16, 100, bias=False)
        self.head.weight = self.embed.weight
        self.copy = nn.Linear(16, 100, bias=False)
        self.copy.weight = nn.Parameter(self.embed.weight.data)  # the same storage
        self.unused = nn.Linear(3, 3)

    def forward(self, tokens: Any) -> Any:
        x = self.embed(tokens)
        return self.head(x) + self.copy(x)


TOKENS = torch.zeros(2, 4, dtype=torch.int64)


def test_weights_that_share_storage_are_one_op_with_one_update() -> None:
    graph = from_torch(Tied(), TOKENS)
    weights = [op.name for op in graph.ops if op.kind == "weight"]
    assert weights == ["embed.weight", "unused.weight", "unused.bias"]
    assert weight_bytes(graph) == 4 * (100 * 16 + 3 * 3 + 3)
    for reader in ("embed.embedding", "head.linear", "copy.linear"):
        assert "embed.weight" in inputs_of(graph, reader)
    training = from_torch(Tied(), TOKENS, training=True)
    updates = [op for op in training.ops if op.phase == "update"]
    assert [op.name for op in updates] == ["embed.weight.update"]


def test_a_model_on_meta_gives_the_same_graph() -> None:
    with torch.device("meta"):
        hollow = Tied()
        hollow.copy.weight = nn.Parameter(hollow.embed.weight.data)
    real = from_torch(Tied(), TOKENS, training=True)
    assert from_torch(hollow, TOKENS.to("meta"), training=True).fingerprint == real.fingerprint


def test_the_model_itself_is_left_as_it_was() -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4)).eval()
    before = {
        name: (id(one), one.clone()) for name, one in model.state_dict(keep_vars=True).items()
    }
    from_torch(model, torch.ones(2, 4), training=True)
    assert not model.training
    for name, tensor in model.state_dict(keep_vars=True).items():
        assert id(tensor) == before[name][0]
        assert torch.equal(tensor, before[name][1])


def test_buffers_are_weights_unless_the_step_changes_them() -> None:
    model = nn.BatchNorm1d(4)
    x = torch.ones(2, 4)
    kinds = {op.name: op.kind for op in from_torch(model, x).ops}
    assert kinds["running_mean"] == kinds["running_var"] == "weight"
    assert "num_batches_tracked" not in kinds  # nothing reads it
    training = from_torch(model, x, training=True)
    kinds = {op.name: op.kind for op in training.ops}
    assert kinds["running_mean"] == kinds["num_batches_tracked"] == "state"
    norm = op_named(training, "batch_norm")
    written = {inputs_of(training, "batch_norm")[source]: output for output, source in norm.aliases}
    assert written == {"running_mean": 3, "running_var": 4}


class Cache(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("keys", torch.zeros(1, 4, 100, 8))
        self.register_buffer("layers", torch.zeros(3, 1, 4, 100, 8))

    def forward(self, x: Any, at: Any, values: Any) -> Any:
        self.keys.index_copy_(2, at, x)
        self.layers[1][:, :, 7:8] = x
        values[:, :, 5:6] = x
        return functional.scaled_dot_product_attention(x, self.keys, values) + self.layers[1]


def test_writing_a_row_of_a_cache_costs_the_row_and_no_memory() -> None:
    row = 4 * 4 * 8
    x = torch.zeros(1, 4, 1, 8)
    graph = from_torch(Cache(), (x, torch.zeros(1, dtype=torch.int64), torch.zeros(1, 4, 100, 8)))
    states = [op.name for op in graph.ops if op.kind == "state"]
    assert states == ["keys", "layers", "values"]
    writes = [op for op in graph.ops if op.kind == "scatter"]
    assert [op.bytes_moved for op in writes] == [2 * row + 8, 2 * row, 2 * row]
    assert all(op.aliases == ((0, 0),) for op in writes)
    assert op_named(graph, "select_scatter").kind == "view"  # the layer's row was written already


def test_a_state_that_is_replaced_as_a_whole_is_written_by_a_copy() -> None:
    class Memory(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("last", torch.zeros(2, 4))

        def forward(self, x: Any) -> Any:
            y = x + self.last
            self.last.copy_(torch.relu(x))
            return y

    graph = from_torch(Memory(), torch.zeros(2, 4))
    write = op_named(graph, "last.write")
    assert inputs_of(graph, "last.write") == ["relu", "last"]
    assert (write.kind, write.aliases, write.bytes_moved) == ("copy", ((0, 1),), 2 * 32)


def test_a_state_is_written_at_once_but_not_before_its_old_value_was_read() -> None:
    class Memory(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("last", torch.zeros(2, 4))

        def forward(self, x: Any) -> Any:
            new = torch.relu(x)
            y = x + self.last
            self.last.copy_(new)
            return torch.tanh(y)

    graph = from_torch(Memory(), torch.zeros(2, 4))
    assert [op.name for op in graph.ops[2:]] == ["relu", "add", "last.write", "tanh"]


def test_views_cost_nothing_and_are_their_inputs_memory() -> None:
    class Net(nn.Module):
        def forward(self, x: Any) -> Any:
            one, two = x.transpose(0, 1).chunk(2)
            return torch.relu(one) + two.expand(4, 3)

    graph = from_torch(Net(), torch.zeros(1, 8))
    views = [op for op in graph.ops if op.kind == "view"]
    assert [op.name for op in views] == ["transpose", "split", "expand"]
    assert all((op.flops, op.bytes_moved) == (0, 0) for op in views)
    assert op_named(graph, "split").outputs == (16, 16)
    assert op_named(graph, "split").aliases == ((0, 0), (1, 0))


def test_a_broadcast_view_takes_the_bytes_it_really_has() -> None:
    class Net(nn.Module):
        def forward(self, x: Any) -> Any:
            return torch.relu(x.expand(64, 5))

    graph = from_torch(Net(), torch.zeros(1, 5))
    assert op_named(graph, "expand").outputs == (20,)
    assert op_named(graph, "relu").bytes_moved == 20 + 64 * 5 * 4
    assert op_named(graph, "relu").flops == 64 * 5


def test_lifted_constants_and_plain_tensors_are_weights() -> None:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.scale = torch.ones(4)
            self.layer = nn.Linear(4, 4)

        def forward(self, x: Any) -> Any:
            return self.layer(x) * self.scale + torch.tensor([1.0, 2.0, 3.0, 4.0])

    for training in (False, True):
        graph = from_torch(Net(), torch.zeros(2, 4), training=training)
        assert weight_bytes(graph) == 4 * (4 * 4 + 4 + 4 + 4)
        assert op_named(graph, "scale").kind == "weight"


def test_evaluation_makes_no_ops_of_dropout() -> None:
    graph = from_torch(nn.Sequential(nn.Linear(4, 4), nn.Dropout(0.5)), torch.zeros(2, 4))
    assert [op.kind for op in graph.ops] == ["weight", "weight", "input", "matmul"]
