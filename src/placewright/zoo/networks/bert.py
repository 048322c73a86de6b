"""BERT (Devlin et al., NAACL 2019): hidden states and pooled output, or the training loss.

Sequences are full, so there is no padding mask; attention weights have no dropout.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from placewright.errors import ConfigError
from placewright.zoo.networks.layers import (
    MLP,
    MultiHeadAttention,
    NetworkCall,
    OutputHead,
    SmallEmbedding,
    cross_entropy,
    default_dtype,
    network_call,
    random_tokens,
)

POSITIONS, SEGMENTS, EPSILON = 512, 2, 1e-12


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
    """A text encoder; in training with the heads for masked words and the next sentence."""
    if steps > POSITIONS:
        raise ConfigError(f"bert has steps {steps!r}: expected {POSITIONS} or less")
    if width % heads:
        raise ConfigError(f"bert has width {width!r}: expected a multiple of its {heads} heads")
    with default_dtype(dtype):
        model = BERT(layers, width, heads, vocabulary, pretraining=training)
        args = [random_tokens(vocabulary, batch, steps), random_tokens(SEGMENTS, batch, steps)]
        args += (
            [random_tokens(vocabulary, batch, steps), random_tokens(2, batch)] if training else []
        )
    return network_call(model, training, *args)


class BERT(nn.Module):
    def __init__(
        self, layers: int, width: int, heads: int, vocabulary: int, pretraining: bool
    ) -> None:
        super().__init__()
        self.embedding = BERTEmbedding(vocabulary, width)
        self.blocks = nn.ModuleList(BERTBlock(width, heads) for _ in range(layers))
        self.pooler = nn.Linear(width, width)
        self.masked = MaskedLMHead(width, vocabulary) if pretraining else None
        self.next = OutputHead(width, 2) if pretraining else None

    def forward(
        self,
        tokens: Tensor,
        segments: Tensor,
        labels: Tensor | None = None,
        follows: Tensor | None = None,
    ) -> tuple[Tensor, Tensor] | Tensor:
        x = self.embedding(tokens, segments)
        for block in self.blocks:
            x = block(x)
        summary = torch.tanh(self.pooler(x[:, 0]))
        if labels is None or follows is None or self.masked is None or self.next is None:
            return x, summary
        masked_loss = self.masked(x, self.embedding.words.weight, labels)
        return masked_loss + self.next(summary, follows)


class BERTEmbedding(nn.Module):
    """The sum of word, position and segment embeddings."""

    def __init__(self, vocabulary: int, width: int) -> None:
        super().__init__()
        self.words = SmallEmbedding(vocabulary, width)
        self.positions = SmallEmbedding(POSITIONS, width)
        self.segments = SmallEmbedding(SEGMENTS, width)
        self.norm = nn.LayerNorm(width, EPSILON)
        self.dropout = nn.Dropout(0.1)

    def forward(self, tokens: Tensor, segments: Tensor) -> Tensor:
        position_embeddings = self.positions.weight[: tokens.shape[1]]
        return self.dropout(
            self.norm(self.words(tokens) + self.segments(segments) + position_embeddings)
        )


class BERTBlock(nn.Module):
    """Attention and an MLP, each followed by a residual sum and a norm."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.attention = MultiHeadAttention(width, heads)
        self.attention_norm = nn.LayerNorm(width, EPSILON)
        self.mlp = MLP(width, 4 * width, nn.GELU())
        self.mlp_norm = nn.LayerNorm(width, EPSILON)
        self.dropout = nn.Dropout(0.1)

    def forward(self, x: Tensor) -> Tensor:
        x = self.attention_norm(x + self.dropout(self.attention(x)))
        return self.mlp_norm(x + self.dropout(self.mlp(x)))


class MaskedLMHead(nn.Module):
    """The loss of masked words at every step, with the weight of the embedding."""

    def __init__(self, width: int, vocabulary: int) -> None:
        super().__init__()
        self.dense = nn.Linear(width, width)
        self.norm = nn.LayerNorm(width, EPSILON)
        self.bias = nn.Parameter(torch.zeros(vocabulary))

    def forward(self, x: Tensor, weight: Tensor, labels: Tensor) -> Tensor:
        return cross_entropy(F.linear(self.norm(F.gelu(self.dense(x))), weight, self.bias), labels)
