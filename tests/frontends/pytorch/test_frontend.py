"""PyTorch models in: what known layers cost, and large models within bounds."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest
from torch_models import flops, op_named, weight_bytes

from placewright.frontends.pytorch.frontend import from_torch

torch = pytest.importorskip("torch")
torch.set_num_threads(1)
nn = torch.nn
functional = torch.nn.functional


def test_a_linear_layer_makes_a_product_for_each_row_and_weight() -> None:
    graph = from_torch(nn.Linear(32, 16), torch.zeros(8, 32))
    assert [op.name for op in graph.ops] == ["weight", "bias", "input", "linear"]
    linear = graph.ops[3]
    assert linear.kind == "matmul"
    assert linear.flops == 2 * 8 * 32 * 16 + 8 * 16
    assert linear.bytes_moved == 4 * (8 * 32 + 32 * 16 + 16 + 8 * 16)
    assert linear.outputs == (4 * 8 * 16,)
    assert weight_bytes(graph) == 4 * (32 * 16 + 16)
    assert graph.outputs == ((3, 0),)


def test_training_a_linear_layer_costs_three_forwards_less_the_inputs_gradient() -> None:
    forward = 2 * 8 * 32 * 16
    layer = nn.Linear(32, 16, bias=False)
    needed = from_torch(layer, torch.zeros(8, 32, requires_grad=True), training=True)
    assert flops(needed, "matmul") == 3 * forward
    unneeded = from_torch(layer, torch.zeros(8, 32), training=True)
    assert flops(unneeded, "matmul") == 2 * forward


def test_convolutions_count_their_groups_and_both_gradients() -> None:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.one = nn.Conv2d(3, 8, 3, padding=1, bias=False)
            self.two = nn.Conv2d(8, 6, 3, stride=2, groups=2)
            self.up = nn.ConvTranspose2d(6, 4, 2, stride=2, bias=False)

        def forward(self, image: Any) -> Any:
            return self.up(self.two(self.one(image)))

    one = 2 * (2 * 8 * 16 * 16) * (3 * 3 * 3)
    two = 2 * (2 * 6 * 7 * 7) * (4 * 3 * 3)
    bias = 2 * 6 * 7 * 7
    up = 2 * (2 * 6 * 7 * 7) * (4 * 2 * 2)  # each input element meets each kernel element
    image = torch.zeros(2, 3, 16, 16)
    graph = from_torch(Net(), image)
    assert flops(graph, "convolution") == one + two + bias + up
    assert op_named(graph, "up.conv_transpose2d").outputs == (4 * 2 * 4 * 14 * 14,)
    training = from_torch(Net(), image, training=True)
    backward = flops(training, "convolution", phase="backward")
    assert backward == one + 2 * two + bias + 2 * up  # the image needs no gradient


class Attention(nn.Module):
    def __init__(self, heads: int = 4, groups: int = 4, width: int = 8) -> None:
        super().__init__()
        self.heads, self.groups, self.width = heads, groups, width
        self.query = nn.Linear(heads * width, heads * width, bias=False)
        self.key = nn.Linear(heads * width, groups * width, bias=False)

    def split(self, x: Any, heads: int) -> Any:
        return x.view(*x.shape[:2], heads, self.width).transpose(1, 2)

    def forward(self, x: Any, mask: Any = None) -> Any:
        query = self.split(self.query(x), self.heads)
        key = self.split(self.key(x), self.groups)
        return functional.scaled_dot_product_attention(
            query, key, key, mask, enable_gqa=self.groups < self.heads
        )


@pytest.mark.parametrize("groups", [4, 2])
@pytest.mark.parametrize("masked", [False, True])
def test_attention_is_one_op_in_both_directions(groups: int, masked: bool) -> None:
    x = torch.zeros(2, 10, 32)
    args = (x, torch.zeros(10, 10)) if masked else (x,)
    scores = 2 * 4 * 10 * 10
    graph = from_torch(Attention(groups=groups), args)
    (attention,) = [op for op in graph.ops if op.kind == "attention"]
    assert attention.flops == scores * (2 * 8 + 2 * 8 + 5)
    training = from_torch(Attention(groups=groups), args, training=True)
    forward, backward = [op for op in training.ops if op.kind == "attention"]
    assert forward.flops == attention.flops
    assert backward.flops == scores * (5 * 2 * 8 + 2 * 5)
    assert backward.name == "attention.backward"


def test_an_lstm_stays_whole_forward_and_costs_three_forwards_in_training() -> None:
    layer = nn.LSTM(16, 32, num_layers=2, batch_first=True)
    x = torch.zeros(4, 10, 16, requires_grad=True)
    rows, gates, hidden = 4 * 10, 4, 32
    products = 2 * rows * gates * hidden * ((16 + hidden) + (hidden + hidden))
    others = rows * hidden * (4 * gates + 5) * 2
    graph = from_torch(layer, x)
    assert [op.flops for op in graph.ops if op.kind == "recurrent"] == [products + others]
    training = from_torch(layer, x, training=True)
    heavy = flops(training, "recurrent", "matmul")
    assert heavy == pytest.approx(3 * products, rel=0.1)  # whole, or taken apart into products


def test_an_embedding_moves_rows_forward_and_a_table_backward() -> None:
    graph = from_torch(nn.Embedding(1000, 16), torch.zeros(2, 10, dtype=torch.int64), training=True)
    forward = op_named(graph, "embedding")
    assert (forward.kind, forward.flops) == ("embedding", 0)
    assert forward.bytes_moved == 20 * 16 * 4 + 20 * 8 + 20 * 16 * 4
    backward = op_named(graph, "embedding.backward")
    assert (backward.kind, backward.flops) == ("scatter", 20 * 16)
    assert backward.outputs == (1000 * 16 * 4,)


def test_norms_softmax_pools_and_losses_are_known_kinds() -> None:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.norms = nn.Sequential(nn.BatchNorm2d(4), nn.GroupNorm(2, 4), nn.MaxPool2d(2))
            self.head = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.LayerNorm(4))

        def forward(self, image: Any, target: Any) -> Any:
            return functional.cross_entropy(self.head(self.norms(image)), target)

    args = (torch.zeros(2, 4, 8, 8), torch.zeros(2, dtype=torch.int64))
    graph = from_torch(Net(), args)
    kinds = {op.name: (op.kind, op.flops) for op in graph.ops if op.flops}
    elements = 2 * 4 * 8 * 8
    assert kinds["norms.0.batch_norm"] == ("norm", 2 * elements)  # a scale and a shift
    assert kinds["norms.1.group_norm"] == ("norm", 8 * elements)
    assert kinds["norms.2.max_pool2d"] == ("pool", 2 * 4 * 4 * 4 * 4)
    assert kinds["head.0.adaptive_avg_pool2d"] == ("pool", 2 * 4 * 4 * 4)
    assert kinds["log_softmax"] == ("softmax", 5 * 2 * 4)
    assert kinds["nll_loss_forward"] == ("loss", 2)
    training = from_torch(Net(), args, training=True)
    assert op_named(training, "norms.0.batch_norm").flops == 8 * elements
    assert training.ops[training.outputs[0][0]].name == "nll_loss_forward"


def test_a_branch_op_costs_its_dearest_branch_and_a_scan_every_step() -> None:
    from torch._higher_order_ops.scan import scan

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.large, self.small = nn.Linear(8, 8, bias=False), nn.Linear(8, 8)

        def forward(self, x: Any, steps: Any) -> Any:
            y = torch.cond(x.sum() > 0, lambda x: self.large(self.large(x)), self.small, (x,))
            return scan(lambda total, step: (total + step, total * step), y, steps)[1]

    graph = from_torch(Net(), (torch.zeros(2, 8), torch.zeros(5, 2, 8)))
    branch, loop = [op for op in graph.ops if op.kind == "opaque"]
    assert branch.flops == 2 * (2 * 2 * 8 * 8)
    assert loop.flops == 5 * (2 * 16)


LLAMA = """
import resource, sys, time
import torch
from torch import nn
from torch.nn import functional
from placewright.frontends.pytorch.frontend import from_torch

