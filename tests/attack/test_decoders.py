"""`generate` of transformers under a plan: the model's own tokens, from few graphs."""

from __future__ import annotations

import copy

import pytest
import torch

pytest.importorskip("transformers")

from attack.decoder_configs import DECODERS
from attack.decoders import build_decoder, generate, place_decoder

from placewright import Generate
from placewright.runtime.verification import TOLERANCE

torch.set_num_threads(1)
QUICK = ("LlamaForCausalLM",)
SPECIAL_PREFILL = ("MambaForCausalLM", "RecurrentGemmaForCausalLM")
"""Their code has loops over the prompt, so that each of the first lengths is a graph of its own."""
PROMPTS = torch.randint(2, 96, (4, 9), generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize(
    "name",
    [name if name in QUICK else pytest.param(name, marks=pytest.mark.slow) for name in DECODERS],
)
def test_tokens_are_the_models_own_and_another_prompt_compiles_nothing(name):
    generation = generate(name)
    assert generation.is_equal
    assert {"prefill", "decode"} <= set(generation.calls)
    more = 1 if name in SPECIAL_PREFILL else 0
    assert 0 < generation.graphs[0] <= generation.graphs[1] <= generation.graphs[0] + more
    assert generation.eager_graphs == generation.eager_calls == 0


@pytest.mark.parametrize(
    "kind",
    [
        "streaming",
        pytest.param(
            "gpu",
            marks=[
                pytest.mark.gpu,
                pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
            ],
        ),
    ],
)
@pytest.mark.parametrize("name", DECODERS)
@pytest.mark.slow
def test_tokens_are_the_models_own_when_a_gpu_streams_all_weights(name, kind):
    generation = generate(name, kind=kind)
    assert generation.is_equal
    assert generation.eager_graphs == generation.eager_calls == 0


@pytest.fixture(scope="module")
def pair():
    """A placed Llama and an untouched copy of it."""
    model = build_decoder("LlamaForCausalLM", num_hidden_layers=1)
    own = copy.deepcopy(model)
    place_decoder(model, Generate(prompt=9, new_tokens=8))
    return model, own


@pytest.mark.parametrize(
    ("batch", "arguments"),
    [
        pytest.param(1, {}, id="default"),
        pytest.param(1, {"do_sample": True, "top_k": 8}, id="sampling"),
        pytest.param(4, {"do_sample": False}, id="batch of 4"),
        pytest.param(1, {"num_beams": 3, "do_sample": False}, id="beam search"),
        pytest.param(1, {"cache_implementation": "static", "do_sample": False}, id="static cache"),
        pytest.param(
            1, {"use_cache": False, "do_sample": False}, id="no cache", marks=pytest.mark.slow
        ),
        pytest.param(
            1, {"prefill_chunk_size": 4, "do_sample": False}, id="chunks", marks=pytest.mark.slow
        ),
        pytest.param(
            1, {"cache_implementation": "offloaded", "do_sample": False}, id="offloaded cache",
            marks=pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU"),
        ),
    ],
)  # fmt: skip
def test_all_ways_to_generate_run_under_the_plan(pair, batch, arguments):
    model, own = pair
    tokens = []
    for each in (model, own):
        torch.manual_seed(1)
        tokens.append(each.generate(PROMPTS[:batch], max_new_tokens=6, **arguments))
    assert torch.equal(*tokens)
    assert not model.placed.eager_calls
    assert not any(graph.reason for graph in model.placed.graphs)
    compiled = len(model.placed.graphs)
    model.generate(PROMPTS[:batch], max_new_tokens=6, **arguments)
    assert len(model.placed.graphs) == compiled  # a second call compiles nothing


def test_a_loop_of_the_callers_own_runs_under_the_plan(pair):
    outputs = []
    for model in pair:
        tokens, cache, logits = PROMPTS[:1], None, []
        with torch.no_grad():
            for _ in range(5):
                result = model(input_ids=tokens, past_key_values=cache, use_cache=True)
                cache, tokens = result.past_key_values, result.logits[:, -1:].argmax(-1)
                logits.append(result.logits[:, -1])
        outputs.append(torch.stack(logits))
    assert torch.equal(*outputs)
    assert not pair[0].placed.eager_calls


@pytest.mark.slow
def test_logits_in_bfloat16_agree_under_forced_decoding():
    model = build_decoder("LlamaForCausalLM", num_hidden_layers=1).bfloat16()
    own = copy.deepcopy(model)
    place_decoder(model, Generate(prompt=9, new_tokens=8))
    tokens = own.generate(PROMPTS[:1], max_new_tokens=8, do_sample=False)
    logits = []
    for each in (model, own):
        cache, rows = None, []
        with torch.no_grad():
            for at in range(tokens.shape[1]):  # the same tokens for both
                result = each(input_ids=tokens[:, at : at + 1], past_key_values=cache)
                cache = result.past_key_values
                rows.append(result.logits[0, -1].float())
        logits.append(torch.stack(rows))
    largest = logits[1].abs().max()
    assert (logits[0] - logits[1]).abs().max() <= TOLERANCE[torch.bfloat16] * largest
