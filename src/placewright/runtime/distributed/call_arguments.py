"""Describes the arguments of a call to other ranks: as JSON, with shapes in place of data.

From the description a rank makes arguments of zeros, with which it captures the graph that rank 0
has captured. Containers and numbers are those that JSON has, and tuples.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from placewright.errors import ExecutionError
from placewright.runtime.distributed.tensor_frames import DTYPES

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

_MAX_BYTES = 1 << 40  # of one argument: more is no call, but a broken message


def describe_call(args: Sequence[Any], kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """The description of a call's arguments, and of the mode that it is made in.

    Raises:
        ExecutionError: An argument is of a type that other ranks cannot be told of.
    """
    is_cast = torch.is_autocast_enabled("cpu")
    return {
        "args": [_describe(value) for value in args],
        "kwargs": {name: _describe(value) for name, value in kwargs.items()},
        "autocast": str(torch.get_autocast_dtype("cpu")).partition(".")[2] if is_cast else "",
    }


def restore_call(data: Mapping[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Arguments of zeros that are as described.

    Raises:
        ExecutionError: The description is broken.
    """
    try:
        args = tuple(_restore(value) for value in data["args"])
        return args, {str(name): _restore(value) for name, value in data["kwargs"].items()}
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise ExecutionError(f"rank 0 described a call that cannot be read: {error}") from error


def describe_modes(model: torch.nn.Module) -> dict[str, str]:
    """Which modules are in training mode, and which weights require a gradient, one by one."""
    return {
        "modes": "".join(str(int(module.training)) for module in model.modules()),
        "trained": "".join(str(int(weight.requires_grad)) for weight in model.parameters()),
    }


def restore_modes(model: torch.nn.Module, data: Mapping[str, Any]) -> None:
    """Give a model the modes of rank 0's.

    Raises:
        ExecutionError: It has other modules or weights.
    """
    modules, weights = list(model.modules()), list(model.parameters())
    modes, trained = str(data.get("modes", "")), str(data.get("trained", ""))
    if (len(modules), len(weights)) != (len(modes), len(trained)):
        raise ExecutionError(
            f"rank 0's model has {len(modes)} modules and {len(trained)} weights, this rank's "
            f"{len(modules)} and {len(weights)}: build the same model on all ranks"
        )
    for module, mode in zip(modules, modes, strict=True):
        module.training = mode == "1"
    for weight, mode in zip(weights, trained, strict=True):
        if weight.requires_grad != (mode == "1"):
            weight.requires_grad_(mode == "1")


def autocast_of(data: Mapping[str, Any]) -> torch.autocast:
    """The mode that a described call is made in."""
    name = data.get("autocast", "")
    dtype = next((dtype for dtype in DTYPES if str(dtype) == f"torch.{name}"), None)
    return torch.autocast("cpu", dtype, enabled=dtype is not None)


def _describe(value: Any) -> Any:
    if value is None or type(value) in (bool, int, str):
        return value
    if type(value) is float:
        return {"float": value.hex()}
    if isinstance(value, torch.Tensor) and value.dtype in DTYPES:
        return {
            "tensor": DTYPES.index(value.dtype),
            "sizes": list(value.shape),
            "strides": list(value.stride()),
        }
    if type(value) in (list, tuple):
        return {type(value).__name__: [_describe(item) for item in value]}
    if type(value) is dict and all(type(key) is str for key in value):
        return {"dict": {key: _describe(item) for key, item in value.items()}}
    if isinstance(value, torch.dtype) and value in DTYPES:
        return {"dtype": DTYPES.index(value)}
    raise ExecutionError(
        f"an argument of type {type(value).__name__!r} cannot be described to other ranks: "
        "expected tensors, numbers, texts, None, and lists, tuples and dicts of them"
    )


def _restore(value: Any) -> Any:
    if not isinstance(value, dict):
        return value
    if "tensor" in value:
        sizes, strides = [int(n) for n in value["sizes"]], [int(n) for n in value["strides"]]
        span = 1 + sum(stride * (size - 1) for size, stride in zip(sizes, strides, strict=True))
        dtype = DTYPES[value["tensor"]]
        if min([0, *sizes, *strides]) < 0 or span * dtype.itemsize > _MAX_BYTES:
            raise ValueError(f"a tensor of sizes {sizes} and strides {strides}")
        return torch.empty_strided(sizes, strides, dtype=dtype).zero_()
    if "float" in value:
        return float.fromhex(value["float"])
    if "list" in value:
        return [_restore(item) for item in value["list"]]
    if "tuple" in value:
        return tuple(_restore(item) for item in value["tuple"])
    if "dtype" in value:
        return DTYPES[value["dtype"]]
    return {key: _restore(item) for key, item in value["dict"].items()}
