"""A PyTorch model that is larger than the memory of its GPU: plan it, run it, check it.

    python examples/larger_than_gpu.py
    placewright place examples/larger_than_gpu.py:build --on V100+cpu --limit gpu0=50MiB

Needs the extra `torch`. Without a GPU the same plan runs on two CPU workers: the placement and the
streamed weights are the plan's, only the speed is not.
"""

from __future__ import annotations

import torch
from torch import nn

import placewright as pw


class Block(nn.Module):
    """A layer of a transformer."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.first, self.second = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, tokens, width = x.shape
        qkv = self.qkv(self.first(x)).view(batch, tokens, 3, self.heads, -1)
        query, key, value = qkv.permute(2, 0, 3, 1, 4)
        attended = nn.functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        x = x + self.out(attended.transpose(1, 2).reshape(batch, tokens, width))
        expanded: torch.Tensor = self.down(nn.functional.gelu(self.up(self.second(x))))
        return x + expanded


class Decoder(nn.Module):
    """A stack of blocks between an embedding and a head."""

    def __init__(self, blocks: int, width: int, words: int = 1000) -> None:
        super().__init__()
        self.embedding = nn.Embedding(words, width)
        self.blocks = nn.ModuleList(Block(width, heads=width // 64) for _ in range(blocks))
        self.head = nn.Linear(width, words)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.embedding(tokens)
        for block in self.blocks:
            x = block(x)
        logits: torch.Tensor = self.head(x)
        return logits


def build() -> tuple[nn.Module, tuple[torch.Tensor]]:
    """The model and an example of its arguments, for `placewright place FILE:build`."""
    torch.manual_seed(0)
    return Decoder(blocks=8, width=512).eval(), (torch.zeros(1, 128, dtype=torch.long),)


def main() -> None:
    model, args = build()
    weights = sum(weight.nbytes for weight in model.parameters())
    limit = weights // 2  # the GPU may hold half of the model

    problem = pw.Problem(
        pw.from_torch(model, args),
        pw.Cluster.parse("V100+cpu"),
        limits={"gpu0": limit},
    )
    result = pw.solve(problem, budget="1s", seed=0)
    print(f"{weights / 2**20:.0f} MiB of weights, of which the GPU may hold half")
    print(result)
    print(pw.explain(problem, result))
    assert result.fits

    with torch.no_grad():
        expected = model(*args)
        real = None if torch.cuda.is_available() else {"gpu0": "cpu:1", "cpu": "cpu:1"}
        placed = pw.apply(result, model, device_map=real)
        difference = float((placed(*args) - expected).abs().max())
    print(f"run under the plan: outputs differ by at most {difference:.1g}")
    assert difference < 1e-4


if __name__ == "__main__":
    main()
