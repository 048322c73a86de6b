"""`generate` of transformers under a plan: the model's own tokens, from few graphs."""

from __future__ import annotations

import pytest
import torch

pytest.importorskip("transformers")

from attack.decoders import DECODERS, generate

torch.set_num_threads(1)
QUICK = ("Llama",)


@pytest.mark.parametrize(
    "name",
    [name if name in QUICK else pytest.param(name, marks=pytest.mark.slow) for name in DECODERS],
)
def test_tokens_are_the_models_own_and_a_second_call_compiles_nothing(name):
    generation = generate(name)
    assert generation.is_equal
    assert generation.graphs[0] == generation.graphs[1] > 0
    assert generation.eager_graphs == generation.eager_calls == 0
