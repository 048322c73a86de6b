"""A program's ops, run one by one, make what the model makes."""

from __future__ import annotations

import copy
from collections import OrderedDict

import pytest
from torch_models import Perceptron, nn, torch

from placewright.errors import ConfigError, GraphError
from placewright.runtime.program.attention import flash_attention, flash_attention_backward
from placewright.runtime.program.optimizer_step import OptimizerRule, WeightUpdate
from placewright.runtime.program.program import build_program
from placewright.runtime.program.sources import (
    input_tensors,
    model_tensors,
    random_inputs,
    run_on_one_device,
)
from placewright.zoo.networks import NETWORKS


def outputs(program, values):
    found = []
    for output in program.outputs:
        value = values[output.tensor]
        for view in output.views:
            value = view(value)
        found.append(value)
    return found


def alone(model, args, kwargs=None, **how):
    program = build_program(model, args, kwargs, **how)
    sources = model_tensors(program, model) | input_tensors(program, args, kwargs or {})
    return program, run_on_one_device(program, sources, seed=1)


LONG = [pytest.param(name, marks=pytest.mark.slow) for name in ("gpt2", "llama-8b", "moe", "unet")]


@pytest.mark.parametrize("name", ["dlrm", *LONG])
def test_a_program_makes_what_the_network_makes(name):
    torch.manual_seed(0)
    training = {"training": False} if "training" in NETWORKS[name].arguments() else {}
    model, args, kwargs = NETWORKS[name].build("test", **training)
    program, values = alone(model.eval(), args, kwargs)
    with torch.no_grad():
        expected = model(*copy.deepcopy(args), **copy.deepcopy(kwargs))
    assert torch.equal(program.pack_outputs(outputs(program, values)), expected)


@pytest.mark.parametrize("name", ["rnnlm-2", pytest.param("llama-8b", marks=pytest.mark.slow)])
def test_a_training_program_makes_the_gradients_of_autograd(name):
    torch.manual_seed(0)
    model, args, kwargs = NETWORKS[name].build("test", training=True)
    program, values = alone(model.train(), args, kwargs, training=True)
    loss = model(*args, **kwargs)
    loss.backward()
    assert outputs(program, values)[0].item() == pytest.approx(loss.item(), rel=1e-6)
    parameters = dict(model.named_parameters())
    assert len(program.gradients) == len(parameters)
    for weight, parts in program.gradients.items():
        made = sum(values[part].reshape(parameters[weight].shape) for part in parts)
        assert torch.allclose(made, parameters[weight].grad, atol=1e-6)


