"""Model buffers that no file has, and that transformers computes from a configuration.

Frequencies of rotary embeddings are such buffers. A model that is built on `meta` has none of their
data; its `_init_weights` computes them for a module.
"""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from collections.abc import Collection


@torch.no_grad()
def compute_buffers(model: torch.nn.Module, names: Collection[str]) -> dict[str, torch.Tensor]:
    """The values of those of the named buffers that the model can compute, on the CPU.

    Modules that have parameters, too, are left out: they might be drawn anew. A module is filled
    with zeros, then with ones, and computed both times: what differs then was not computed.
    """
    initialise: Any = getattr(model, "_init_weights", None)
    if not callable(initialise):
        return {}
    values: dict[str, torch.Tensor] = {}
    for path, module in model.named_modules():
        prefix = f"{path}." if path else ""
        own_names = [name for name in module._buffers if f"{prefix}{name}" in names]
        if not own_names or any(True for _ in module.parameters()):
            continue
        zeros, ones = (_initialised(module, initialise, fill) for fill in (0, 1))
        values |= {
            f"{prefix}{name}": zeros[name]
            for name in own_names
            if torch.equal(zeros[name], ones[name])
        }
    return values


def _initialised(module: torch.nn.Module, initialise: Any, fill: int) -> dict[str, Any]:
    """A module's buffers after its initialisation; the module itself is left as it is."""
    clone = copy.copy(module)
    clone._buffers = {
        name: torch.full_like(buffer, fill, device="cpu")
        if buffer is not None and buffer.is_meta
        else buffer
        for name, buffer in module._buffers.items()
    }
    initialise(clone)
    return clone._buffers
