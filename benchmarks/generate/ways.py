"""Ways to run a model under a limit of GPU memory: each prepares a model that can be called.

On a machine without a GPU (with --small) the CPU stands in for it: the same code, no gain.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

import placewright as pw
from benchmarks.generate.models import SUBJECTS, build, call_inputs

if TYPE_CHECKING:
    from collections.abc import Callable

    Prepared = tuple[torch.nn.Module, dict[str, float]]
    """A model, and the predicted seconds of its calls, if any."""


def device() -> torch.device:
    return torch.device("cuda", 0) if torch.cuda.is_available() else torch.device("cpu")


def whole(name: str, small: bool, limit: int, mix: Any) -> Prepared:
    """Everything on the GPU, without a limit."""
    return build(name, small).to(device()), {}


def accelerate(name: str, small: bool, limit: int, mix: Any) -> Prepared:
    """Accelerate's device map for the limit, less what a step needs."""
    from accelerate import dispatch_model, infer_auto_device_map

    model: Any = build(name, small)
    blocks = getattr(model, "_no_split_modules", None) or []
    memory: dict[Any, int] = {"cpu": 1 << 40}
    if device().type == "cuda":
        memory[0] = int(limit * 0.9)
    device_map = infer_auto_device_map(model, memory, no_split_module_classes=list(blocks))
    return dispatch_model(model, device_map, main_device=device()), {}


def group_offloading(name: str, small: bool, limit: int, mix: Any) -> Prepared:
    """Group offloading of diffusers, leaf by leaf, with a stream of its own."""
    from diffusers.hooks import apply_group_offloading

    model = build(name, small)
    apply_group_offloading(
        model,
        onload_device=device(),
        offload_device=torch.device("cpu"),
        offload_type="leaf_level",
        use_stream=device().type == "cuda",
    )
    return model, {}


def ours(name: str, small: bool, limit: int, mix: Any) -> Prepared:
    """`place`, for the same calls."""
    model = build(name, small)
    if device().type == "cuda":
        placed = pw.place(model, {"gpu0": limit}, mix, store="none")
    else:
        placed = pw.place(model, workload=mix, cluster="2xcpu", budget=0.5, store="none")
    # A model that fits one device is left alone, and nothing is predicted.
    return placed, placed.placed.predicted_seconds if hasattr(placed, "placed") else {}


WAYS: dict[str, Callable[[str, bool, int, Any], Prepared]] = {
    "gpu": whole,
    "accelerate": accelerate,
    "group": group_offloading,
    "ours": ours,
}
"""Ways in this process; `llama.cpp` is a program of its own."""


def calls_of(name: str, small: bool, prompt: int, new_tokens: int) -> pw.Generate | pw.Calls:
    """What a model is used for."""
    subject = SUBJECTS[name]
    if subject.use == "generate":
        return pw.Generate(prompt=prompt, new_tokens=new_tokens)
    inputs = call_inputs(name, small, torch.device("cpu"))
    return pw.Calls([((), inputs, subject.repeats)])
