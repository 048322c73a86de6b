"""T5 (Raffel et al., JMLR 2020); with the sizes of T5-small.

Attention has a relative position bias, learned once per stack, and no dropout of its weights.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from placewright.zoo.networks.layers import (
    MLP,
    MultiHeadAttention,
    NetworkCall,
    TiedHead,
    default_dtype,
    network_call,
    random_tokens,
)

BUCKETS, MAX_DISTANCE = 32, 128


def build(
    *,
    batch: int,
    source: int,
    target: int,
    layers: int,
    width: int,
    heads: int,
    head: int,
    hidden: int,
    vocabulary: int,
    training: bool,
    dtype: str,
) -> NetworkCall:
    """A text-to-text model.

    Args:
        source: Steps of the input text.
        target: Steps of the output text.
        layers: Layers of the encoder, and of the decoder.
        head: Width of a head.
        hidden: Width of the MLP's inner layer.
    """
    with default_dtype(dtype):
        model = T5(source, target, layers, width, heads, head, hidden, vocabulary)
        args = [random_tokens(vocabulary, batch, source), random_tokens(vocabulary, batch, target)]
        args += [random_tokens(vocabulary, batch, target)] if training else []
    return network_call(model, training, *args)


class T5(nn.Module):
    def __init__(
        self,
        source: int,
        target: int,
        layers: int,
        width: int,
        heads: int,
        head: int,
        hidden: int,
        vocabulary: int,
    ) -> None:
        super().__init__()
        self.words = nn.Embedding(vocabulary, width)
        self.encoder = T5Stack(source, layers, width, heads, head, hidden, is_decoder=False)
        self.decoder = T5Stack(target, layers, width, heads, head, hidden, is_decoder=True)
        self.head = TiedHead()

    def forward(self, source: Tensor, target: Tensor, labels: Tensor | None = None) -> Tensor:
        encoded = self.encoder(self.words(source), None)
        x = self.decoder(self.words(target), encoded)
        return self.head(x * x.shape[-1] ** -0.5, self.words.weight, labels)


class T5Stack(nn.Module):
    """The encoder; or the decoder, with causal and cross-attention."""

    def __init__(
        self,
        steps: int,
        layers: int,
        width: int,
        heads: int,
        head: int,
        hidden: int,
        is_decoder: bool,
    ) -> None:
        super().__init__()
        self.bias = RelativePositionBias(steps, heads, is_decoder)
        self.blocks = nn.ModuleList(
            T5Block(width, heads, head, hidden, is_decoder) for _ in range(layers)
        )
        self.norm = nn.RMSNorm(width, 1e-6)
        self.dropout = nn.Dropout(0.1)

    def forward(self, x: Tensor, encoded: Tensor | None) -> Tensor:
        x, bias = self.dropout(x), self.bias()
        for block in self.blocks:
            x = block(x, bias, encoded)
        return self.dropout(self.norm(x))


class T5Block(nn.Module):
    """Pre-norm self-attention, cross-attention in the decoder, and MLP, with residual sums."""

    def __init__(self, width: int, heads: int, head: int, hidden: int, is_decoder: bool) -> None:
        super().__init__()
        self.attention = MultiHeadAttention(width, heads, head, bias=False, scale=1.0)
        self.attention_norm = nn.RMSNorm(width, 1e-6)
        self.reader = (
            MultiHeadAttention(width, heads, head, bias=False, scale=1.0) if is_decoder else None
        )
        self.reader_norm = nn.RMSNorm(width, 1e-6) if is_decoder else None
        self.mlp = MLP(width, hidden, nn.ReLU(), bias=False)
        self.mlp_norm = nn.RMSNorm(width, 1e-6)
        self.dropout = nn.Dropout(0.1)

    def forward(self, x: Tensor, bias: Tensor, encoded: Tensor | None) -> Tensor:
        x = x + self.dropout(self.attention(self.attention_norm(x), mask=bias))
        if self.reader is not None and self.reader_norm is not None:
            x = x + self.dropout(self.reader(self.reader_norm(x), encoded))
        return x + self.dropout(self.mlp(self.mlp_norm(x)))


class RelativePositionBias(nn.Module):
    """The bias of each score by distance; minus infinity for masked steps."""

    def __init__(self, steps: int, heads: int, causal: bool) -> None:
        super().__init__()
        self.bias = nn.Embedding(BUCKETS, heads)
        distance = torch.arange(steps) - torch.arange(steps)[:, None]
        self.register_buffer("buckets", distance_buckets(distance, causal), persistent=False)
        causal_mask = torch.zeros(steps, steps).masked_fill(distance > 0, float("-inf"))
        self.register_buffer("late", causal_mask if causal else None, persistent=False)

    def forward(self) -> Tensor:
        bias = self.bias(self.buckets).permute(2, 0, 1)
        return bias[None] if self.late is None else bias[None] + self.late


def distance_buckets(distance: Tensor, causal: bool) -> Tensor:
    """The bucket of each distance: one per short distance, then increasingly wide ones."""
    count = BUCKETS if causal else BUCKETS // 2
    offset = 0 if causal else (distance > 0) * count
    distance = -distance.clamp(max=0) if causal else distance.abs()
    near = count // 2
    share = (distance.clamp(min=1).float() / near).log() / math.log(MAX_DISTANCE / near)
    far = near + (share * (count - near)).long()
    return torch.where(distance < near, distance, far.clamp(max=count - 1)) + offset
