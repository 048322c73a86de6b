"""Captures a PyTorch model with example arguments as a Graph, without running it."""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING, Any

from placewright.errors import ConfigError, GraphError, MissingDependency
from placewright.frontends.op_costs import check_optimizer
from placewright.logs import log_duration

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import torch

    from placewright.graph import Graph


def from_torch(
    model: torch.nn.Module,
    args: Sequence[Any] | torch.Tensor = (),
    kwargs: Mapping[str, Any] | None = None,
    training: bool = False,
    optimizer: str | None = None,
    name: str | None = None,
) -> Graph:
    """The graph of one call of a model, or of one training step.

    Only shapes matter, so model and arguments may be on the `meta` device. The model is not
    changed. An op is named after its module, e.g. `layers.0.mlp.up.linear`; a backward op after its
    forward op, e.g. `layers.0.mlp.up.addmm.backward.mm`.

    A training step has the forward ops, the backward ops, and an update of every weight that gets a
    gradient. The loss is the first floating-point output, summed unless it is a scalar. The
    optimizer's states are resident bytes of the updates, in the dtype of their weight.

    Args:
        args: Positional arguments of the call.
        kwargs: Keyword arguments of the call.
        optimizer: `sgd` (the default), `momentum` or `adam`.
        name: The graph's name, by default that of the model's class.

    Raises:
        GraphError: The model cannot be exported; the message names the op or the line.
        ConfigError: The optimizer is unknown, or given without training.
    """
    if optimizer is not None and not training:
        raise ConfigError(f"optimizer is {optimizer!r}, but training is false: give training=True")
    optimizer = optimizer or "sgd"
    check_optimizer(optimizer)
    try:
        import torch
    except ImportError:
        raise MissingDependency("torch", "torch") from None
    from placewright.frontends.pytorch.capture import capture_model
    from placewright.frontends.pytorch.graph import build_graph

    if not isinstance(model, torch.nn.Module):
        raise GraphError(f"model is of type {type(model).__name__!r}: expected a torch.nn.Module")
    args = (args,) if isinstance(args, torch.Tensor) else tuple(args)
    with log_duration(f"capturing {name or type(model).__name__} with torch.export"):
        model_capture = capture_model(model, args, kwargs or {}, training)
    graph = build_graph(
        model_capture, name or type(model).__name__, optimizer if training else None
    )
    return graph.with_counts(**_token_counts(model, args, kwargs or {}))


def _token_counts(
    model: torch.nn.Module, args: Sequence[Any], kwargs: Mapping[str, Any]
) -> dict[str, int]:
    """Samples and tokens of a call with `input_ids`, the name that language models agree on."""
    import torch

    call = inspect.signature(model.forward).bind_partial(*args, **kwargs).arguments
    call = {**call, **call.get("kwargs", {})}
    ids = call.get("input_ids")
    if not (isinstance(ids, torch.Tensor) and ids.dim() == 2 and not ids.is_floating_point()):
        return {}
    samples, length = map(int, ids.shape)
    if "decoder_input_ids" in call or ("labels" in call and hasattr(model, "decoder")):
        return {"samples": samples}  # whose tokens are of two kinds
    return {"samples": samples, "tokens": samples * length} if samples and length else {}
