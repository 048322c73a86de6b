"""GPT-2 (Radford et al. 2019): logits at every step, or their loss.

Queries, keys and values are three products, not one; attention weights have no dropout.
"""

from __future__ import annotations

from torch import Tensor, nn

from placewright.errors import ConfigError
from placewright.zoo.networks.layers import (
    MLP,
    MultiHeadAttention,
    NetworkCall,
    SmallEmbedding,
    TiedHead,
    default_dtype,
    network_call,
    random_tokens,
)

POSITIONS = 1024


def build(
    *,
    batch: int,
    steps: int,
    layers: int,
    width: int,
    heads: int,
    vocabulary: int,
    training: bool,
    dtype: str,
) -> NetworkCall:
    """A language model."""
    if steps > POSITIONS:
        raise ConfigError(f"gpt2 has steps {steps!r}: expected {POSITIONS} or less")
    if width % heads:
        raise ConfigError(f"gpt2 has width {width!r}: expected a multiple of its {heads} heads")
    with default_dtype(dtype):
        model = GPT2(layers, width, heads, vocabulary)
        args = [random_tokens(vocabulary, batch, steps)] * (2 if training else 1)
    return network_call(model, training, *args)


class GPT2(nn.Module):
    def __init__(self, layers: int, width: int, heads: int, vocabulary: int) -> None:
        super().__init__()
        self.words = SmallEmbedding(vocabulary, width)
        self.positions = SmallEmbedding(POSITIONS, width)
        self.dropout = nn.Dropout(0.1)
        self.blocks = nn.ModuleList(GPT2Block(width, heads) for _ in range(layers))
        self.norm = nn.LayerNorm(width)
        self.head = TiedHead()

    def forward(self, tokens: Tensor, labels: Tensor | None = None) -> Tensor:
        x = self.dropout(self.words(tokens) + self.positions.weight[: tokens.shape[1]])
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x), self.words.weight, labels)


class GPT2Block(nn.Module):
    """Pre-norm attention and MLP, each with a residual sum."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.attention_norm = nn.LayerNorm(width)
        self.attention = MultiHeadAttention(width, heads)
        self.mlp_norm = nn.LayerNorm(width)
        self.mlp = MLP(width, 4 * width, nn.GELU("tanh"))
        self.dropout = nn.Dropout(0.1)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.dropout(self.attention(self.attention_norm(x), causal=True))
        return x + self.dropout(self.mlp(self.mlp_norm(x)))
