"""Transformer-XL (Dai et al., ACL 2019): attention over this segment and the last.

The memory of a layer is its input in the last segment, a buffer that every step replaces.
Shapes at the end of a name: B batch, T steps, S memory and steps, D width, H heads, E head's width.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from placewright.errors import ConfigError
from placewright.zoo.networks.layers import (
    MLP,
    NetworkCall,
    OutputHead,
    network_call,
    random_tokens,
)


def build(
    *,
    batch: int,
    steps: int,
    memory: int,
    layers: int,
    width: int,
    heads: int,
    hidden: int,
    vocabulary: int,
    training: bool,
) -> NetworkCall:
    """A language model of words or characters.

    Args:
        memory: Steps before the segment that each layer attends to.
        hidden: Width of the MLP's inner layer.
    """
    if width % (2 * heads):
        raise ConfigError(
            f"transformer-xl has width {width!r}: expected a multiple of twice its {heads} heads"
        )
    model = TransformerXL(batch, steps, memory, layers, width, heads, hidden, vocabulary)
    args = [random_tokens(vocabulary, batch, steps)] * (2 if training else 1)
    return network_call(model, training, *args)


class TransformerXL(nn.Module):
    distances: Tensor
    late: Tensor

    def __init__(
        self,
        batch: int,
        steps: int,
        memory: int,
        layers: int,
        width: int,
        heads: int,
        hidden: int,
        vocabulary: int,
    ) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, width)
        self.dropout = nn.Dropout(0.1)
        self.layers = nn.ModuleList(
            TransformerXLLayer(batch, memory, width, heads, hidden) for _ in range(layers)
        )
        self.head = OutputHead(width, vocabulary)
        self.register_buffer("distances", sinusoids(memory + steps, width), persistent=False)
        causal_mask = torch.ones(steps, memory + steps, dtype=torch.bool).triu(1 + memory)
        self.register_buffer("late", causal_mask, persistent=False)

    def forward(self, tokens_BT: Tensor, labels_BT: Tensor | None = None) -> Tensor:
        x_BTD = self.dropout(self.embedding(tokens_BT))
        distances_SD = self.dropout(self.distances)
        for layer in self.layers:
            x_BTD = layer(x_BTD, distances_SD, self.late)
        return self.head(x_BTD, labels_BT)


class TransformerXLLayer(nn.Module):
    """Attention and an MLP, each followed by a residual sum and a norm."""

    memory: Tensor

    def __init__(self, batch: int, memory: int, width: int, heads: int, hidden: int) -> None:
        super().__init__()
        self.attention = RelativeAttention(width, heads)
        self.attention_norm = nn.LayerNorm(width)
        self.mlp = MLP(width, hidden, nn.ReLU())
        self.mlp_norm = nn.LayerNorm(width)
        self.dropout = nn.Dropout(0.1)
        self.register_buffer("memory", torch.zeros(batch, memory, width))

    def forward(self, x_BTD: Tensor, distances_SD: Tensor, mask_TS: Tensor) -> Tensor:
        source_BSD = torch.cat((self.memory, x_BTD), 1)
        y_BTD = self.attention(x_BTD, source_BSD, distances_SD, mask_TS)
        self.memory.copy_(source_BSD[:, x_BTD.shape[1] :].detach())
        x_BTD = self.attention_norm(x_BTD + self.dropout(y_BTD))
        return self.mlp_norm(x_BTD + self.dropout(self.mlp(x_BTD)))


class RelativeAttention(nn.Module):
    """Attention whose scores depend on content and distance, with a bias for each."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.query = nn.Linear(width, width, bias=False)
        self.key = nn.Linear(width, width, bias=False)
        self.value = nn.Linear(width, width, bias=False)
        self.distance = nn.Linear(width, width, bias=False)
        self.output = nn.Linear(width, width, bias=False)
        self.content_bias = nn.Parameter(torch.zeros(heads, 1, width // heads))
        self.distance_bias = nn.Parameter(torch.zeros(heads, 1, width // heads))

    def split(self, x_TD: Tensor) -> Tensor:
        """Split into heads, which come before the steps."""
        return x_TD.view(*x_TD.shape[:-1], self.heads, -1).transpose(-2, -3)

    def forward(
        self, x_BTD: Tensor, source_BSD: Tensor, distances_SD: Tensor, mask_TS: Tensor
    ) -> Tensor:
        q_BHTE = self.split(self.query(x_BTD))
        k_BHSE, v_BHSE = self.split(self.key(source_BSD)), self.split(self.value(source_BSD))
        r_HSE = self.split(self.distance(distances_SD))
        content = (q_BHTE + self.content_bias) @ k_BHSE.transpose(-1, -2)
        distance = relative_shift((q_BHTE + self.distance_bias) @ r_HSE.transpose(-1, -2))
        scores_BHTS = (content + distance) * q_BHTE.shape[-1] ** -0.5
        weights_BHTS = scores_BHTS.masked_fill(mask_TS, float("-inf")).softmax(-1)
        return self.output((weights_BHTS @ v_BHSE).transpose(1, 2).flatten(2))


def relative_shift(scores_BHTS: Tensor) -> Tensor:
    """Scores by distance, farthest first, to scores by step: shift row t left by T - 1 - t."""
    batch, heads, steps, sources = scores_BHTS.shape
    padded = F.pad(scores_BHTS, (1, 0)).view(batch, heads, sources + 1, steps)
    return padded[:, :, 1:].reshape(scores_BHTS.shape)


def sinusoids(count: int, width: int) -> Tensor:
    """An encoding of the distances count - 1 to 0."""
    rates = 10000 ** -(torch.arange(0, width, 2) / width)
    angles = torch.arange(count - 1, -1, -1)[:, None] * rates
    return torch.cat((angles.sin(), angles.cos()), 1)
