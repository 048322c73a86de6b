"""Layers that several networks share.

Shapes at the end of a name: B batch, T steps, S steps attended to, D width, H heads, E width of a
head, V vocabulary.
"""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from placewright.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Iterator

NetworkCall = tuple[nn.Module, tuple[Tensor, ...], dict[str, Tensor]]
"""A network and its arguments."""


def network_call(model: nn.Module, training: bool, *args: Tensor, **kwargs: Tensor) -> NetworkCall:
    """The network, in training or evaluation mode, and its arguments."""
    return model.train(training), args, kwargs


@contextmanager
def default_dtype(dtype: str) -> Iterator[None]:
    """A context in which new tensors have this dtype; a fake weight cannot be cast later."""
    previous = torch.get_default_dtype()
    torch.set_default_dtype(getattr(torch, dtype))
    try:
        yield
    finally:
        torch.set_default_dtype(previous)


def check_unrolled(name: str, layers: int, steps: int) -> None:
    """Raise ConfigError if layers and steps make too many cells."""
    if layers * steps > 10_000:
        raise ConfigError(
            f"{name} has {layers} layers and steps {steps!r}: expected 10,000 cells or less"
        )


def random_tokens(vocabulary: int, *shape: int) -> Tensor:
    """Random token ids of a vocabulary."""
    return torch.randint(vocabulary, shape)


def cross_entropy(logits: Tensor, targets: Tensor) -> Tensor:
    """The mean cross entropy of logits whose last dimension is the vocabulary or the classes."""
    return F.cross_entropy(logits.flatten(0, -2), targets.flatten())


class OutputHead(nn.Linear):
    """The output layer; with labels, the loss of its logits."""

    def forward(self, x: Tensor, labels: Tensor | None = None) -> Tensor:
        logits = super().forward(x)
        return logits if labels is None else cross_entropy(logits, labels)


class SmallEmbedding(nn.Embedding):
    """An embedding with the initialisation of BERT and GPT-2.

    With PyTorch's default, the logits of a tied head are so far apart that many of their
    exponentials are subnormal, which some processors multiply many times slower.
    """

    def reset_parameters(self) -> None:
        nn.init.normal_(self.weight, std=0.02)


class TiedHead(nn.Module):
    """The output layer with the weight of the embedding; with labels, the loss of its logits."""

    def forward(self, x: Tensor, weight: Tensor, labels: Tensor | None = None) -> Tensor:
        logits = F.linear(x, weight)
        return logits if labels is None else cross_entropy(logits, labels)


class Convolution(nn.Module):
    """A convolution without bias and its batch norm; a ReLU is after, before or left out."""

    def __init__(
        self,
        channels: int,
        out: int,
        kernel: int | tuple[int, int],
        stride: int | tuple[int, int] = 1,
        padding: int | tuple[int, int] = 0,
        relu: str = "after",
        epsilon: float = 1e-5,
    ) -> None:
        super().__init__()
        self.relu = relu
        self.convolution = nn.Conv2d(channels, out, kernel, stride, padding, bias=False)
        self.norm = nn.BatchNorm2d(out, eps=epsilon)

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(x) if self.relu == "before" else x
        x = self.norm(self.convolution(x))
        return F.relu(x) if self.relu == "after" else x


class LSTMCell(nn.Module):
    """One step of an LSTM, op by op, with one weight for input and state."""

    def __init__(self, inputs: int, width: int) -> None:
        super().__init__()
        self.gates = nn.Linear(inputs + width, 4 * width)

    def forward(self, x_BD: Tensor, state: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
        h_BD, c_BD = state
        gates = self.gates(torch.cat((x_BD, h_BD), 1))
        input_gate, forget_gate, candidate, output_gate = gates.chunk(4, dim=1)
        c_BD = torch.sigmoid(forget_gate) * c_BD + torch.sigmoid(input_gate) * torch.tanh(candidate)
        return torch.sigmoid(output_gate) * torch.tanh(c_BD), c_BD


class AttentionProjections(nn.Module):
    """The four projections of multi-head attention.

    Args:
        width: Width of input and output.
        head: Width of a head.
        groups: Heads of keys and values; each serves an equal number of query heads.
        source: Width of the sequence attended to.
        bias: Whether the projections have a bias; `output_bias` is for the last one.
        scale: Factor of the scores; by default one over the root of the head's width.
    """

    def __init__(
        self,
        width: int,
        heads: int,
        head: int = 0,
        groups: int = 0,
        source: int = 0,
        bias: bool = True,
        output_bias: bool = False,
        scale: float | None = None,
    ) -> None:
        super().__init__()
        self.head, self.scale = head or width // heads, scale
        groups, source = groups or heads, source or width
        self.is_grouped = groups < heads
        self.query = nn.Linear(width, heads * self.head, bias)
        self.key = nn.Linear(source, groups * self.head, bias)
        self.value = nn.Linear(source, groups * self.head, bias)
        self.output = nn.Linear(heads * self.head, width, bias or output_bias)

    def split(self, x_BTD: Tensor) -> Tensor:
        """Split into heads: B H T E."""
        return x_BTD.view(*x_BTD.shape[:2], -1, self.head).transpose(1, 2)

    def attend(
        self,
        q_BHTE: Tensor,
        k_BHSE: Tensor,
        v_BHSE: Tensor,
        causal: bool = False,
        mask: Tensor | None = None,
    ) -> Tensor:
        """Attention, with the heads concatenated, and the output projection."""
        y_BHTE = F.scaled_dot_product_attention(
            q_BHTE,
            k_BHSE,
            v_BHSE,
            mask,
            is_causal=causal,
            scale=self.scale,
            enable_gqa=self.is_grouped,
        )
        return self.output(y_BHTE.transpose(1, 2).flatten(2))


class MultiHeadAttention(AttentionProjections):
    """Self-attention, or cross-attention to another sequence."""

    def forward(
        self,
        x_BTD: Tensor,
        source_BSD: Tensor | None = None,
        causal: bool = False,
        mask: Tensor | None = None,
    ) -> Tensor:
        source = x_BTD if source_BSD is None else source_BSD
        q, k, v = self.query(x_BTD), self.key(source), self.value(source)
        return self.attend(self.split(q), self.split(k), self.split(v), causal, mask)


class MLP(nn.Module):
    """Two products with an activation between them."""

    def __init__(self, width: int, hidden: int, activation: nn.Module, bias: bool = True) -> None:
        super().__init__()
        self.up = nn.Linear(width, hidden, bias)
        self.activation = activation
        self.down = nn.Linear(hidden, width, bias)

    def forward(self, x: Tensor) -> Tensor:
        return self.down(self.activation(self.up(x)))


class GatedMLP(nn.Module):
    """SwiGLU: a product times the activation of another one, and a product back."""

    def __init__(self, width: int, hidden: int) -> None:
        super().__init__()
        self.gate = nn.Linear(width, hidden, bias=False)
        self.up = nn.Linear(width, hidden, bias=False)
        self.down = nn.Linear(hidden, width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.down(F.silu(self.gate(x)) * self.up(x))
