"""Networks larger than a GPU's limit, built from their sizes with weights seeded by name.

A weight is initialised on its device, in its own dtype, the same in every process; so that all
strategies can be compared, and no network is ever whole in float32.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from placewright.zoo.networks import NETWORKS

DeviceOf = Callable[[str], torch.device]
"""The device of the parameter or buffer of that name."""


@dataclass(frozen=True)
class Case:
    """One network and one workload.

    Args:
        sizes: Arguments of the network.
        small: The same for a quick run.
    """

    model: str
    work: str
    sizes: dict[str, Any]
    small: dict[str, Any]

    @property
    def name(self) -> str:
        return f"{self.model}/{self.work}"


def cases() -> dict[str, Case]:
    """Every network and workload, by name."""
    listed = []
    for tokens in (1, 512, 4096):
        small = {"blocks": 6, "width": 64, "hidden": 128, "heads": 4, "tokens": min(tokens, 16)}
        sizes = {"blocks": 16, "width": 4096, "hidden": 14336, "heads": 32, "tokens": tokens}
        listed.append(Case("blocks", f"{tokens} tokens", sizes, small))
    tiny = {"size": "test", "layers": 6}
    for mode in ("prefill", "decode"):
        listed.append(Case("llama-8b", mode, {"mode": mode}, tiny | {"mode": mode}))
        listed.append(Case("moe", mode, {"mode": mode, "layers": 8}, tiny | {"mode": mode}))
        plain = {"batch": 1, "training": False, "steps": 1024 if mode == "prefill" else 1}
        sizes = plain | {"dtype": "bfloat16"}
        listed.append(
            Case("gpt2-xl", mode, sizes, tiny | plain | {"steps": min(plain["steps"], 6)})
        )
    return {case.name: case for case in listed}


class Block(nn.Module):
    """Attention and a perceptron, each of the normed input, with residual connections."""

    def __init__(self, width: int, hidden: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm, self.feed_norm = nn.LayerNorm(width), nn.LayerNorm(width)
        self.query, self.key, self.value, self.output = (
            nn.Linear(width, width, bias=False) for _ in range(4)
        )
        self.up = nn.Linear(width, hidden, bias=False)
        self.down = nn.Linear(hidden, width, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.norm(x)
        parts = [
            each(y).unflatten(-1, (self.heads, -1)).transpose(1, 2)
            for each in (self.query, self.key, self.value)
        ]
        y = nn.functional.scaled_dot_product_attention(*parts, is_causal=True)
        x = x + self.output(y.transpose(1, 2).flatten(2))
        return x + self.down(nn.functional.gelu(self.up(self.feed_norm(x))))


class Blocks(nn.Module):
    """A chain of blocks: 16 of width 4,096 are 5.5 GiB in bfloat16."""

    def __init__(self, blocks: int, width: int, hidden: int, heads: int) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(Block(width, hidden, heads) for _ in range(blocks))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for block in self.blocks:
            x = block(x)
        return x


def build(case: Case, small: bool) -> tuple[nn.Module, tuple[Any, ...], dict[str, Any]]:
    """A network with its weights on `meta`, and its arguments, on the CPU."""
    from accelerate import init_empty_weights

    torch.manual_seed(0)
    sizes = case.small if small else case.sizes
    with init_empty_weights(include_buffers=False):
        if case.model == "blocks":
            dtype = torch.float32 if small else torch.bfloat16
            before = torch.get_default_dtype()
            torch.set_default_dtype(dtype)
            model = Blocks(*(sizes[key] for key in ("blocks", "width", "hidden", "heads")))
            torch.set_default_dtype(before)
            args: tuple[Any, ...] = (torch.randn(1, sizes["tokens"], sizes["width"], dtype=dtype),)
            kwargs: dict[str, Any] = {}
        else:
            chosen = dict(sizes)
            size = chosen.pop("size", "full")
            model, args, kwargs = NETWORKS[case.model].build(size, **chosen)
    model.eval().requires_grad_(False)
    return model, tuple(args), dict(kwargs)


def weight_bytes(model: nn.Module) -> int:
    return sum(parameter.nbytes for parameter in model.parameters())


def seeded_weight(name: str, like: torch.Tensor, on: torch.device) -> torch.Tensor:
    """The weight of that name: the same in every process on one machine."""
    if like.dim() < 2:
        return torch.full(like.shape, float(name.endswith("weight")), dtype=like.dtype, device=on)
    generator = torch.Generator(on).manual_seed(zlib.crc32(name.encode()))
    weight = torch.empty(like.shape, dtype=like.dtype, device=on)
    return weight.normal_(0.0, 0.02, generator=generator)


def fill(model: nn.Module, device_of: DeviceOf, drawn_on: torch.device) -> None:
    """Give every parameter its data, and move every buffer to its device.

    Weights of the host come first: in between, they would fragment the GPU's memory.
    """
    done: dict[int, nn.Parameter] = {}
    for stays in (False, True):
        for name, parameter in model.named_parameters():  # a tied one once, by its first name
            place = device_of(name)
            if (place == drawn_on) == stays:
                data = seeded_weight(name, parameter, drawn_on).to(place)
                done[id(parameter)] = nn.Parameter(data, requires_grad=False)
        if drawn_on.type == "cuda":
            torch.cuda.synchronize()
            torch.cuda.empty_cache()
    for path, module in model.named_modules():
        for short, parameter in module._parameters.items():
            if parameter is not None:
                module._parameters[short] = done[id(parameter)]
        for short, buffer in module._buffers.items():
            if buffer is not None:
                module._buffers[short] = buffer.to(device_of(f"{path}.{short}" if path else short))
