"""AmoebaNet-D (Real et al., AAAI 2019), with cells and filters counted as in GPipe.

GPipe (Huang et al., NeurIPS 2019) calls 18 normal cells of 208 filters AmoebaNet-D (18, 208).
"""

from __future__ import annotations

from functools import partial

import torch
from torch import Tensor, nn

from placewright.errors import ConfigError
from placewright.zoo.networks.cells import (
    CellArchitecture,
    CellGenotype,
    NASCells,
    identity,
    maximum_2,
    maximum_3,
    mean_3,
)
from placewright.zoo.networks.layers import (
    Convolution,
    NetworkCall,
    OutputHead,
    network_call,
    random_tokens,
)


def build(
    *, batch: int, image: int, cells: int, filters: int, classes: int, training: bool
) -> NetworkCall:
    """An image classifier.

    Args:
        image: Pixels on a side.
        cells: Total normal cells, in three groups of equal size.
        filters: Channels of a state in the first group.
    """
    if cells % 3:
        raise ConfigError(f"amoebanet-d has cells {cells!r}: expected a multiple of 3")
    if filters % 8:
        raise ConfigError(f"amoebanet-d has filters {filters!r}: expected a multiple of 8")
    model = AmoebaNet(cells // 3, filters, classes)
    args = [torch.randn(batch, 3, image, image)]
    args += [random_tokens(classes, batch)] if training else []
    return network_call(model, training, *args)


class AmoebaNet(nn.Module):
    def __init__(self, cells: int, filters: int, classes: int) -> None:
        super().__init__()
        stem = filters // 4
        self.stem = Convolution(3, stem, 3, stride=2, padding=1, relu="never")
        self.cells = NASCells(ARCHITECTURE, stem, (filters // 2, filters), filters, cells)
        self.head = OutputHead(self.cells.out_channels, classes)

    def forward(self, images: Tensor, labels: Tensor | None = None) -> Tensor:
        return self.head(self.cells(self.stem(images)).mean((2, 3)), labels)


class CellBottleneck(nn.Sequential):
    """Convolutions between a 1 x 1 to a quarter of the channels and a 1 x 1 back to all."""

    def __init__(
        self, kernels: tuple[tuple[int, int], ...], inputs: int, channels: int, stride: int
    ) -> None:
        inner = channels // 4
        super().__init__(Convolution(inputs, inner, 1, relu="before"))
        for height, width in kernels:
            strides = (stride if height > 1 else 1, stride if width > 1 else 1)
            padding = (height // 2, width // 2)
            self.append(Convolution(inner, inner, (height, width), strides, padding, relu="before"))
        self.append(Convolution(inner, channels, 1, relu="before"))


def convolution_1(inputs: int, channels: int, stride: int) -> nn.Module:
    return Convolution(inputs, channels, 1, stride, relu="before")


ARCHITECTURE = CellArchitecture(
    normal=CellGenotype(
        (
            (("convolution_1", 1), ("maximum_3", 1)),
            (("keep", 1), ("convolution_7", 0)),
            (("convolution_1", 0), ("convolution_7", 0)),
            (("maximum_3", 2), ("keep", 2)),
            (("mean_3", 1), ("convolution_1", 5)),
        ),
        concat_states=(0, 3, 4, 6),  # as in the authors' code; the paper says 4, 5, 6
    ),
    reduction=CellGenotype(
        (
            (("maximum_2", 0), ("maximum_3", 0)),
            (("keep", 2), ("convolution_3", 1)),
            (("convolution_7", 2), ("maximum_3", 2)),
            (("keep", 3), ("maximum_2", 1)),
            (("mean_3", 2), ("convolution_1", 3)),
        ),
        concat_states=(4, 5, 6),
    ),
    operations={
        "keep": identity,
        "mean_3": mean_3,
        "maximum_2": maximum_2,
        "maximum_3": maximum_3,
        "convolution_1": convolution_1,
        "convolution_3": partial(CellBottleneck, ((3, 3),)),
        "convolution_7": partial(CellBottleneck, ((1, 7), (7, 1))),
    },
)