torch.set_num_threads(1)

class Norm(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))
    def forward(self, x):
        return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-5) * self.weight

class Block(nn.Module):
    def __init__(self, width, heads, groups, hidden):
        super().__init__()
        self.heads, self.groups, self.size = heads, groups, width // heads
        self.before, self.between = Norm(width), Norm(width)
        self.query = nn.Linear(width, width, bias=False)
        self.key = nn.Linear(width, groups * self.size, bias=False)
        self.value = nn.Linear(width, groups * self.size, bias=False)
        self.out = nn.Linear(width, width, bias=False)
        self.gate = nn.Linear(width, hidden, bias=False)
        self.up = nn.Linear(width, hidden, bias=False)
        self.down = nn.Linear(hidden, width, bias=False)
    def turn(self, x, cosine, sine):
        one, two = x.chunk(2, -1)
        return x * cosine + torch.cat([-two, one], -1) * sine
    def forward(self, x, cosine, sine):
        batch, tokens, width = x.shape
        y = self.before(x)
        query = self.query(y).view(batch, tokens, self.heads, self.size).transpose(1, 2)
        key = self.key(y).view(batch, tokens, self.groups, self.size).transpose(1, 2)
        value = self.value(y).view(batch, tokens, self.groups, self.size).transpose(1, 2)
        y = functional.scaled_dot_product_attention(
            self.turn(query, cosine, sine), self.turn(key, cosine, sine), value,
            is_causal=True, enable_gqa=True)
        x = x + self.out(y.transpose(1, 2).reshape(batch, tokens, width))
        y = self.between(x)
        return x + self.down(functional.silu(self.gate(y)) * self.up(y))

