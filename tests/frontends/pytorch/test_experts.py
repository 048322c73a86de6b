"""Mixtures of experts: grouped matrix products, their cost and their gradients."""

from __future__ import annotations

import importlib.util
import logging

import pytest

pytest.importorskip("torch")

import torch

from placewright.frontends.pytorch import experts
from placewright.frontends.pytorch.capture import capture_model, output_template
from placewright.frontends.pytorch.frontend import from_torch

ROWS, WIDTH, HIDDEN, EXPERTS = 16, 32, 64, 4
PRODUCTS = 2 * ROWS * WIDTH * HIDDEN  # FLOPs of one grouped product


def define_product():
    """Define transformers' op as transformers does."""

    def product(input, weight, offs):
        output = input.new_zeros(input.shape[0], weight.shape[2])
        start = 0
        for expert, end in enumerate(offs.tolist()):
            output[start:end] = input[start:end] @ weight[expert]
            start = end
        return output

    def set_up(ctx, inputs, output):
        ctx.save_for_backward(*inputs[:2])
        ctx.offs = inputs[2]

    def backward(ctx, gradient):
        input, weight = ctx.saved_tensors
        grad_input, grad_weight = torch.zeros_like(input), torch.zeros_like(weight)
        start = 0
        for expert, end in enumerate(ctx.offs.tolist()):
            if start == end:
                continue
            grad_input[start:end] = gradient[start:end] @ weight[expert].T
            grad_weight[expert] = input[start:end].T @ gradient[start:end]
            start = end
        return grad_input, grad_weight, None

    schema = "(Tensor input, Tensor weight, Tensor offs) -> Tensor"
    made = torch.library.custom_op(experts.GROUPED_PRODUCT, product, mutates_args=(), schema=schema)
    made.register_fake(lambda input, weight, offs: input.new_empty(len(input), weight.shape[2]))
    made.register_autograd(backward, setup_context=set_up)
    return made


@pytest.fixture(scope="module")
def product():
    """transformers' grouped product, or a stand-in that is defined alike."""
    if importlib.util.find_spec("transformers") is not None:
        pytest.importorskip("transformers.integrations.moe")
    else:
        standin = define_product()  # noqa: F841  the op lives as long as its definition
    return torch.ops.transformers.grouped_mm_fallback


class Experts(torch.nn.Module):
    """Rows that each go through the two layers of one expert."""

    def __init__(self, product):
        super().__init__()
        self.up = torch.nn.Parameter(torch.randn(EXPERTS, WIDTH, HIDDEN))
        self.down = torch.nn.Parameter(torch.randn(EXPERTS, HIDDEN, WIDTH))
        self.product = product

    def forward(self, x, offs):
        return self.product(torch.relu(self.product(x, self.up, offs)), self.down, offs)


def example(counts=(5, 0, 9, 2)):
    offs = torch.tensor(counts).cumsum(0).to(torch.int32)
    return torch.randn(ROWS, WIDTH), offs


def matmul_flops(graph):
    return sum(op.flops for op in graph.ops if op.kind == "matmul")


def test_a_grouped_product_costs_one_expert_for_each_row(product, caplog):
    with caplog.at_level(logging.WARNING, "placewright"):
        graph = from_torch(Experts(product), example())
    assert not caplog.records
    assert matmul_flops(graph) == 2 * PRODUCTS


def test_the_training_of_experts_is_captured_by_shapes(product):
    graph = from_torch(Experts(product), example(), training=True)
    # Two products forward; backward two for each, but the gradient of x is not needed.
    backward = [op.flops for op in graph.ops if op.phase == "backward" and op.kind == "matmul"]
    assert matmul_flops(graph) == 2 * PRODUCTS + sum(backward)
    assert set(backward) == {PRODUCTS}
    assert len(backward) in (3, 4)
    assert {op.name for op in graph.ops if op.phase == "update"} == {"up.update", "down.update"}


@pytest.mark.parametrize("counts", [(5, 0, 9, 2), (0, 16, 0, 0)])
def test_the_gradients_of_a_capture_are_those_of_the_op(product, counts):
    x, offs = example(counts)
    x.requires_grad_()
    weight = torch.randn(EXPERTS, WIDTH, HIDDEN, requires_grad=True)
    gradient = torch.randn(ROWS, HIDDEN)
    expected = torch.autograd.grad(product(x, weight, offs), (x, weight), gradient)
    with experts.grouped_gradients():
        found = torch.autograd.grad(product(x, weight, offs), (x, weight), gradient)
    for a, b in zip(found, expected, strict=True):
        torch.testing.assert_close(a, b)


def test_a_capture_leaves_the_op_as_it_was(product):
    from torch._library.custom_ops import OPDEFS

    backward = OPDEFS[experts.GROUPED_PRODUCT]._backward_fn
    capture_model(Experts(product), example(), {}, training=True)
    assert OPDEFS[experts.GROUPED_PRODUCT]._backward_fn is backward


def test_groups_of_rows_share_the_flops_of_a_weight_gradient():
    # The gradient of a weight is the product of two matrices, each row in one group only.
    class Grouped(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = torch.nn.Parameter(
                torch.randn(EXPERTS, WIDTH, HIDDEN, dtype=torch.bfloat16)
            )

        def forward(self, x, offs):
            return torch._grouped_mm(x, self.weight, offs=offs) ** 2

    x, offs = example()
    graph = from_torch(Grouped(), (x.bfloat16(), offs), training=True)
    backward = [op.flops for op in graph.ops if op.phase == "backward" and op.kind == "matmul"]
    assert matmul_flops(graph) == PRODUCTS + sum(backward)
    assert set(backward) == {PRODUCTS}


def test_a_model_that_asks_is_exported_also_for_its_output(product):
    class Asking(Experts):
        def forward(self, x, offs):
            if not torch.compiler.is_compiling() or not torch.compiler.is_exporting():
                return torch._grouped_mm(x, self.up, offs=offs)  # refused for float32 shapes
            return super().forward(x, offs)

    result = output_template(Asking(product), example(), {})
    assert result.shape == (ROWS, WIDTH)
    assert not torch.compiler.is_compiling()
    assert not torch.compiler.is_exporting()


@pytest.mark.slow
@pytest.mark.filterwarnings("default")
def test_a_mixtral_of_transformers_counts_its_experts():
    transformers = pytest.importorskip("transformers")
    config = transformers.MixtralConfig(
        vocab_size=100,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        num_local_experts=4,
        num_experts_per_tok=2,
        use_cache=False,
    )
    model = transformers.MixtralForCausalLM(config)
    tokens = torch.zeros(2, 8, dtype=torch.int64)
    # Sixteen tokens, two experts each, three products of 32 × 64, two layers.
    expected = 16 * 2 * 3 * (2 * 32 * 64) * 2
    for training, times in ((False, 1), (True, 3)):
        kwargs = {"input_ids": tokens, **({"labels": tokens} if training else {})}
        graph = from_torch(model, (), kwargs, training=training)
        grouped = sum(op.flops for op in graph.ops if "grouped" in op.name)
        assert grouped == times * expected
    assert output_template(model, (), {"input_ids": tokens}).logits.shape == (2, 8, 100)
