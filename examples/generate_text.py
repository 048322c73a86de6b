"""`generate` of transformers under a plan: the same tokens, with half of the weights on the GPU.

    python examples/generate_text.py

Needs the extra `torch`, and transformers. The weights are random, from a configuration, so nothing
is downloaded; with `from_pretrained` the rest stays the same. Without a GPU the plan runs on two
CPU workers.
"""

from __future__ import annotations

import time
from typing import Any

import torch
from transformers import LlamaConfig, LlamaForCausalLM

import placewright as pw


def build() -> tuple[Any, tuple[()], dict[str, object]]:
    """A small Llama and an example call, for `placewright place FILE:build`."""
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=1000,
        hidden_size=512,
        intermediate_size=1376,
        num_hidden_layers=3,
        num_attention_heads=8,
        num_key_value_heads=2,
    )
    model = LlamaForCausalLM(config).eval()  # type: ignore[no-untyped-call]
    return model, (), {"input_ids": torch.zeros(1, 128, dtype=torch.long), "use_cache": False}


def main() -> None:
    model, args, kwargs = build()
    weights = sum(weight.nbytes for weight in model.parameters())
    problem = pw.Problem(
        pw.from_torch(model, args, kwargs),
        pw.Cluster.parse("V100+cpu"),
        limits={"gpu0": weights // 2},  # half of the model
    )
    result = pw.solve(problem, budget="3s", seed=0)
    print(result)

    torch.manual_seed(1)
    prompt = torch.randint(1000, (1, 16))
    settings: dict[str, Any] = {"max_new_tokens": 16, "do_sample": False, "pad_token_id": 0}
    expected = model.generate(prompt, **settings)  # before the plan

    real = None if torch.cuda.is_available() else {"gpu0": "cpu:1", "cpu": "cpu:1"}
    pw.apply(result, model, device_map=real)
    model.generate(prompt, **settings)  # the first call compiles
    start = time.perf_counter()
    tokens = model.generate(prompt, **settings)
    seconds = time.perf_counter() - start
    assert torch.equal(tokens, expected)
    print(f"the same {tokens.shape[1] - 16} tokens, {16 / seconds:.0f} tokens per second")


if __name__ == "__main__":
    main()