class Llama(nn.Module):
    def __init__(self, layers, width, heads, groups, hidden, words):
        super().__init__()
        self.embed = nn.Embedding(words, width)
        self.blocks = nn.ModuleList(Block(width, heads, groups, hidden) for _ in range(layers))
        self.norm, self.head = Norm(width), nn.Linear(width, words, bias=False)
        self.size = width // heads
    def forward(self, tokens, labels):
        x = self.embed(tokens)
        rates = 500000.0 ** (-torch.arange(0, self.size, 2) / self.size)
        angles = torch.outer(torch.arange(tokens.shape[1]).float(), rates).repeat(1, 2)
        cosine, sine = angles.cos().to(x.dtype), angles.sin().to(x.dtype)
        for block in self.blocks:
            x = block(x, cosine, sine)
        scores = self.head(self.norm(x)).flatten(0, 1).float()
        return functional.cross_entropy(scores, labels.flatten())

with torch.device("meta"):
    model = Llama(32, 4096, 32, 8, 14336, 128256).to(torch.bfloat16)
    tokens = torch.zeros(1, 2048, dtype=torch.int64)
start = time.perf_counter()
graph = from_torch(model, (tokens, tokens), training=True, optimizer="adam")
weights = sum(op.outputs[0] for op in graph.ops if op.kind == "weight")
products = sum(op.flops for op in graph.ops if op.kind == "matmul")
print(len(graph), weights, products, time.perf_counter() - start)
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024)
"""


@pytest.mark.slow
def test_a_llama_of_8_billion_parameters_is_captured_within_a_gigabyte() -> None:
    run = subprocess.run([sys.executable, "-c", LLAMA], capture_output=True, text=True, check=True)
    count, weights, products, seconds, peak = (float(word) for word in run.stdout.split())
    block = 2 * 4096 * 4096 + 2 * 4096 * 1024 + 3 * 4096 * 14336
    parameters = 2 * 128256 * 4096 + 32 * (block + 2 * 4096) + 4096
    assert weights == 2 * parameters
    assert products == 3 * 2 * 2048 * (32 * block + 128256 * 4096)
    assert count > 5000
    assert seconds < 120
    assert peak < 2**30


@pytest.mark.slow
def test_gpt2_of_transformers_has_the_closed_formulas_flops(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    transformers = pytest.importorskip("transformers")
    with torch.device("meta"):
        model = transformers.GPT2LMHeadModel(transformers.GPT2Config())
        tokens = torch.zeros(1, 1024, dtype=torch.int64)
    graph = from_torch(model, (), {"input_ids": tokens})
    # 12 blocks of 12 width² products a token, scores and their use, and the words' scores.
    products = 2 * 1024 * (12 * 12 * 768**2 + 50257 * 768)
    attention = 12 * 2 * 2 * 1024 * 1024 * 768
    total = flops(graph, "matmul", "attention")
    assert total == pytest.approx(products + attention, rel=0.02)
    parameters = sum(op.outputs[0] for op in graph.ops if op.kind == "weight") / 4
    assert parameters == pytest.approx(124_439_808, rel=1e-3)  # and some constants