def test_a_program_returns_the_models_own_structure():
    class Told(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = Perceptron()

        def forward(self, x, scale=1):
            made = self.inner(x) * scale
            return OrderedDict(logits=made, none=None, pair=(made + 1, 7))

    model, x = Told(), torch.randn(3, 16)
    program, values = alone(model, (x,), {"scale": 2})
    made, expected = program.pack_outputs(outputs(program, values)), model(x, scale=2)
    assert isinstance(made, OrderedDict)
    assert list(made) == ["logits", "none", "pair"]
    assert made["none"] is None
    assert made["pair"][1] == 7
    assert torch.equal(made["logits"], expected["logits"])
    assert torch.equal(made["pair"][0], expected["pair"][0])


def test_constants_attributes_and_tied_weights_have_their_values():
    class Odd(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.up = nn.Linear(4, 4)
            self.down = nn.Linear(4, 4)
            self.down.weight = self.up.weight
            self.mask = torch.arange(4.0)
            self.register_buffer("scale", torch.full((4,), 2.0), persistent=False)

        def forward(self, x):
            return self.down(self.up(x)) * self.mask * self.scale + torch.tensor([1.0, 2, 3, 4])

    model, x = Odd(), torch.randn(2, 4)
    program, values = alone(model, (x,))
    assert torch.equal(outputs(program, values)[0], model(x))
    tied = [source.names for source in program.sources.values() if len(source.names) > 1]
    assert tied == [("up.weight", "down.weight")]


class Cached(nn.Module):
    """Writes a row of a cache, and reads it."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("cache", torch.zeros(4, 3))

    def forward(self, x, at):
        self.cache.index_copy_(0, at, x)
        return self.cache.sum(0) * 2


def test_a_state_is_written_in_place_or_as_a_copy():
    model, args = Cached(), (torch.ones(1, 3), torch.tensor([2]))
    program, values = alone(model, args)
    assert model.cache.sum() == 0  # the model's own state is left alone
    changed = values[program.builder.state_updates["cache"]]
    assert changed[2].tolist() == [1, 1, 1]
    position = program.builder.state_updates["cache"][0]
    op = program.graph.ops[position]
    assert op.aliases
    read = [values[tensor] for tensor in op.inputs]
    (written,) = program.runner(position, "cpu", in_place=True)(read)
    assert written.data_ptr() == model.cache.data_ptr()
    assert model.cache[2].tolist() == [1, 1, 1]


@pytest.mark.parametrize("name", ["sgd", "momentum", "adam"])
def test_updates_are_those_of_torch_optim(name):
    torch.manual_seed(0)
    model, x = Perceptron(), torch.randn(3, 16)
    program = build_program(
        model, x, training=True, optimizer=OptimizerRule(name, learning_rate=0.1)
    )
    twin = copy.deepcopy(model)
    optimizer = (
        torch.optim.Adam(twin.parameters(), lr=0.1)
        if name == "adam"
        else torch.optim.SGD(twin.parameters(), lr=0.1, momentum=0.9 * (name == "momentum"))
    )
    updates = {
        position: program.runner(position, "cpu")
        for position, op in enumerate(program.graph.ops)
        if op.kind == "optimizer"
    }
    assert all(isinstance(update, WeightUpdate) for update in updates.values())
    for _ in range(3):
        values = run_on_one_device(
            program, model_tensors(program, model) | input_tensors(program, (x,), {})
        )
        for position, update in updates.items():
            update([values[tensor] for tensor in program.graph.ops[position].inputs])
        optimizer.zero_grad()
        twin(x).sum().backward()
        optimizer.step()
    for mine, theirs in zip(model.parameters(), twin.parameters(), strict=True):
        assert torch.allclose(mine, theirs, atol=1e-6)


def test_every_op_can_be_run_alone_with_made_up_inputs():
    model, args, kwargs = NETWORKS["dlrm"].build("test", training=True)
    program = build_program(model, args, kwargs, training=True, optimizer="adam")
    ran = 0
    for position, op in enumerate(program.graph.ops):
        if position not in program.sources:
            made = program.runner(position, "cpu")(random_inputs(program, position, "cpu"))
            assert [one.shape for one in made] == [
                program.meta_tensors[position, output].shape for output in range(len(op.outputs))
            ]
            ran += 1
    assert ran > 100


def test_what_cannot_be_run_says_so():
    program = build_program(Perceptron(), torch.randn(3, 16))
    with pytest.raises(GraphError, match="nothing to run"):
        program.runner(program.graph.position["up.weight"], "cpu")
    with pytest.raises(ConfigError, match="training is false"):
        build_program(Perceptron(), torch.randn(3, 16), optimizer="adam")
    with pytest.raises(ConfigError, match="'adam'"):
        build_program(Perceptron(), torch.randn(3, 16), training=True, optimizer="adm")
    with pytest.raises(GraphError, match="captured with"):
        model_tensors(build_program(nn.Linear(3, 4), torch.randn(1, 3)), nn.Linear(4, 4))


@pytest.mark.parametrize("how", ["plain", "causal", "shared", "masked"])
def test_attention_elsewhere_is_that_of_the_cpu(how):
    torch.manual_seed(0)
    heads = 1 if how == "shared" else 3  # of keys and values
    query, gradient = (torch.randn(2, 3, 5, 8) for _ in range(2))
    key, value = (torch.randn(2, heads, 5, 8) for _ in range(2))
    mask = torch.randn(2, 1, 5, 5) if how == "masked" else None
    causal, aten = how == "causal", torch.ops.aten
    out, total = aten._scaled_dot_product_flash_attention_for_cpu(
        query, key, value, 0.0, causal, attn_mask=mask
    )
    mine, sums = flash_attention(query, key, value, 0.0, causal, attn_mask=mask)
    assert torch.allclose(mine, out, atol=1e-6)
    assert torch.allclose(sums, total, atol=1e-5)
    given_back = (gradient, query, key, value, out, total, 0.0, causal)
    expected = aten._scaled_dot_product_flash_attention_for_cpu_backward(
        *given_back, attn_mask=mask
    )
    for one, other in zip(
        flash_attention_backward(*given_back, attn_mask=mask), expected, strict=True
    ):
        assert torch.allclose(one, other, atol=1e-5)
