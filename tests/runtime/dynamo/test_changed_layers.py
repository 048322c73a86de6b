"""Language models whose layers repeat, or no longer do, compute what an untouched copy computes."""

import copy
import types

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

from attack.decoders import build_decoder, place_decoder  # noqa: E402

from placewright import Generate  # noqa: E402

torch.set_num_threads(1)
LAYERS = 6
MIX = Generate(prompt=7, new_tokens=3)
SIZES = {
    "LlamaForCausalLM": {"num_hidden_layers": LAYERS},
    "GPT2LMHeadModel": {"n_layer": LAYERS},
    "T5ForConditionalGeneration": {"num_layers": LAYERS},
    "MixtralForCausalLM": {"num_hidden_layers": LAYERS},
    "Gemma2ForCausalLM": {"num_hidden_layers": LAYERS},
}


def layers_of(model):
    """The decoder's layers."""
    lists = [each for each in model.modules() if isinstance(each, torch.nn.ModuleList)]
    return [each for each in lists if len(each) == LAYERS][-1]


def add_hook(model):
    def double(module, args, outputs):
        if isinstance(outputs, tuple):
            return (2 * outputs[0], *outputs[1:])
        return 2 * outputs

    layers_of(model)[3].register_forward_hook(double)


def freeze(model):
    layers_of(model)[3].requires_grad_(False)


def train(model):
    for module in layers_of(model)[3].modules():
        module.training = True


def replace(model):
    layers = layers_of(model)
    layers[3] = copy.deepcopy(layers[3])
    for weight in layers[3].parameters():
        weight.data.mul_(0.9)


def patch_forward(model):
    layer = layers_of(model)[3]
    own = layer.forward

    def forward(self, hidden, *args, **kwargs):
        return own(0.5 * hidden, *args, **kwargs)

    layer.forward = types.MethodType(forward, layer)


def shrink(model):
    """Layers of which every one has other numbers, and one has another shape."""
    for at, layer in enumerate(layers_of(model)):
        for weight in layer.parameters():
            weight.data.mul_(1 - 0.01 * at)
    mlp = getattr(layers_of(model)[3], "mlp", None)
    if hasattr(mlp, "down_proj"):
        for name in ("gate_proj", "up_proj"):
            weight = getattr(mlp, name).weight
            weight.data = weight.data[:-8].clone()
        mlp.down_proj.weight.data = mlp.down_proj.weight.data[:, :-8].clone()


def outputs_of(model):
    torch.manual_seed(0)
    with torch.no_grad():
        return MIX.run(model, 7, 3, return_dict_in_generate=True, output_logits=True)


def check(model, own):
    actual, expected = outputs_of(model), outputs_of(own)
    assert torch.equal(actual.sequences, expected.sequences)
    torch.testing.assert_close(actual.logits, expected.logits)
    assert not model.placed.eager_calls


def parameters():
    for name in SIZES:
        for change in (add_hook, train, replace, patch_forward, shrink):
            yield pytest.param(name, change, id=f"{name}-{change.__name__}")


@pytest.mark.slow
@pytest.mark.parametrize(("name", "change"), [*parameters()])
def test_a_layer_that_changes_after_placing_computes_as_in_an_untouched_copy(name, change):
    torch._dynamo.reset()
    sizes = {"attention_dropout": 0.0} if "GPT" not in name and "T5" not in name else {}
    off = {"GPT2LMHeadModel": {"resid_pdrop": 0.0, "attn_pdrop": 0.0, "embd_pdrop": 0.0}}
    off["T5ForConditionalGeneration"] = {"dropout_rate": 0.0}
    model = build_decoder(name, **SIZES[name], **sizes, **off.get(name, {}))
    own = copy.deepcopy(model)
    place_decoder(model, MIX)
    check(model, own)
    for each in (model, own):
        change(each)
    check(model, own)


@pytest.mark.slow
@pytest.mark.parametrize("name", list(SIZES))
def test_gradients_of_a_model_with_a_frozen_layer_are_those_of_an_untouched_copy(name):
    torch._dynamo.reset()
    model = build_decoder(name, **SIZES[name])
    own = copy.deepcopy(model)
    place_decoder(model, MIX)
    check(model, own)
    tokens = torch.randint(2, 90, (1, 5), generator=torch.Generator().manual_seed(0))
    for change in (lambda model: None, freeze):
        for each in (model, own):
            change(each)
            each.zero_grad()
            each(input_ids=tokens, labels=tokens).loss.backward()
        for (key, weight), right in zip(model.named_parameters(), own.parameters(), strict=True):
            assert (weight.grad is None) == (right.grad is None), key
            if right.grad is not None:
                torch.testing.assert_close(weight.grad, right.grad, msg=key)
    check(model, own)
