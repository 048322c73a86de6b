"""A decoder like Llama 3 (Grattafiori et al. 2024), for prefill, decode or training.

Prefill computes all steps, stores their keys and values in the caches, and returns the logits of
the last step. Decode computes one step that attends to `context` steps, itself included: it writes
one row of each cache and reads all of it. The caches are buffers; in training there are none.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from placewright.errors import ConfigError
from placewright.zoo.networks.layers import (
    AttentionProjections,
    GatedMLP,
    NetworkCall,
    OutputHead,
    default_dtype,
    network_call,
    random_tokens,
)

if TYPE_CHECKING:
    from collections.abc import Callable


def build(
    *,
    batch: int,
    context: int,
    mode: str,
    layers: int,
    width: int,
    heads: int,
    groups: int,
    hidden: int,
    vocabulary: int,
    training: bool,
    dtype: str,
) -> NetworkCall:
    """A language model.

    Args:
        context: Steps that the last one attends to, itself included.
        mode: `prefill` or `decode`; in training it does not matter.
        groups: Heads of keys and values.
        hidden: Width of the MLP's inner layer.
    """
    check_heads("llama", width, heads, groups)
    caches = 0 if training else batch
    with default_dtype(dtype):
        model = Decoder(
            caches,
            context,
            layers,
            width,
            heads,
            groups,
            vocabulary,
            theta=500_000.0,
            make_mlp=lambda: GatedMLP(width, hidden),
        )
    return decoder_call(model, batch, context, mode, vocabulary, training)


def check_heads(name: str, width: int, heads: int, groups: int) -> None:
    """Raise ConfigError unless heads divide the width and groups divide the heads."""
    if width % (2 * heads):
        raise ConfigError(
            f"{name} has width {width!r}: expected a multiple of twice its {heads} heads"
        )
    if heads % groups:
        raise ConfigError(f"{name} has heads {heads!r}: expected a multiple of {groups} groups")


def decoder_call(
    model: nn.Module,
    batch: int,
    context: int,
    mode: str,
    vocabulary: int,
    training: bool,
) -> NetworkCall:
    """The decoder and its arguments."""
    if training or mode == "prefill":
        tokens = random_tokens(vocabulary, batch, context)
        kwargs = {"labels": random_tokens(vocabulary, batch, context)} if training else {}
    else:
        tokens, kwargs = (
            random_tokens(vocabulary, batch, 1),
            {"position": torch.full((1,), context - 1)},
        )
    return network_call(model, training, tokens, **kwargs)


class Decoder(nn.Module):
    """Blocks of attention and of the module that `feed` builds.

    Args:
        batch: Sequences in the caches; 0 for no caches.
        theta: Base of the rotary frequencies.
    """

    cosines: Tensor
    sines: Tensor

    def __init__(
        self,
        batch: int,
        context: int,
        layers: int,
        width: int,
        heads: int,
        groups: int,
        vocabulary: int,
        theta: float,
        make_mlp: Callable[[], nn.Module],
    ) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, width)
        self.blocks = nn.ModuleList(
            LlamaBlock(width, CachedAttention(width, heads, groups, batch, context), make_mlp())
            for _ in range(layers)
        )
        self.norm = nn.RMSNorm(width, 1e-5)
        self.head = OutputHead(width, vocabulary, bias=False)
        angles = rotary_angles(context, width // heads, theta)
        dtype = self.norm.weight.dtype
        self.register_buffer("cosines", angles.cos().to(dtype), persistent=False)
        self.register_buffer("sines", angles.sin().to(dtype), persistent=False)

    def forward(
        self, tokens: Tensor, position: Tensor | None = None, labels: Tensor | None = None
    ) -> Tensor:
        x = self.embedding(tokens)
        rotary = (self.cosines, self.sines)
        if position is not None:
            rotary = (self.cosines[position], self.sines[position])
        for block in self.blocks:
            x = block(x, rotary, position)
        return self.head(self.norm(x if labels is not None else x[:, -1]), labels)


class LlamaBlock(nn.Module):
    """Pre-norm attention and MLP, each with a residual sum."""

    def __init__(self, width: int, attention: nn.Module, feed: nn.Module) -> None:
        super().__init__()
        self.attention_norm = nn.RMSNorm(width, 1e-5)
        self.attention = attention
        self.feed_norm = nn.RMSNorm(width, 1e-5)
        self.feed = feed

    def forward(self, x: Tensor, rotary: tuple[Tensor, Tensor], position: Tensor | None) -> Tensor:
        x = x + self.attention(self.attention_norm(x), rotary, position)
        return x + self.feed(self.feed_norm(x))


class CachedAttention(AttentionProjections):
    """Attention with rotary position embedding and a KV cache."""

    keys: Tensor
    values: Tensor

    def __init__(self, width: int, heads: int, groups: int, batch: int, context: int) -> None:
        super().__init__(width, heads, groups=groups, bias=False)
        self.cached = batch > 0
        if self.cached:
            shape = (batch, groups, context, width // heads)
            self.register_buffer("keys", torch.zeros(shape))
            self.register_buffer("values", torch.zeros(shape))

    def forward(self, x: Tensor, rotary: tuple[Tensor, Tensor], position: Tensor | None) -> Tensor:
        q, k, v = (self.split(projection(x)) for projection in (self.query, self.key, self.value))
        q, k = apply_rotary(q, *rotary), apply_rotary(k, *rotary)
        if position is not None:
            self.keys.index_copy_(2, position, k)
            self.values.index_copy_(2, position, v)
            return self.attend(q, self.keys, self.values)
        if self.cached:
            self.keys.copy_(k)
            self.values.copy_(v)
        return self.attend(q, k, v, causal=True)


def rotary_angles(count: int, head: int, theta: float) -> Tensor:
    """The rotary angle of each position and element; 16 bits would be too coarse."""
    rates = theta ** -(torch.arange(0, head, 2, dtype=torch.float32) / head)
    return (torch.arange(count)[:, None] * rates).repeat(1, 2)


def apply_rotary(x: Tensor, cosines: Tensor, sines: Tensor) -> Tensor:
    """Rotate each pair of elements, one of each half, by the angle of its position."""
    left, right = x.chunk(2, -1)
    return x * cosines + torch.cat((-right, left), -1) * sines
