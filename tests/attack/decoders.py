"""Decoders of transformers under a plan: `generate` with default arguments, against their own.

`python -m attack.decoders` in `tests/` prints a table: graphs, graph breaks and calls that ran
eagerly, for a first and a second call of `generate`.
"""

from __future__ import annotations

import copy
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

import placewright as pw
from placewright import Cluster, Plan, Problem

sys.path.insert(0, str(Path(__file__).parent.parent))

SIZES = {
    "vocab_size": 96,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 128,
    "bos_token_id": 1,
    "eos_token_id": None,
    "pad_token_id": 0,
}
OLD_SIZES = {"n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 128, "vocab_size": 96}
ENDS = {"bos_token_id": 1, "eos_token_id": None, "pad_token_id": 0}

DECODERS: dict[str, dict[str, Any]] = {
    "Llama": SIZES,
    "Mistral": SIZES,
    "Qwen2": SIZES,
    "Qwen3": {**SIZES, "head_dim": 8},
    "Gemma2": {**SIZES, "head_dim": 8, "query_pre_attn_scalar": 8, "sliding_window": 16},
    "Phi": SIZES,
    "Olmo2": SIZES,
    "GPTNeoX": SIZES,
    "GPT2": {**OLD_SIZES, **ENDS},
    "OPT": {**SIZES, "ffn_dim": 48, "word_embed_proj_dim": 32},
    "Bloom": {"vocab_size": 96, "hidden_size": 32, "n_layer": 2, "n_head": 4, **ENDS},
    "Falcon": {**SIZES, "new_decoder_architecture": False},
}
"""Decoders of transformers, each with its tiny configuration."""

_CLASSES = {"GPT2": "GPT2LMHeadModel"}


@dataclass(frozen=True)
class Generation:
    """What came of two calls of `generate`.

    Args:
        graphs: How many graphs the first call compiled, and both.
        symbolic: How many of them serve several lengths.
        eager_graphs: How many of them no executor runs.
        eager_calls: How many calls of the model ran eagerly.
        is_equal: Whether all tokens are the model's own.
    """

    name: str
    graphs: tuple[int, int]
    symbolic: int
    eager_graphs: int
    eager_calls: int
    is_equal: bool


def build_decoder(name: str) -> torch.nn.Module:
    """A tiny decoder with random weights."""
    import transformers

    config = getattr(transformers, f"{name}Config")(**DECODERS[name])
    torch.manual_seed(0)
    model_class = getattr(transformers, _CLASSES.get(name, f"{name}ForCausalLM"))
    model: torch.nn.Module = model_class(config).eval()
    return model


def alternating_plan(model: torch.nn.Module, tokens: torch.Tensor) -> Plan:
    """A plan that lets ops alternate over two workers."""
    graph = pw.from_torch(model, kwargs={"input_ids": tokens, "use_cache": False})
    problem = Problem(graph, Cluster.parse("2xcpu"))
    return Plan.of(problem, problem.legalize(np.arange(len(graph)) % 2))


def generate(name: str, new_tokens: int = 12) -> Generation:
    """Generate tokens twice, from prompts of two lengths, with default arguments."""
    model = build_decoder(name)
    own = copy.deepcopy(model)
    prompts = [torch.randint(2, 96, (1, length)) for length in (7, 7)]
    placed: Any = pw.apply(alternating_plan(model, prompts[0]), model)
    first_graphs, is_equal = 0, True
    for number, prompt in enumerate(prompts):
        arguments = {"max_new_tokens": new_tokens, "do_sample": False}
        tokens = placed.generate(prompt, **arguments)
        is_equal &= torch.equal(tokens, own.generate(prompt, **arguments))  # type: ignore[operator]
        if not number:
            first_graphs = len(placed.placed.graphs)
    graphs = placed.placed.graphs
    return Generation(
        name,
        (first_graphs, len(graphs)),
        sum(graph.is_symbolic for graph in graphs),
        sum(bool(graph.reason) for graph in graphs) + placed.placed.backend.failures.total(),
        sum(placed.placed.eager_calls.values()),
        is_equal,
    )


def main() -> None:
    """Print the table."""
    torch.set_num_threads(1)
    columns = ("decoder", "graphs, first call", "both", "symbolic", "eager graphs", "eager calls")
    print(f"| {' | '.join(columns)} | equal tokens |\n{'|---' * 7}|")
    for name in DECODERS:
        one = generate(name)
        print(
            f"| {name} | {one.graphs[0]} | {one.graphs[1]} | {one.symbolic} | {one.eager_graphs} | "
            f"{one.eager_calls} | {'yes' if one.is_equal else 'NO'} |",
            flush=True,
        )


if __name__ == "__main__":
    main()
