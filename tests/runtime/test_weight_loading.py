"""Weight loading: which files are read, and what a model on `meta` needs besides them."""

from __future__ import annotations

import json

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("safetensors")

from safetensors.torch import save_file  # noqa: E402

from placewright.errors import FileError  # noqa: E402
from placewright.runtime.model_buffers import compute_buffers  # noqa: E402
from placewright.runtime.weight_loading import check_weights, load_weights  # noqa: E402


@pytest.fixture
def folder(tmp_path):
    """A folder with an index, and weights beside the folder that it must not read."""
    inner = tmp_path / "model"
    (inner / "parts").mkdir(parents=True)
    weights = {"weight": torch.ones(2, 2), "bias": torch.ones(2)}
    for path in (tmp_path / "other.safetensors", inner / "parts" / "own.safetensors"):
        save_file(weights, path)

    def with_index(name):
        index = {"weight_map": dict.fromkeys(weights, name)}
        (inner / "model.safetensors.index.json").write_text(json.dumps(index))
        return inner

    return with_index


def meta_layer():
    with torch.device("meta"):
        return torch.nn.Linear(2, 2)


def test_files_below_the_index_are_read(folder):
    layer = meta_layer()
    load_weights(layer, folder("parts/own.safetensors"), {})
    assert (layer.weight == 1).all()


@pytest.mark.parametrize(
    "name",
    ["../other.safetensors", "parts/../../other.safetensors", "ABSOLUTE", r"..\other.safetensors",
     r"C:\other.safetensors", "", "a\0b", 7, None],
)  # fmt: skip
def test_a_name_that_leaves_the_folder_is_refused(folder, tmp_path, name):
    name = str(tmp_path / "other.safetensors") if name == "ABSOLUTE" else name
    with pytest.raises(FileError, match="expected names of files in the index's folder"):
        load_weights(meta_layer(), folder(name), {})


@pytest.fixture
def llama(tmp_path):
    """A Llama whose head is tied to its embedding, saved; and its configuration."""
    transformers = pytest.importorskip("transformers")
    config = transformers.LlamaConfig(
        hidden_size=16, intermediate_size=32, num_hidden_layers=2, num_attention_heads=2,
        num_key_value_heads=2, vocab_size=31, tie_word_embeddings=True,
    )  # fmt: skip
    model = transformers.LlamaForCausalLM(config).eval()
    model.save_pretrained(tmp_path / "llama")
    return model, config, tmp_path / "llama"


def test_buffers_of_a_configuration_are_computed_where_all_of_the_model_is_on_meta(llama):
    model, config, folder = llama
    with torch.device("meta"):
        loaded = type(model)(config).eval()
    assert loaded.model.rotary_emb.inv_freq.is_meta
    check_weights(loaded, folder)
    assert loaded.model.rotary_emb.inv_freq.is_meta
    load_weights(loaded, folder, {})
    assert torch.equal(loaded.model.rotary_emb.inv_freq, model.model.rotary_emb.inv_freq)
    tokens = torch.arange(6)[None]
    assert torch.equal(loaded(tokens).logits, model(tokens).logits)
    assert loaded.lm_head.weight is loaded.model.embed_tokens.weight


class WithBuffers(torch.nn.Module):
    """Has a buffer that its `_init_weights` computes, and one that it forgets."""

    class Part(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("known", torch.arange(3.0), persistent=False)
            self.register_buffer("forgotten", torch.arange(4.0), persistent=False)

    def __init__(self):
        super().__init__()
        self.part = self.Part()

    def _init_weights(self, module):
        if isinstance(module, self.Part):
            module.known.copy_(torch.arange(3.0))


def test_a_buffer_that_initialisation_forgets_is_not_taken_for_computed():
    with torch.device("meta"):
        model = WithBuffers()
    values = compute_buffers(model, {"part.known", "part.forgotten"})
    assert values.keys() == {"part.known"}
    assert torch.equal(values["part.known"], torch.arange(3.0))
    assert model.part.known.is_meta


def test_a_file_without_a_weight_is_refused_before_anything_is_loaded(tmp_path):
    layer = meta_layer()
    save_file({"weight": torch.ones(2, 2)}, tmp_path / "model.safetensors")
    for load in (lambda: check_weights(layer, tmp_path), lambda: load_weights(layer, tmp_path, {})):
        with pytest.raises(FileError, match=r"lacks 1 of the model's tensors, such as 'bias'"):
            load()
    assert layer.weight.is_meta


def test_a_weight_of_another_shape_is_refused_before_anything_is_loaded(tmp_path):
    layer = meta_layer()
    save_file({"bias": torch.ones(2), "weight": torch.ones(3, 2)}, tmp_path / "model.safetensors")
    with pytest.raises(FileError, match=r"'weight' has shape \(3, 2\) in the file"):
        load_weights(layer, tmp_path, {})
    assert layer.bias.is_meta
