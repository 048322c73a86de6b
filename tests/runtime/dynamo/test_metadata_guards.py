"""Graphs of a dry run serve calls after weights have moved, and are dropped after other changes."""

from __future__ import annotations

import copy

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")
torch.set_num_threads(1)

from attack.decoders import build_decoder  # noqa: E402
from fake_cuda import fake_gpus  # noqa: E402
from models import machine, nn  # noqa: E402

import placewright as pw  # noqa: E402
from placewright.deployment.call_capture import begin_capture, capture_calls  # noqa: E402
from placewright.runtime.dynamo import backend as backend_module  # noqa: E402
from placewright.runtime.dynamo.metadata_guards import is_plain  # noqa: E402

MIX = pw.Generate(prompt=12, new_tokens=8)


class Pair(nn.Module):
    """Two layers, and a weight of which only the dtype is used."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.one, self.two = nn.Linear(8, 8), nn.Linear(8, 8)
        self.wide = nn.Parameter(torch.zeros(1))

    def forward(self, x):
        return self.two(torch.relu(self.one(x))).to(self.wide.dtype)


def traces(backend):
    """A list that grows whenever a graph is compiled."""
    compiled = []
    backend.on_compile.append(lambda: compiled.append(None))
    return compiled


def captured(model, mix):
    """The model, captured for a host and a GPU, and a list that grows with each trace."""
    placed = begin_capture(model, machine(1))
    compiled = traces(placed.backend)
    capture_calls(placed, mix)
    return placed, compiled


def move_to_meta(model):
    """Weights, and values of buckets, go to another device; `meta` stands for a GPU."""
    moved = {}
    for module in model.modules():
        for table in (module._parameters, module._buffers):
            for name, tensor in table.items():
                if tensor is None:
                    continue
                new = tensor.detach().to("meta")
                if isinstance(tensor, nn.Parameter):
                    new = nn.Parameter(new, tensor.requires_grad)
                table[name] = moved.setdefault(id(tensor), (new, tensor))[0]
    pool = model.generate.buckets.pool
    pool.clear()
    meta = torch.device("meta")
    pool._device_of = lambda layer, name: meta if name == "values" else None


@pytest.mark.parametrize("name", ["LlamaForCausalLM", "GPT2LMHeadModel"])  # GPT-2's are tied
def test_graphs_of_a_dry_run_serve_calls_after_weights_and_buckets_have_moved(name):
    model = build_decoder(name)
    with fake_gpus():
        placed, compiled = captured(model, MIX)
        assert len(compiled) == 2
        move_to_meta(model)
        shapes = MIX.call_shapes(model, placed.backend)
        assert [shape.name for shape in shapes] == ["prefill", "decode"]
        assert len(compiled) == 2
        placed.remove()


def test_without_these_guards_the_graphs_would_be_traced_again(monkeypatch):
    monkeypatch.setattr(backend_module, "guard_metadata", lambda *_: lambda args: None)
    model = build_decoder("LlamaForCausalLM", num_hidden_layers=1)
    with fake_gpus():
        placed, compiled = captured(model, MIX)
        move_to_meta(model)
        MIX.call_shapes(model, placed.backend)
        assert len(compiled) == 4
        placed.remove()


def transpose(model):
    model.one.weight.data = model.one.weight.data.t().contiguous().t()


def freeze(model):
    model.one.weight.requires_grad_(False)


def replace(model):
    model.one.weight = model.two.weight


def narrow(model):
    model.wide.data = model.wide.data.half()


def swap(model):
    model.one = nn.Linear(8, 8, bias=False)


def to_buffer(model):
    bias = model.one.bias.detach() + 1
    del model.one.bias
    model.one.register_buffer("bias", bias)


def to_attribute(model):
    bias = model.one.bias.detach() + 1
    del model.one.bias
    model.one.bias = bias


def nothing(model):
    with torch.no_grad():
        model.one.weight.add_(1)  # values are not part of a trace


@pytest.mark.parametrize(
    ("change", "again"),
    [
        (nothing, 0),
        *((change, 1) for change in (transpose, freeze, replace, narrow, swap)),
        *((change, 1) for change in (to_buffer, to_attribute)),
    ],
)
def test_a_changed_weight_gives_the_outputs_of_a_copy_that_was_changed_alike(change, again):
    model = Pair().eval()
    own, x = copy.deepcopy(model), torch.rand(2, 8)
    with fake_gpus():
        placed, compiled = captured(model, pw.Calls([((x,),)]))
        with torch.no_grad():
            assert torch.equal(model(x), own(x))
        assert len(compiled) == 1
        for each in (model, own):
            torch.manual_seed(1)
            change(each)
        with torch.no_grad():
            result = model(x)
            assert torch.equal(result, own(x))
            assert result.dtype == own(x).dtype
            assert torch.equal(model(x), own(x))
        assert len(compiled) == 1 + again
        assert not placed.eager_calls
        placed.remove()


def test_a_call_with_gradients_gives_those_of_a_copy():
    model = Pair().eval()
    own, x = copy.deepcopy(model), torch.rand(2, 8)
    with fake_gpus():
        placed, _ = captured(model, pw.Calls([((x,),)]))
        for each in (model, own):
            each(x).sum().backward()
        assert torch.equal(model.one.weight.grad, own.one.weight.grad)
        placed.remove()


def test_only_a_tensor_that_is_nothing_but_numbers_is_plain():
    numbers = torch.zeros(2, 2)
    assert is_plain(numbers)
    assert is_plain(nn.Parameter(numbers))
    assert is_plain(numbers.to("meta"))
    assert not is_plain(numbers.to_sparse())
    assert not is_plain(torch.zeros(2, dtype=torch.complex64).conj())
    assert not is_plain(torch.zeros(2, dtype=torch.complex64).conj().imag)
    assert not is_plain(torch._efficientzerotensor(2))
    with torch.inference_mode():
        assert not is_plain(torch.zeros(2))
