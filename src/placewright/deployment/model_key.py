"""The key of a model: what a plan for it depends on, without capturing it."""

from __future__ import annotations

import hashlib
import importlib.metadata
from typing import TYPE_CHECKING, Any

from placewright.version import __version__

if TYPE_CHECKING:
    import torch

_PACKAGES = ("torch", "transformers", "diffusers", "timm", "accelerate")


def model_facts(model: torch.nn.Module) -> dict[str, Any]:
    """Modules, weights, modes and code of a model as digests, and versions of its libraries."""
    return {
        "model": f"{type(model).__module__}.{type(model).__qualname__}",
        "modules": _digest(
            f"{name}:{type(module).__module__}.{type(module).__qualname__}:{module.training}:"
            f"{module.extra_repr()}"
            for name, module in model.named_modules()
        ),
        "weights": _digest(
            f"{name}:{tuple(tensor.shape)}:{tensor.stride()}:{tensor.dtype}:{tensor.requires_grad}"
            for name, tensor in (
                *model.named_parameters(remove_duplicate=False),
                *model.named_buffers(remove_duplicate=False),
            )
        ),
        "code": _digest(_forward_code(model)),
        "config": str(getattr(model, "config", "")),
        "versions": versions(),
    }


def versions() -> dict[str, str]:
    """The versions of the libraries that models are made of."""
    found = {"placewright": __version__}
    for package in _PACKAGES:
        try:
            found[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found


def _forward_code(model: torch.nn.Module) -> list[str]:
    """The bytecode of the forward of each class of the model's modules."""
    codes = {}
    for module in model.modules():
        forward: Any = getattr(type(module), "forward", None)
        code = getattr(getattr(forward, "__wrapped__", forward), "__code__", None)
        name = f"{type(module).__module__}.{type(module).__qualname__}"
        codes[name] = "" if code is None else f"{code.co_code.hex()}:{code.co_names}"
    return [f"{name}:{code}" for name, code in sorted(codes.items())]


def _digest(lines: Any) -> str:
    digest = hashlib.sha256()
    for line in lines:
        digest.update(line.encode())
        digest.update(b"\n")
    return digest.hexdigest()
