"""WaveNet (van den Oord et al. 2016): stacks of dilated causal convolutions.

GO's "2-stack 18-layer" is read as 18 layers in total, 9 per stack with dilations 1 to 256, and its
4-stack 36-layer likewise; it does not give the channels. No conditioning on text or speaker.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from placewright.errors import ConfigError
from placewright.zoo.networks.layers import NetworkCall, cross_entropy, network_call, random_tokens


def build(
    *, batch: int, steps: int, stacks: int, layers: int, width: int, levels: int, training: bool
) -> NetworkCall:
    """A model of the next audio sample.

    Args:
        steps: Samples.
        layers: Layers of all stacks; dilation doubles from layer to layer of a stack.
        width: Channels of the residual and skip paths.
        levels: Quantisation levels of a sample.
    """
    if layers % stacks:
        raise ConfigError(f"wavenet has layers {layers!r}: expected a multiple of {stacks} stacks")
    if layers // stacks > 20:
        raise ConfigError(f"wavenet has layers {layers!r}: expected 20 or less in a stack")
    model = WaveNet(stacks, layers // stacks, width, levels)
    args = [random_tokens(levels, batch, steps)] * (2 if training else 1)
    return network_call(model, training, *args)


class WaveNet(nn.Module):
    def __init__(self, stacks: int, layers: int, width: int, levels: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(levels, width)
        self.stacks = nn.ModuleList(
            WaveNetStack(layers, width, is_last=stack == stacks - 1) for stack in range(stacks)
        )
        self.head = AudioHead(width, levels)

    def forward(self, samples: Tensor, labels: Tensor | None = None) -> Tensor:
        x = self.embedding(samples).transpose(1, 2)
        total = torch.zeros_like(x)
        for stack in self.stacks:
            x, skip = stack(x)
            total = total + skip
        return self.head(total, labels)


class AudioHead(nn.Module):
    """Two 1 x 1 convolutions; with labels, the loss of their logits."""

    def __init__(self, width: int, levels: int) -> None:
        super().__init__()
        self.mix = nn.Conv1d(width, width, 1)
        self.last = nn.Conv1d(width, levels, 1)

    def forward(self, x: Tensor, labels: Tensor | None) -> Tensor:
        logits = self.last(F.relu(self.mix(F.relu(x)))).transpose(1, 2)
        return logits if labels is None else cross_entropy(logits, labels)


class WaveNetStack(nn.Module):
    """Layers of doubling dilation, and the sum of their skip outputs."""

    def __init__(self, layers: int, width: int, is_last: bool) -> None:
        super().__init__()
        self.layers = nn.ModuleList(
            WaveNetLayer(width, 2**layer, is_last and layer == layers - 1)
            for layer in range(layers)
        )

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        total = torch.zeros_like(x)
        for layer in self.layers:
            x, skip = layer(x)
            total = total + skip
        return x, total


class WaveNetLayer(nn.Module):
    """A gated causal convolution; the last layer's residual output is unread."""

    def __init__(self, width: int, dilation: int, is_last: bool) -> None:
        super().__init__()
        self.dilation = dilation
        self.gates = nn.Conv1d(width, 2 * width, 2, dilation=dilation)
        self.residual = None if is_last else nn.Conv1d(width, width, 1)
        self.skip = nn.Conv1d(width, width, 1)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        filtered, gate = self.gates(F.pad(x, (self.dilation, 0))).chunk(2, 1)
        y = torch.tanh(filtered) * torch.sigmoid(gate)
        return x if self.residual is None else x + self.residual(y), self.skip(y)
