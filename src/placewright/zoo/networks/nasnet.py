"""NASNet-A (Zoph et al., CVPR 2018); the large one is the paper's 6 @ 4032.

It lacks the auxiliary head and the path dropout of the paper's training.
"""

from __future__ import annotations

from functools import partial

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from placewright.errors import ConfigError
from placewright.zoo.networks.cells import (
    CellArchitecture,
    CellGenotype,
    NASCells,
    identity,
    maximum_3,
    mean_3,
)
from placewright.zoo.networks.layers import NetworkCall, OutputHead, network_call, random_tokens


def build(
    *, batch: int, image: int, cells: int, channels: int, stem: int, classes: int, training: bool
) -> NetworkCall:
    """An image classifier.

    Args:
        image: Pixels on a side.
        cells: Normal cells in each of the three groups.
        channels: Channels of a state in the first group; the last output has 24 times as many.
        stem: Channels of the first convolution.
    """
    if channels % 4:
        raise ConfigError(f"nasnet-a has channels {channels!r}: expected a multiple of 4")
    model = NASNet(cells, channels, stem, classes)
    args = [torch.randn(batch, 3, image, image)]
    args += [random_tokens(classes, batch)] if training else []
    return network_call(model, training, *args)


class NASNet(nn.Module):
    def __init__(self, cells: int, channels: int, stem: int, classes: int) -> None:
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, stem, 3, stride=2, bias=False), nn.BatchNorm2d(stem))
        self.cells = NASCells(ARCHITECTURE, stem, (channels // 4, channels // 2), channels, cells)
        self.dropout = nn.Dropout(0.5)
        self.head = OutputHead(self.cells.out_channels, classes)

    def forward(self, images: Tensor, labels: Tensor | None = None) -> Tensor:
        x = F.relu(self.cells(self.stem(images)))
        return self.head(self.dropout(x.mean((2, 3))), labels)


class SeparableConvolution(nn.Sequential):
    """ReLU, depthwise and pointwise convolution, twice; only the first has the stride."""

    def __init__(self, kernel: int, inputs: int, channels: int, stride: int) -> None:
        super().__init__()
        for count, step in ((inputs, stride), (channels, 1)):
            self.append(nn.ReLU())
            self.append(
                nn.Conv2d(count, count, kernel, step, kernel // 2, groups=count, bias=False)
            )
            self.append(nn.Conv2d(count, channels, 1, bias=False))
            self.append(nn.BatchNorm2d(channels))


ARCHITECTURE = CellArchitecture(
    normal=CellGenotype(
        (
            (("separable_5", 0), ("separable_3", 1)),
            (("separable_5", 1), ("separable_3", 1)),
            (("mean_3", 0), ("keep", 1)),
            (("mean_3", 1), ("mean_3", 1)),
            (("separable_3", 0), ("keep", 0)),
        ),
        concat_states=(1, 2, 3, 4, 5, 6),
    ),
    reduction=CellGenotype(
        (
            (("separable_5", 0), ("separable_7", 1)),
            (("maximum_3", 0), ("separable_7", 1)),
            (("mean_3", 0), ("separable_5", 1)),
            (("mean_3", 2), ("keep", 3)),
            (("separable_3", 2), ("maximum_3", 0)),
        ),
        concat_states=(3, 4, 5, 6),
    ),
    operations={
        "keep": identity,
        "mean_3": mean_3,
        "maximum_3": maximum_3,
        "separable_3": partial(SeparableConvolution, 3),
        "separable_5": partial(SeparableConvolution, 5),
        "separable_7": partial(SeparableConvolution, 7),
    },
    raw_first_state=True,
    reuses_older=True,
)
