"""Inception-V3 (Szegedy et al., CVPR 2016), with its auxiliary head when trained.

Channels are written as in the paper, where the first convolution has 32; `unit` scales all of them.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from placewright.errors import ConfigError
from placewright.zoo.networks.layers import (
    Convolution,
    NetworkCall,
    OutputHead,
    network_call,
    random_tokens,
)

KERNEL_1X7, KERNEL_7X1 = (1, 7), (7, 1)  # the two halves of a 7 x 7 convolution
AUXILIARY_WEIGHT = 0.4  # of the auxiliary head's loss, as in the authors' training code


def build(*, batch: int, image: int, channels: int, classes: int, training: bool) -> NetworkCall:
    """An image classifier.

    Args:
        image: Pixels on a side.
        channels: Channels of the first convolution; the others scale with it.
    """
    min_image = 299 if training else 75  # the auxiliary head needs a grid of 17 x 17
    if image < min_image:
        raise ConfigError(f"inception-v3 has image {image!r}: expected {min_image} pixels or more")
    if training and batch < 2:
        raise ConfigError("inception-v3 has batch 1: its norms train on 2 images or more")
    if channels % 2:
        raise ConfigError(f"inception-v3 has channels {channels!r}: expected an even number")
    model = Inception(channels, classes, auxiliary=training)
    args = [torch.randn(batch, 3, image, image)]
    args += [random_tokens(classes, batch)] if training else []
    return network_call(model, training, *args)


class Inception(nn.Module):
    def __init__(self, unit: int, classes: int, auxiliary: bool) -> None:
        super().__init__()
        self.stem = nn.Sequential(
            ConvolutionChain(unit, 3, (32, 3, 2), (32, 3), padded=False),
            ConvolutionChain(unit, 32, (64, 3)),
            nn.MaxPool2d(3, stride=2),
            ConvolutionChain(unit, 64, (80, 1), (192, 3), padded=False),
            nn.MaxPool2d(3, stride=2),
        )
        self.cells = nn.ModuleList(
            [
                *(grid_35(unit, *sizes) for sizes in ((192, 32), (256, 64), (288, 64))),
                reduction_35(unit),
                *(grid_17(unit, inner) for inner in (128, 160, 160, 192)),
                reduction_17(unit),
                *(grid_8(unit, inputs) for inputs in (1280, 2048)),
            ]
        )
        self.dropout = nn.Dropout(0.5)
        self.head = OutputHead(scaled(unit, 2048), classes)
        self.auxiliary = AuxiliaryHead(unit, classes) if auxiliary else None

    def forward(self, images: Tensor, labels: Tensor | None = None) -> Tensor:
        x = self.stem(images)
        grids = []
        for cell in self.cells:
            x = cell(x)
            grids.append(x)
        output = self.head(self.dropout(x.mean((2, 3))), labels)
        return output if self.auxiliary is None else output + self.auxiliary(grids[7], labels)


class AuxiliaryHead(nn.Module):
    """A second classifier, on the last grid of 17 x 17."""

    def __init__(self, unit: int, classes: int) -> None:
        super().__init__()
        self.pool = nn.AvgPool2d(5, stride=3)
        self.convolutions = ConvolutionChain(unit, 768, (128, 1), (768, 5), padded=False)
        self.head = OutputHead(scaled(unit, 768), classes)

    def forward(self, x: Tensor, labels: Tensor | None) -> Tensor:
        return AUXILIARY_WEIGHT * self.head(self.convolutions(self.pool(x)).mean((2, 3)), labels)


class ConcatBranches(nn.Module):
    """Branches with the same input, whose outputs are concatenated by channels."""

    def __init__(self, *branches: nn.Module) -> None:
        super().__init__()
        self.branches = nn.ModuleList(branches)

    def forward(self, x: Tensor) -> Tensor:
        return torch.cat([branch(x) for branch in self.branches], 1)


class ConvolutionChain(nn.Sequential):
    """A chain of convolutions: channels, kernel and, if not 1, stride.

    They keep the grid size unless they have a stride or no padding.
    """

    def __init__(
        self,
        unit: int,
        inputs: int,
        *layers: tuple[int, int | tuple[int, int]] | tuple[int, int, int],
        padded: bool = True,
    ) -> None:
        super().__init__()
        inputs = inputs if inputs == 3 else scaled(unit, inputs)
        for out, kernel, *strides in layers:
            height, width = kernel if isinstance(kernel, tuple) else (kernel, kernel)
            stride = strides[0] if strides else 1
            padding = (height // 2, width // 2) if padded and stride == 1 else (0, 0)
            out = scaled(unit, out)
            self.append(Convolution(inputs, out, (height, width), stride, padding, epsilon=1e-3))
            inputs = out


def scaled(unit: int, channels: int) -> int:
    return channels * unit // 32


def mean_pool() -> nn.Module:
    return nn.AvgPool2d(3, stride=1, padding=1)


def grid_35(unit: int, inputs: int, pooled: int) -> ConcatBranches:
    return ConcatBranches(
        ConvolutionChain(unit, inputs, (64, 1)),
        ConvolutionChain(unit, inputs, (48, 1), (64, 5)),
        ConvolutionChain(unit, inputs, (64, 1), (96, 3), (96, 3)),
        nn.Sequential(mean_pool(), ConvolutionChain(unit, inputs, (pooled, 1))),
    )


def reduction_35(unit: int) -> ConcatBranches:
    return ConcatBranches(
        ConvolutionChain(unit, 288, (384, 3, 2)),
        ConvolutionChain(unit, 288, (64, 1), (96, 3), (96, 3, 2)),
        nn.MaxPool2d(3, stride=2),
    )


def grid_17(unit: int, inner: int) -> ConcatBranches:
    double_7x7 = (
        (inner, 1),
        (inner, KERNEL_7X1),
        (inner, KERNEL_1X7),
        (inner, KERNEL_7X1),
        (192, KERNEL_1X7),
    )
    return ConcatBranches(
        ConvolutionChain(unit, 768, (192, 1)),
        ConvolutionChain(unit, 768, (inner, 1), (inner, KERNEL_1X7), (192, KERNEL_7X1)),
        ConvolutionChain(unit, 768, *double_7x7),
        nn.Sequential(mean_pool(), ConvolutionChain(unit, 768, (192, 1))),
    )


def reduction_17(unit: int) -> ConcatBranches:
    return ConcatBranches(
        ConvolutionChain(unit, 768, (192, 1), (320, 3, 2)),
        ConvolutionChain(unit, 768, (192, 1), (192, KERNEL_1X7), (192, KERNEL_7X1), (192, 3, 2)),
        nn.MaxPool2d(3, stride=2),
    )


def grid_8(unit: int, inputs: int) -> ConcatBranches:
    def fork() -> ConcatBranches:
        return ConcatBranches(
            ConvolutionChain(unit, 384, (384, (1, 3))), ConvolutionChain(unit, 384, (384, (3, 1)))
        )

    return ConcatBranches(
        ConvolutionChain(unit, inputs, (320, 1)),
        nn.Sequential(ConvolutionChain(unit, inputs, (384, 1)), fork()),
        nn.Sequential(ConvolutionChain(unit, inputs, (448, 1), (384, 3)), fork()),
        nn.Sequential(mean_pool(), ConvolutionChain(unit, inputs, (192, 1))),
    )
