"""Differences of two observations, to the bit: values, structure, types, order of keys."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch

Tolerance = float | Mapping[torch.dtype | None, float]
"""The largest difference, of a number or as a share of it; or one for each dtype."""


class Raised:
    """An exception as an observation; a subclass of the expected type is as good."""

    def __init__(self, error: BaseException) -> None:
        self.type, self.text = type(error), str(error)

    def __repr__(self) -> str:
        first_line = (self.text.splitlines() or [""])[0]
        return f"{self.type.__name__}({first_line[:120]!r})"


def attempt(function: Any, *args: Any, **kwargs: Any) -> Any:
    """The result of a call, or the exception that it raises, as an observation."""
    try:
        return function(*args, **kwargs)
    except Exception as error:
        return Raised(error)


def flags(tensor: torch.Tensor) -> tuple[Any, ...]:
    """What autograd and memory say of a tensor, for cases that compare it."""
    return (
        tensor.requires_grad,
        tensor.is_leaf,
        tensor.grad_fn is None,
        tensor.stride(),
        tensor.storage_offset(),
        tensor.is_inference(),
        tensor.device.type,
    )


def snapshot(value: Any) -> Any:
    """A copy of an observation that nothing changes later."""
    if isinstance(value, torch.nn.Parameter):
        return torch.nn.Parameter(value.detach().clone(), requires_grad=value.requires_grad)
    if isinstance(value, torch.Tensor):
        return value.detach().clone()
    if isinstance(value, np.ndarray):
        return value.copy()
    if isinstance(value, list):
        return [snapshot(item) for item in value]
    if type(value) is tuple:
        return tuple(snapshot(item) for item in value)
    if type(value) is dict:
        return {key: snapshot(item) for key, item in value.items()}
    return value


def allowed(tolerance: Tolerance, dtype: torch.dtype | None = None) -> float:
    """The tolerance for a dtype; None is a number of Python, and all dtypes that are not named."""
    if isinstance(tolerance, Mapping):
        return tolerance.get(dtype, tolerance[None])
    return tolerance


def differences(own: Any, placed: Any, tolerance: Tolerance = 0, at: str = "") -> list[str]:
    """What differs, with the path to it; at most a few of many."""
    if isinstance(own, Raised) and isinstance(placed, Raised):
        if issubclass(placed.type, own.type):
            return []
        return [f"{at} raises {placed!r}, not {own!r}"]
    if isinstance(placed, Raised):
        return [f"{at} raises {placed!r}"]
    if isinstance(own, Raised):
        return [f"{at} does not raise {own!r}"]
    if type(own) is not type(placed):
        return [f"{at} is of type {type(placed).__name__}, not {type(own).__name__}"]
    if isinstance(own, torch.Tensor):
        return _tensor_differences(own, placed, tolerance, at)
    if isinstance(own, np.ndarray):
        return [] if np.array_equal(own, placed) else [f"{at} differs"]
    if isinstance(own, Mapping):
        if list(own) != list(placed):
            return [f"{at} has keys {list(placed)}, not {list(own)}"]
        return _all((f"{at}[{key!r}]", own[key], placed[key]) for key in own)(tolerance)
    if isinstance(own, list | tuple):
        if len(own) != len(placed):
            return [f"{at} has {len(placed)} items, not {len(own)}"]
        pairs = enumerate(zip(own, placed, strict=True))
        return _all((f"{at}[{index}]", a, b) for index, (a, b) in pairs)(tolerance)
    if dataclasses.is_dataclass(own):
        names = [item.name for item in dataclasses.fields(own)]
        return _all((f"{at}.{n}", getattr(own, n), getattr(placed, n)) for n in names)(tolerance)
    if isinstance(own, float):
        same = own == placed or (own != own and placed != placed)
        close = abs(own - placed) <= allowed(tolerance) * max(1.0, abs(own))
        return [] if same or close else [f"{at} is {placed!r}, not {own!r}"]
    if own is placed:
        return []
    if type(own).__eq__ is object.__eq__ and hasattr(own, "__dict__"):
        return differences(vars(own), vars(placed), tolerance, at)
    return [] if own == placed else [f"{at} is {placed!r}, not {own!r}"[:300]]


def _all(items: Any) -> Any:
    def compare(tolerance: Tolerance) -> list[str]:
        found: list[str] = []
        for at, own, placed in items:
            found += differences(own, placed, tolerance, at)
            if len(found) > 4:
                break
        return found

    return compare


def _tensor_differences(
    own: torch.Tensor, placed: torch.Tensor, tolerance: Tolerance, at: str
) -> list[str]:
    if own.is_nested or placed.is_nested:
        if own.is_nested != placed.is_nested:
            return [f"{at} is nested in one only"]
        return differences(list(own.unbind()), list(placed.unbind()), tolerance, at)
    for name in ("dtype", "shape", "layout"):
        if getattr(own, name) != getattr(placed, name):
            return [f"{at} has {name} {getattr(placed, name)}, not {getattr(own, name)}"]
    within = allowed(tolerance, own.dtype)
    own, placed = own.detach().cpu(), placed.detach().cpu()
    if own.is_sparse:
        own, placed = own.to_dense(), placed.to_dense()
    own, placed = own.resolve_conj().resolve_neg(), placed.resolve_conj().resolve_neg()
    if own.is_complex():
        own, placed = torch.view_as_real(own), torch.view_as_real(placed)
    same = (own == placed) | ((own != own) & (placed != placed))
    if own.is_floating_point() and not within:
        same &= torch.signbit(own) == torch.signbit(placed)
    if within and own.is_floating_point():
        same |= torch.isclose(own, placed, rtol=within, atol=within)
    if bool(same.all()):
        return []
    off = (own.double() - placed.double()).abs()
    wrong = int((~same).sum())
    return [f"{at} is off by {float(off[~same].max()):.2g} in {wrong} of {own.numel()}"]
