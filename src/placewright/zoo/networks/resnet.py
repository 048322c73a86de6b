"""A residual network of bottleneck blocks (He et al., CVPR 2016).

This is the common variant (v1.5): the stride is in the 3 x 3 convolution, not in the first 1 x 1.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from placewright.errors import ConfigError
from placewright.zoo.networks.layers import (
    Convolution,
    NetworkCall,
    OutputHead,
    network_call,
    random_tokens,
)

BLOCKS = {50: (3, 4, 6, 3), 101: (3, 4, 23, 3), 152: (3, 8, 36, 3), 14: (1, 1, 1, 1)}
"""Blocks per group, by the number of layers; 14 is for tests."""


def build(
    *, batch: int, image: int, layers: int, channels: int, classes: int, training: bool
) -> NetworkCall:
    """An image classifier.

    Args:
        image: Pixels on a side.
        channels: Channels of the first convolution; the others scale with it.
    """
    if layers not in BLOCKS:
        known_layers = ", ".join(map(str, sorted(BLOCKS)))
        raise ConfigError(f"resnet has layers {layers!r}: expected one of {known_layers}")
    model = ResNet(BLOCKS[layers], channels, classes)
    args = [torch.randn(batch, 3, image, image)]
    args += [random_tokens(classes, batch)] if training else []
    return network_call(model, training, *args)


class ResNet(nn.Module):
    def __init__(self, groups: tuple[int, ...], channels: int, classes: int) -> None:
        super().__init__()
        self.stem = nn.Sequential(
            Convolution(3, channels, 7, stride=2, padding=3), nn.MaxPool2d(3, stride=2, padding=1)
        )
        self.blocks = nn.ModuleList()
        width = channels
        for group, blocks in enumerate(groups):
            for block in range(blocks):
                stride = 2 if group and not block else 1
                self.blocks.append(ResNetBottleneck(width, channels << group, stride))
                width = 4 * channels << group
        self.head = OutputHead(width, classes)

    def forward(self, images: Tensor, labels: Tensor | None = None) -> Tensor:
        x = self.stem(images)
        for block in self.blocks:
            x = block(x)
        return self.head(x.mean((2, 3)), labels)


class ResNetBottleneck(nn.Module):
    """1 x 1, 3 x 3 and 1 x 1 convolutions, and the residual sum."""

    def __init__(self, channels: int, inner: int, stride: int) -> None:
        super().__init__()
        self.reduce = Convolution(channels, inner, 1)
        self.middle = Convolution(inner, inner, 3, stride, padding=1)
        self.expand = Convolution(inner, 4 * inner, 1, relu="never")
        self.shortcut: nn.Module = nn.Identity()
        if stride > 1 or channels != 4 * inner:
            self.shortcut = Convolution(channels, 4 * inner, 1, stride, relu="never")

    def forward(self, x: Tensor) -> Tensor:
        return F.relu(self.expand(self.middle(self.reduce(x))) + self.shortcut(x))
