"""Sizes in, BERT out (Devlin et al., NAACL 2019): states and a summary, or its pre-training loss.

Sequences are full, so there is no mask of padding; no dropout of attention weights.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from placewright.errors import ConfigError
from placewright.zoo.networks.layers import (
    MLP,
    Attention,
    Built,
    Head,
    SmallEmbedding,
    elements,
    finish,
    loss,
    words,
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
) -> Built:
    """An encoder of text; in training with the heads for masked words and for the next sentence."""
    if steps > POSITIONS:
        raise ConfigError(f"bert has steps {steps!r}: expected {POSITIONS} or less")
    if width % heads:
        raise ConfigError(f"bert has width {width!r}: expected a multiple of its {heads} heads")
    with elements(dtype):
        model = BERT(layers, width, heads, vocabulary, heads_too=training)
        args = [words(vocabulary, batch, steps), words(SEGMENTS, batch, steps)]
        args += [words(vocabulary, batch, steps), words(2, batch)] if training else []
    return finish(model, training, *args)


class BERT(nn.Module):
    def __init__(
        self, layers: int, width: int, heads: int, vocabulary: int, heads_too: bool
    ) -> None:
        super().__init__()
        self.embedding = Embedding(vocabulary, width)
        self.blocks = nn.ModuleList(Block(width, heads) for _ in range(layers))
        self.pooler = nn.Linear(width, width)
        self.masked = Masked(width, vocabulary) if heads_too else None
        self.next = Head(width, 2) if heads_too else None

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
        guess = self.masked(x, self.embedding.words.weight, labels)
        return guess + self.next(summary, follows)


class Embedding(nn.Module):
    """The sum of what word, place and segment say."""

    def __init__(self, vocabulary: int, width: int) -> None:
        super().__init__()
        self.words = SmallEmbedding(vocabulary, width)
        self.positions = SmallEmbedding(POSITIONS, width)
        self.segments = SmallEmbedding(SEGMENTS, width)
        self.norm = nn.LayerNorm(width, EPSILON)
        self.dropout = nn.Dropout(0.1)

    def forward(self, tokens: Tensor, segments: Tensor) -> Tensor:
        places = self.positions.weight[: tokens.shape[1]]
        return self.dropout(self.norm(self.words(tokens) + self.segments(segments) + places))


class Block(nn.Module):
    """Attention and a perceptron, each followed by a sum and a norm."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.attention = Attention(width, heads)
        self.attention_norm = nn.LayerNorm(width, EPSILON)
        self.mlp = MLP(width, 4 * width, nn.GELU())
        self.mlp_norm = nn.LayerNorm(width, EPSILON)
        self.dropout = nn.Dropout(0.1)

    def forward(self, x: Tensor) -> Tensor:
        x = self.attention_norm(x + self.dropout(self.attention(x)))
        return self.mlp_norm(x + self.dropout(self.mlp(x)))


class Masked(nn.Module):
    """The loss of the words that were masked, at every step, by the weight of the embedding."""

    def __init__(self, width: int, vocabulary: int) -> None:
        super().__init__()
        self.dense = nn.Linear(width, width)
        self.norm = nn.LayerNorm(width, EPSILON)
        self.bias = nn.Parameter(torch.zeros(vocabulary))

    def forward(self, x: Tensor, weight: Tensor, labels: Tensor) -> Tensor:
        return loss(F.linear(self.norm(F.gelu(self.dense(x))), weight, self.bias), labels)
