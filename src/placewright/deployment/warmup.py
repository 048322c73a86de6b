"""Runs a placed model as it will be used, until its CUDA graphs are captured, and measures it."""

from __future__ import annotations

import time
from functools import partial
from typing import TYPE_CHECKING, Any

import torch

from placewright.deployment.call_mix import Calls, Generate
from placewright.deployment.model_states import unchanged_states
from placewright.runtime.cuda.backend import current_backend

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from placewright.runtime.placed_model import PlacedModel

CAPTURED_AFTER = 8
"""Calls of one kind after which it is decided whether CUDA graphs are used."""
TIMED_TOKENS = 4


def run_warmup(
    placed: PlacedModel, mix: Generate | Calls, written_weights: Sequence[torch.Tensor] = ()
) -> str:
    """Make the calls of a mix; how long they took, against what was predicted, in words.

    Args:
        written_weights: The weights that the calls write to.

    Raises:
        ExecutionError: A call does not keep a GPU's limit.
    """
    with unchanged_states(placed.model, written_weights):
        if isinstance(mix, Generate):
            measured = _of_generate(placed, mix)
        else:
            measured = _of_calls(placed, mix)
    predicted = placed.predicted_seconds
    parts = []
    for name, seconds in measured.items():
        expected = predicted.get(name)
        note = "" if expected is None else f" (predicted {expected * 1e3:.4g})"
        parts.append(f"{name} {seconds * 1e3:.4g} ms{note}")
    return ", ".join(parts)


def _of_generate(placed: PlacedModel, mix: Generate) -> dict[str, float]:
    """Seconds of a prompt of each length, and of a token; `generate` itself is part of them."""
    measured: dict[str, float] = {}
    for length in mix.lengths:
        label = f"-{length}" if len(mix.lengths) > 1 else ""
        run = partial(mix.run, placed.model, length)
        run(min(mix.new_tokens, CAPTURED_AFTER + 1))
        prefill = measured[f"prefill{label}"] = _seconds(placed, partial(run, 1))
        count = min(mix.new_tokens - 1, TIMED_TOKENS)
        if count:
            whole = _seconds(placed, partial(run, 1 + count))
            measured[f"decode{label}"] = max(0.0, whole - prefill) / count
    return measured


def _of_calls(placed: PlacedModel, mix: Calls) -> dict[str, float]:
    measured: dict[str, float] = {}
    for _ in range(CAPTURED_AFTER + 1):
        for number, (args, kwargs, _) in enumerate(mix.parts()):  # a call may change its arguments
            name = f"call-{number}" if len(mix.calls) > 1 else "call"
            measured[name] = _seconds(placed, partial(_call, placed.model, args, kwargs))
    return measured


@torch.no_grad()
def _call(model: Any, args: Any, kwargs: Any) -> Any:
    return model(*args, **kwargs)


def _seconds(placed: PlacedModel, call: Callable[[], Any]) -> float:
    """Seconds of a call, until all GPUs have ended it."""
    _synchronize(placed)
    began = time.perf_counter()
    call()
    _synchronize(placed)
    return time.perf_counter() - began


def _synchronize(placed: PlacedModel) -> None:
    for index in {device.index for device in placed.backend.real_devices if device.is_gpu}:
        current_backend().synchronize(index)
