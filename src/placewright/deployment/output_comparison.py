"""Compares a placed model with itself: before, or eagerly, and under a plan."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from placewright.deployment.call_mix import Calls, Generate
from placewright.deployment.model_states import unchanged_states, unchanged_weights
from placewright.errors import ExecutionError, VerifyError
from placewright.frontends.pytorch.values import tensors_in
from placewright.runtime.verification import TOLERANCE, compare_tensors

if TYPE_CHECKING:
    from collections.abc import Sequence

    from placewright.runtime.placed_model import PlacedModel

VERIFY_TOKENS, VERIFY_PROMPT = 3, 32
"""Tokens that are generated, and of the prompt at most: one graph serves all lengths."""


@dataclass(frozen=True)
class Reference:
    """What a model computed before it was placed.

    Args:
        calls: Tensors of each call, with their names.
        written_weights: The weights that the calls write to.
    """

    calls: Sequence[Sequence[tuple[str, torch.Tensor]]]
    written_weights: Sequence[torch.Tensor] = ()


def can_verify(model: torch.nn.Module) -> str:
    """Why a model cannot be compared with itself; empty: it can."""
    if any(module.training for module in model.modules()):
        return "it is in training mode, and may draw random numbers"
    return ""


def reference_outputs(model: torch.nn.Module, mix: Generate | Calls) -> Reference:
    """Run the calls of a mix on the model as it is."""
    with unchanged_states(model), unchanged_weights(model) as written:
        calls = _outputs(model, mix)
    return Reference(calls, tuple(written))


def compare_outputs(
    placed: PlacedModel, mix: Generate | Calls, reference: Reference | None
) -> tuple[str, Sequence[torch.Tensor]]:
    """Run the calls again under the plan: what came of it, and the weights that they write to.

    Args:
        reference: None: compare with eager calls under the placement, since the weights of the
            model were on `meta` before.

    Raises:
        VerifyError: Outputs differ by more than rounding.
    """
    text = "the model's own"
    if reference is None:
        try:
            with placed.eager():
                reference, text = reference_outputs(placed.model, mix), "those of eager calls"
        except ExecutionError as error:
            return f"nothing: eager calls do not keep a limit: {error}", ()
        finally:
            placed.eager_calls.clear()  # which counts those of the caller
    difference = check_outputs(placed.model, mix, reference)
    text = f"outputs are {text}, within {difference:.1g} of the largest"
    return text, reference.written_weights


def check_outputs(model: torch.nn.Module, mix: Generate | Calls, reference: Reference) -> float:
    """Run the calls again; the largest difference, relative to the largest number.

    Tokens that differ because two of them are about equally likely end the comparison. Outputs may
    be in a wider dtype than the weights that they were computed with, as logits are.

    Raises:
        VerifyError: Outputs differ by more than rounding.
    """
    largest, tolerance = 0.0, _tolerance(model)
    with unchanged_states(model, reference.written_weights):
        outputs = _outputs(model, mix)
    for call, (actual, expected) in enumerate(zip(outputs, reference.calls, strict=True)):
        for (name, value), (_, right) in zip(actual, expected, strict=False):
            if name == "token":
                if not torch.equal(value.cpu(), right.cpu()):
                    break  # what comes after it has another past
                continue
            relative, errors = compare_tensors(
                f"{name} of call {call}",
                value,
                right,
                max(tolerance, TOLERANCE[right.dtype]) if right.dtype in TOLERANCE else None,
            )
            if errors:
                raise VerifyError(f"under the plan {errors[0]}")
            largest = max(largest, relative)
    return largest


def _tolerance(model: torch.nn.Module) -> float:
    """The tolerance of the narrowest dtype that a model computes with."""
    dtypes = {tensor.dtype for tensor in model.parameters()}
    return max((TOLERANCE[dtype] for dtype in dtypes if dtype in TOLERANCE), default=0.0)


def _outputs(model: Any, mix: Generate | Calls) -> list[list[tuple[str, torch.Tensor]]]:
    if isinstance(mix, Generate):
        return [_generated(model, mix)]
    outputs = []
    with torch.no_grad():
        for args, kwargs, _ in mix.parts():
            values = tensors_in(model(*args, **kwargs))
            outputs.append(
                [(f"output {at}", value.detach().clone()) for at, value in enumerate(values)]
            )
    return outputs


def _generated(model: Any, mix: Generate) -> list[tuple[str, torch.Tensor]]:
    """Logits and tokens of a greedy generation, in turn."""
    length = min(VERIFY_PROMPT, *mix.lengths)
    result = mix.run(
        model,
        length,
        min(VERIFY_TOKENS, mix.new_tokens),
        num_beams=1,
        return_dict_in_generate=True,
        output_logits=True,
    )
    count = len(result.logits)
    tokens = result.sequences[:, -count:]
    outputs = []
    for at, logits in enumerate(result.logits):
        outputs.append((f"logits {at}", logits.clone()))
        outputs.append(("token", tokens[:, at].clone()))
    return outputs
