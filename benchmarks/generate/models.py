"""Models of the benchmark: five kinds of network, full and small, with random weights."""

from __future__ import annotations

import math
import os
import zlib
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch
from torch.overrides import TorchFunctionMode

if TYPE_CHECKING:
    from collections.abc import Callable


@dataclass(frozen=True)
class Subject:
    """A model and what it is used for.

    Args:
        library: The package that has it.
        kind: Its class in that package.
        full: Arguments of its configuration.
        small: Those that differ in the small form.
        dtype: Of its weights; float32 in the small form.
        use: `generate`, or `call`: one call, several times in a row.
        repeats: Calls in a row, as a diffusion loop makes them.
    """

    library: str
    kind: str
    full: dict[str, Any]
    small: dict[str, Any]
    use: str = "generate"
    dtype: torch.dtype = torch.bfloat16
    repeats: int = 1
    inputs: Callable[[bool], dict[str, torch.Tensor]] | None = field(default=None, repr=False)


ENDS = {"bos_token_id": 1, "eos_token_id": None, "pad_token_id": 0}


def _latents(small: bool) -> dict[str, torch.Tensor]:
    """Inputs of a diffusion transformer: latents, a time step and a class."""
    size = 8 if small else 64
    return {
        "hidden_states": torch.randn(1, 4, size, size),
        "timestep": torch.tensor([10]),
        "class_labels": torch.tensor([1]),
    }


def _images(small: bool) -> dict[str, torch.Tensor]:
    return {"pixel_values": torch.randn(*((2, 3, 32, 32) if small else (32, 3, 224, 224)))}


SUBJECTS: dict[str, Subject] = {
    "llama": Subject(
        "transformers",
        "LlamaForCausalLM",
        {
            "vocab_size": 128256,
            "hidden_size": 4096,
            "intermediate_size": 14336,
            "num_hidden_layers": 16,
            "num_attention_heads": 32,
            "num_key_value_heads": 8,
            "rope_theta": 500000.0,
            **ENDS,
        },
        {
            "vocab_size": 256,
            "hidden_size": 64,
            "intermediate_size": 96,
            "num_hidden_layers": 2,
            "num_attention_heads": 4,
            "num_key_value_heads": 2,
        },
    ),
    "qwen-moe": Subject(
        "transformers",
        "Qwen3MoeForCausalLM",
        {
            "vocab_size": 151936,
            "hidden_size": 2048,
            "intermediate_size": 6144,
            "moe_intermediate_size": 768,
            "num_hidden_layers": 12,
            "num_attention_heads": 32,
            "num_key_value_heads": 4,
            "head_dim": 128,
            "num_experts": 64,
            "num_experts_per_tok": 8,
            **ENDS,
        },
        {
            "vocab_size": 256,
            "hidden_size": 64,
            "intermediate_size": 96,
            "moe_intermediate_size": 32,
            "num_hidden_layers": 2,
            "num_attention_heads": 4,
            "num_key_value_heads": 2,
            "head_dim": 16,
            "num_experts": 4,
            "num_experts_per_tok": 2,
        },
    ),
    "t5": Subject(
        "transformers",
        "T5ForConditionalGeneration",
        {
            "vocab_size": 32128,
            "d_model": 2048,
            "d_kv": 64,
            "d_ff": 5120,
            "num_layers": 24,
            "num_heads": 32,
            "decoder_start_token_id": 0,
            "feed_forward_proj": "gated-gelu",
            **ENDS,
        },
        {"vocab_size": 256, "d_model": 64, "d_kv": 16, "d_ff": 96, "num_layers": 2, "num_heads": 4},
    ),
    "dit": Subject(
        "diffusers",
        "DiTTransformer2DModel",
        {"num_attention_heads": 16, "attention_head_dim": 128, "num_layers": 40, "sample_size": 64},
        {"num_attention_heads": 2, "attention_head_dim": 16, "num_layers": 2, "sample_size": 8},
        use="call",
        repeats=8,
        inputs=_latents,
    ),
    "resnet-152": Subject(
        "transformers",
        "ResNetForImageClassification",
        {"depths": [3, 8, 36, 3]},
        {"depths": [1, 1, 1, 1], "embedding_size": 8, "hidden_sizes": [16, 24, 32, 40]},
        use="call",
        dtype=torch.float32,
        inputs=_images,
    ),
}


DRAWN = (1 << 23) + 1013  # no multiple of a width: rows differ


class _NoRandomNumbers(TorchFunctionMode):
    """Leaves out random initialisation, which takes minutes for billions of weights."""

    SKIPPED = ("normal_", "uniform_", "trunc_normal_", "kaiming_uniform_", "kaiming_normal_")

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if getattr(func, "__name__", "") in self.SKIPPED:
            return args[0] if args else kwargs["tensor"]
        return func(*args, **(kwargs or {}))


def build(name: str, small: bool, device: str = "cpu") -> torch.nn.Module:
    """A model with random weights on the host, or with the sizes alone on `meta`."""
    import importlib

    subject = SUBJECTS[name]
    settings = {**subject.full, **(subject.small if small else {})}
    dtype = torch.float32 if small else subject.dtype
    model_class: Any = getattr(importlib.import_module(subject.library), subject.kind)
    default = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        with torch.device(device), _NoRandomNumbers():
            if subject.library == "transformers":
                model = model_class(model_class.config_class(**settings))
            else:
                model = model_class(**settings)
    finally:
        torch.set_default_dtype(default)
    if device != "meta":
        fill_weights(model)
    built: torch.nn.Module = model.to(dtype).eval()
    return built


def fill_weights(model: torch.nn.Module) -> None:
    """Draw every matrix, seeded by its name, on all cores; vectors stay as they begin.

    The standard deviation is that which passes variance on: outputs neither vanish nor overflow.
    At most `DRAWN` numbers are drawn for a matrix, and repeated: an embedding of 525 million would
    take half a minute.
    """

    def fill(item: tuple[str, torch.Tensor]) -> None:
        name, weight = item
        generator = torch.Generator().manual_seed(zlib.crc32(name.encode()))
        values = torch.empty(min(weight.numel(), DRAWN), dtype=weight.dtype)
        values.normal_(0.0, 1 / math.sqrt(weight[0].numel()), generator=generator)
        flat = weight.detach().view(-1)
        for start in range(0, len(flat), len(values)):
            part = flat[start : start + len(values)]
            part.copy_(values[: len(part)])

    with ThreadPoolExecutor(os.cpu_count()) as pool:
        matrices = [item for item in model.named_parameters() if item[1].ndim > 1]
        list(pool.map(fill, matrices))


def weight_bytes(model: torch.nn.Module) -> int:
    return sum(tensor.nbytes for tensor in {*model.parameters(), *model.buffers()})


def call_inputs(name: str, small: bool, device: torch.device) -> dict[str, torch.Tensor]:
    """The arguments of a call, on a device."""
    subject = SUBJECTS[name]
    assert subject.inputs is not None
    dtype = torch.float32 if small else subject.dtype
    torch.manual_seed(0)
    return {
        key: value.to(device, dtype if value.is_floating_point() else value.dtype)
        for key, value in subject.inputs(small).items()
    }
