"""Builds a model to measure: that of a file, a network or a function, with random numbers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from placewright.frontends.model_spec import ModelSpec

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

RANDOM_BLOCK = 1 << 20  # random numbers that are drawn for a weight, and repeated


def load_model(model: Any) -> tuple[Any, Sequence[Any], Mapping[str, Any]]:
    """The model of a file's function, a network's name or a function.

    Tensors on `meta` get random numbers: the time of a step does not depend on them.
    """
    if callable(model):
        result = model()
        module, args, kwargs = result if len(result) == 3 else (*result, {})
    elif ModelSpec.parse(str(model)).is_python:
        from placewright.frontends.python_file import build_model

        module, args, kwargs = build_model(str(model))
    else:
        from placewright.zoo import build_network as network

        module, args, kwargs = network(str(model))
    return _fill_weights(module), *_fill_inputs(args, kwargs)


def _fill_weights(model: Any) -> Any:
    """Fill the model's tensors on `meta` with random numbers; tied weights stay tied."""
    import torch

    replacements: dict[torch.Tensor, torch.Tensor] = {}  # by identity
    for module in model.modules():
        for table in (module._parameters, module._buffers):
            for name, tensor in table.items():
                if tensor is None or not tensor.is_meta:
                    continue
                if tensor not in replacements:
                    data = torch.empty_like(tensor, device="cpu")
                    data = _fill_random(data) if data.is_floating_point() else data.zero_()
                    if isinstance(tensor, torch.nn.Parameter):
                        data = torch.nn.Parameter(data, tensor.requires_grad)
                    replacements[tensor] = data
                table[name] = replacements[tensor]
    return model


def _fill_random(tensor: Any) -> Any:
    """Fill a tensor with small random numbers: a block of them, repeated.

    Drawing every number would take minutes for a large model, copying takes as long as memory does.
    """
    if tensor.numel() <= RANDOM_BLOCK or not tensor.is_contiguous():
        return tensor.normal_(0, 0.02)
    flat = tensor.view(-1)
    flat[:RANDOM_BLOCK].normal_(0, 0.02)
    filled = RANDOM_BLOCK
    while filled < len(flat):
        size = min(filled, len(flat) - filled)
        flat[filled : filled + size].copy_(flat[:size])
        filled += size
    return tensor


def _fill_inputs(args: Sequence[Any], kwargs: Mapping[str, Any]) -> tuple[Any, Any]:
    import torch

    def fill(value: Any) -> Any:
        if isinstance(value, torch.Tensor) and value.is_meta:
            data = torch.empty_like(value, device="cpu")
            return data.normal_() if data.is_floating_point() else data.zero_()
        return value

    filled: tuple[Any, Any] = torch.utils._pytree.tree_map(fill, (_as_tuple(args), dict(kwargs)))
    return filled


def _as_tuple(args: Any) -> tuple[Any, ...]:
    import torch

    return (args,) if isinstance(args, torch.Tensor) else tuple(args)
