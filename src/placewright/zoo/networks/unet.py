"""The U-Net of a latent diffusion model (Rombach et al., CVPR 2022).

It has the sizes of Stable Diffusion 1.5.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from placewright.errors import ConfigError
from placewright.zoo.networks.layers import (
    MultiHeadAttention,
    NetworkCall,
    default_dtype,
    network_call,
    random_tokens,
)

LEVELS = (1, 2, 4, 4)  # factors of the channels; all levels but the last attend to the text
NORM_GROUPS = 32  # groups of a group norm
NOISE_LEVELS = 1000  # levels of noise


def build(
    *,
    batch: int,
    image: int,
    latent: int,
    channels: int,
    heads: int,
    steps: int,
    text: int,
    training: bool,
    dtype: str,
) -> NetworkCall:
    """A model of the noise in a latent image, given the noise level and a text.

    Args:
        image: Latent pixels on a side.
        latent: Channels of the latent image.
        channels: Channels of the first level.
        steps: Steps of the text.
        text: Width of the text.
    """
    if image % 8:
        raise ConfigError(f"unet has image {image!r}: expected a multiple of 8")
    if channels % math.lcm(NORM_GROUPS, heads):
        raise ConfigError(
            f"unet has channels {channels!r}: expected a multiple of {math.lcm(NORM_GROUPS, heads)}"
        )
    with default_dtype(dtype):
        model = UNet(latent, channels, heads, text)
        noisy = torch.randn(batch, latent, image, image)
        args = [noisy, random_tokens(NOISE_LEVELS, batch), torch.randn(batch, steps, text)]
        args += [torch.randn_like(noisy)] if training else []
    return network_call(model, training, *args)


class UNet(nn.Module):
    rates: Tensor

    def __init__(self, latent: int, channels: int, heads: int, text: int) -> None:
        super().__init__()
        time = 4 * channels
        half = torch.arange(channels // 2, dtype=torch.float32) / (channels // 2)
        self.register_buffer("rates", 10000**-half, persistent=False)
        self.time = nn.Sequential(nn.Linear(channels, time), nn.SiLU(), nn.Linear(time, time))

        def stage(inputs: int, out: int, level: int, grows: bool = False) -> UNetStage:
            return UNetStage(
                inputs, out, time, heads, text if level < len(LEVELS) - 1 else 0, grows
            )

        width = channels
        skips = [channels]
        self.down = nn.ModuleList([nn.Conv2d(latent, channels, 3, padding=1)])
        for level, multiplier in enumerate(LEVELS):
            if level:
                self.down.append(nn.Conv2d(width, width, 3, stride=2, padding=1))
                skips.append(width)
            for _ in range(2):
                self.down.append(stage(width, multiplier * channels, level))
                width = multiplier * channels
                skips.append(width)
        self.middle = nn.ModuleList([stage(width, width, 0), stage(width, width, len(LEVELS))])
        self.up = nn.ModuleList()
        for level, multiplier in reversed(list(enumerate(LEVELS))):
            for index in range(3):
                inputs = width + skips.pop()
                width = multiplier * channels
                self.up.append(stage(inputs, width, level, grows=bool(level) and index == 2))
        self.norm = nn.GroupNorm(NORM_GROUPS, width)
        self.head = nn.Conv2d(width, latent, 3, padding=1)

    def forward(
        self, noisy: Tensor, level: Tensor, text: Tensor, noise: Tensor | None = None
    ) -> Tensor:
        angles = level[:, None] * self.rates
        encoding = torch.cat((angles.cos(), angles.sin()), 1).to(noisy.dtype)
        time = F.silu(self.time(encoding))
        x, skips = noisy, []
        for stage in self.down:
            x = stage(x, time, text) if isinstance(stage, UNetStage) else stage(x)
            skips.append(x)
        for stage in self.middle:
            x = stage(x, time, text)
        for stage in self.up:
            x = stage(torch.cat((x, skips.pop()), 1), time, text)
        prediction = self.head(F.silu(self.norm(x)))
        return prediction if noise is None else F.mse_loss(prediction, noise)


class UNetStage(nn.Module):
    """A residual block, optional attention to the text, and optional upsampling."""

    def __init__(
        self, inputs: int, out: int, time: int, heads: int, text: int, upsamples: bool
    ) -> None:
        super().__init__()
        self.residual = ResidualBlock(inputs, out, time)
        self.transformer = SpatialTransformer(out, heads, text) if text else None
        self.grow = nn.Conv2d(out, out, 3, padding=1) if upsamples else None

    def forward(self, x: Tensor, time: Tensor, text: Tensor) -> Tensor:
        x = self.residual(x, time)
        if self.transformer is not None:
            x = self.transformer(x, text)
        return x if self.grow is None else self.grow(F.interpolate(x, scale_factor=2.0))


class ResidualBlock(nn.Module):
    """Two pre-norm convolutions, with the time embedding added between them."""

    def __init__(self, inputs: int, out: int, time: int) -> None:
        super().__init__()
        self.first_norm = nn.GroupNorm(NORM_GROUPS, inputs)
        self.first = nn.Conv2d(inputs, out, 3, padding=1)
        self.time = nn.Linear(time, out)
        self.second_norm = nn.GroupNorm(NORM_GROUPS, out)
        self.second = nn.Conv2d(out, out, 3, padding=1)
        self.shortcut = nn.Identity() if inputs == out else nn.Conv2d(inputs, out, 1)

    def forward(self, x: Tensor, time: Tensor) -> Tensor:
        y = self.first(F.silu(self.first_norm(x))) + self.time(time)[:, :, None, None]
        return self.shortcut(x) + self.second(F.silu(self.second_norm(y)))


class SpatialTransformer(nn.Module):
    """Self-attention of the pixels, cross-attention to the text, and a gated MLP."""

    def __init__(self, width: int, heads: int, text: int) -> None:
        super().__init__()
        self.norm = nn.GroupNorm(NORM_GROUPS, width, eps=1e-6)
        self.enter = nn.Conv2d(width, width, 1)
        self.pixels_norm = nn.LayerNorm(width)
        self.pixels = MultiHeadAttention(width, heads, bias=False, output_bias=True)
        self.text_norm = nn.LayerNorm(width)
        self.text = MultiHeadAttention(width, heads, source=text, bias=False, output_bias=True)
        self.mlp_norm = nn.LayerNorm(width)
        self.up = nn.Linear(width, 8 * width)
        self.down = nn.Linear(4 * width, width)
        self.leave = nn.Conv2d(width, width, 1)

    def forward(self, x: Tensor, text: Tensor) -> Tensor:
        y = self.enter(self.norm(x)).flatten(2).transpose(1, 2)
        y = y + self.pixels(self.pixels_norm(y))
        y = y + self.text(self.text_norm(y), text)
        up, gate = self.up(self.mlp_norm(y)).chunk(2, -1)
        y = y + self.down(up * F.gelu(gate))
        return x + self.leave(y.transpose(1, 2).unflatten(2, x.shape[2:]))
