"""A model of transformers that is larger than its GPU: `generate` with the same tokens.

    python examples/generate_text.py

Needs the extra `torch`, and transformers. The weights are random, from a configuration, so nothing
is downloaded; with `from_pretrained` the rest stays the same. The GPU may use half of the model's
bytes. Without a GPU the model is small, two CPU workers stand in for a GPU and its host, and times
are estimated.
"""

from __future__ import annotations

import time
from typing import Any

import torch
from transformers import LlamaConfig, LlamaForCausalLM

import placewright as pw


def build(width: int) -> Any:
    """A Llama of three layers."""
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=1000,
        hidden_size=width,
        intermediate_size=width * 43 // 16,
        num_hidden_layers=3,
        num_attention_heads=8,
        num_key_value_heads=2,
    )
    return LlamaForCausalLM(config).eval()


def main() -> None:
    has_gpu = torch.cuda.is_available()
    model = build(width=4096 if has_gpu else 256)
    prompt = torch.randint(1000, (1, 16))
    settings: dict[str, Any] = {"max_new_tokens": 16, "do_sample": False, "pad_token_id": 0}
    expected = model.generate(prompt, **settings)  # before it is placed

    limits = {"gpu0": sum(weight.nbytes for weight in model.parameters()) // 2}
    workload = pw.Generate(prompt=16, new_tokens=16)
    if has_gpu:
        model = pw.place(model, limits, workload)
    else:
        real = {"gpu0": "cpu:1", "cpu": "cpu:1"}
        cluster = "V100(reserve=0)+cpu"  # a limit counts what libraries need, and here are none
        model = pw.place(model, limits, workload, cluster=cluster, device_map=real, budget="1s")

    start = time.perf_counter()
    tokens = model.generate(prompt, **settings)
    seconds = time.perf_counter() - start
    assert torch.equal(tokens, expected)
    print(model.placed)
    print(f"the same {tokens.shape[1] - 16} tokens, {16 / seconds:.0f} tokens per second")


if __name__ == "__main__":
    main()
