"""Call mixes: what a model will be called with, and how often.

`Generate` is `generate` of transformers, `Calls` are any calls with their arguments, `Train` is a
training step. Each makes its calls once in a dry run, so that they can be planned.
"""

from __future__ import annotations

import copy
import logging
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from placewright.errors import ConfigError

if TYPE_CHECKING:
    import torch

    from placewright.runtime.dynamo.backend import PlanBackend
    from placewright.runtime.dynamo.dry_run import DryCall
    from placewright.runtime.placed_model import PlacedModel

MAX_DRY_TOKENS = 512
"""Tokens that a dry run generates at most to reach the middle of a generation."""


@dataclass(frozen=True, eq=False)
class CallShape:
    """One kind of call.

    Args:
        name: Such as `prefill`; unique in a mix.
        call: The graph that it runs, and its shapes.
        count: How often it is made.
    """

    name: str
    call: DryCall
    count: float


@dataclass(frozen=True)
class Generate:
    """Text generation with `model.generate`: a prompt, then one token at a time.

    Args:
        prompt: Tokens of the prompt; several lengths, or lengths with their weights, are planned
            together. Of an encoder-decoder it is the input of the encoder.
        new_tokens: Tokens to generate.
        batch: Prompts that are generated at once.
        arguments: Further arguments of `generate`, such as `{"num_beams": 4}`.
        inputs: The inputs of `generate`, where tokens are not enough, such as pixels.
    """

    prompt: int | Sequence[int] | Mapping[int, float] = 512
    new_tokens: int = 128
    batch: int = 1
    arguments: Mapping[str, Any] = field(default_factory=dict)
    inputs: Mapping[str, Any] | None = None

    def __post_init__(self) -> None:
        for length, weight in self.lengths.items():
            if not _is_count(length):
                raise ConfigError(f"a prompt of {length!r} tokens: expected 1 or more")
            if not (isinstance(weight, int | float) and math.isfinite(weight) and weight > 0):
                raise ConfigError(
                    f"prompts of {length} tokens have weight {weight!r}: expected a number above 0"
                )
        if not self.lengths:
            raise ConfigError("no prompt: expected a number of tokens, such as prompt=512")
        for name, value in (("new_tokens", self.new_tokens), ("batch", self.batch)):
            if not _is_count(value):
                raise ConfigError(f"{name} is {value!r}: expected 1 or more")

    @property
    def lengths(self) -> dict[int, float]:
        """The weight of each length of a prompt."""
        if isinstance(self.prompt, Mapping):
            return dict(self.prompt)
        lengths = self.prompt if isinstance(self.prompt, Sequence) else [self.prompt]
        return dict.fromkeys(lengths, 1.0)

    @property
    def text(self) -> str:
        """What it is, in a line."""
        lengths = ", ".join(f"{length}" for length in self.lengths)
        return f"prompts of {lengths} tokens, {self.new_tokens} new ones, batch {self.batch}"

    @property
    def key(self) -> dict[str, Any]:
        """What tells it from others, as plain data."""
        return {
            "generate": {str(length): weight for length, weight in self.lengths.items()},
            "new_tokens": self.new_tokens,
            "batch": self.batch,
            "arguments": _plain(self.arguments),
            "inputs": _plain(self.inputs or {}),
        }

    def call_shapes(self, model: Any, backend: PlanBackend) -> list[CallShape]:
        """Its calls, from a dry run of the model.

        Raises:
            ConfigError: The model does not generate.
            GraphError: A call cannot be captured.
        """
        from placewright.runtime.dynamo.dry_run import record_calls

        shapes: list[CallShape] = []
        total = sum(self.lengths.values())
        for length, weight in self.lengths.items():
            with record_calls(backend) as run:
                self.run(model, length, min(self.new_tokens // 2 + 1, MAX_DRY_TOKENS))
            label = f"-{length}" if len(self.lengths) > 1 else ""
            shapes += self._shapes(run.calls, label, weight / total)
        return shapes

    def prepare(self, placed: PlacedModel) -> None:
        """Let `generate` of a placed model decode with caches of fixed lengths."""
        if hasattr(placed.model, "_prepare_cache_for_generation"):  # it is of transformers
            from placewright.runtime.generation import use_buckets

            is_decoder = not getattr(placed.model.config, "is_encoder_decoder", False)
            prompt = max(self.lengths) if is_decoder else 1
            use_buckets(placed, prompt + self.new_tokens)

    def _shapes(self, calls: Sequence[DryCall], label: str, share: float) -> list[CallShape]:
        """Encoder, prefill and the token in the middle of a generation, with their counts."""
        numbers = list(dict.fromkeys(call.number for call in calls if call.is_model))
        last = numbers[-1]
        shapes = []
        for call in calls:
            if not call.is_model:
                shapes.append(("encode", call, 1.0))
            elif call.number == numbers[0]:
                shapes.append(("prefill", call, 1.0))
            elif call.number == last:
                shapes.append(("decode", call, float(self.new_tokens - 1)))
        return number_parts(
            [CallShape(f"{name}{label}", call, count * share) for name, call, count in shapes]
        )

    def run(self, model: Any, length: int, new_tokens: int, **arguments: Any) -> Any:
        """Generate greedily from a random prompt, always as many tokens."""
        if not hasattr(model, "generate"):
            raise ConfigError(
                f"model {type(model).__name__!r} has no generate(): give workload=pw.Calls([...])"
            )
        fixed = {"max_new_tokens": new_tokens, "min_new_tokens": new_tokens, "do_sample": False}
        library = logging.getLogger("transformers")
        level = library.level
        library.setLevel(logging.ERROR)  # it warns of settings that say the same twice
        try:
            return model.generate(
                **self.example_inputs(model, length), **{**self.arguments, **fixed, **arguments}
            )
        finally:
            library.setLevel(level)

    def example_inputs(self, model: Any, length: int) -> dict[str, torch.Tensor]:
        """Random inputs of `generate`."""
        import torch

        if self.inputs is not None:
            return dict(self.inputs)
        config, main_input = model.config, getattr(model, "main_input_name", "input_ids")
        generator = torch.Generator().manual_seed(0)
        if main_input == "input_ids":
            vocabulary = getattr(config.get_text_config(), "vocab_size", 2)
            tokens = torch.randint(
                min(2, vocabulary - 1), vocabulary, (self.batch, length), generator=generator
            )
            return {"input_ids": tokens, "attention_mask": torch.ones_like(tokens)}
        if main_input == "input_features" and hasattr(config, "num_mel_bins"):
            frames = 2 * config.max_source_positions
            sizes = self.batch, config.num_mel_bins, frames
            dtype = next(model.parameters()).dtype
            return {main_input: torch.randn(sizes, generator=generator).to(dtype)}
        raise ConfigError(
            f"the main input of {type(model).__name__!r} is {main_input!r}: give the inputs of "
            f"generate, such as pw.Generate(inputs={{{main_input!r}: ...}})"
        )


@dataclass(frozen=True)
class Calls:
    """Any calls of a model.

    Args:
        calls: Each is (args, kwargs, weight), (args, kwargs) or (args,); a weight says how often
            it is made.
    """

    calls: Sequence[Sequence[Any]]

    def __post_init__(self) -> None:
        if not self.calls:
            raise ConfigError("no calls: expected one or more, each (args, kwargs, weight)")
        for _, _, weight in self.parts():
            if not (isinstance(weight, int | float) and math.isfinite(weight) and weight > 0):
                raise ConfigError(f"a call has weight {weight!r}: expected a number above 0")

    @property
    def text(self) -> str:
        """What it is, in a line."""
        return "1 call" if len(self.calls) == 1 else f"{len(self.calls)} calls"

    @property
    def key(self) -> dict[str, Any]:
        """What tells it from others, as plain data."""
        return {"calls": _plain(self.parts())}

    def prepare(self, placed: PlacedModel) -> None:
        """Calls are made as they are: there is nothing to prepare."""

    def parts(self) -> list[tuple[tuple[Any, ...], dict[str, Any], float]]:
        """Arguments, keyword arguments and weight of each call; copies, since calls change them."""
        return [_parts(copy.deepcopy(call)) for call in self.calls]

    def call_shapes(self, model: Any, backend: PlanBackend) -> list[CallShape]:
        """Its calls, from a dry run of the model.

        Raises:
            GraphError: A call cannot be captured.
        """
        import torch

        from placewright.runtime.dynamo.dry_run import record_calls

        shapes = []
        for number, (args, kwargs, weight) in enumerate(self.parts()):
            with record_calls(backend) as run, torch.no_grad():
                model(*args, **kwargs)
            name = f"call-{number}" if len(self.calls) > 1 else "call"
            shapes += number_parts([CallShape(name, part, float(weight)) for part in run.calls])
        return shapes


@dataclass(frozen=True)
class Train:
    """A training step with its update, for `model.placed.train_step`.

    Args:
        args: Positional arguments of the model, which returns a loss.
        kwargs: Keyword arguments.
        optimizer: `sgd`, `momentum` or `adam`.
    """

    args: Sequence[Any] = ()
    kwargs: Mapping[str, Any] = field(default_factory=dict)
    optimizer: str = "sgd"

    @property
    def text(self) -> str:
        """What it is, in a line."""
        return f"a training step with {self.optimizer}"

    @property
    def key(self) -> dict[str, Any]:
        """What tells it from others, as plain data."""
        return {"train": _plain([self.args, self.kwargs]), "optimizer": self.optimizer}


def number_parts(shapes: Sequence[CallShape]) -> list[CallShape]:
    """The calls; those of one name, which are parts of a call with graph breaks, get numbers."""
    names = [shape.name for shape in shapes]
    parts: dict[str, int] = {}
    numbered = []
    for shape in shapes:
        parts[shape.name] = parts.get(shape.name, 0) + 1
        name = f"{shape.name}.{parts[shape.name]}" if names.count(shape.name) > 1 else shape.name
        numbered.append(CallShape(name, shape.call, shape.count))
    return numbered


def _parts(call: Sequence[Any]) -> tuple[tuple[Any, ...], dict[str, Any], float]:
    """Arguments, keyword arguments and weight of a call."""
    if not isinstance(call, Sequence) or not 1 <= len(call) <= 3:
        raise ConfigError(f"a call is {call!r}: expected (args, kwargs, weight)")
    args = call[0]
    kwargs = call[1] if len(call) > 1 else {}
    weight = call[2] if len(call) > 2 else 1.0
    if not isinstance(args, Sequence) or isinstance(args, str) or not isinstance(kwargs, Mapping):
        raise ConfigError(
            "a call is (args, kwargs, weight): expected a tuple of arguments, then a dictionary"
        )
    return tuple(args), dict(kwargs), weight


def _is_count(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 1


def _plain(value: Any) -> Any:
    """Arguments as plain data: of tensors the shape, layout and dtype."""
    if hasattr(value, "shape") and hasattr(value, "dtype"):
        strides = value.stride() if hasattr(value, "stride") else ()
        return [list(value.shape), list(strides), str(value.dtype)]
    if isinstance(value, Mapping):
        return {str(name): _plain(item) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    if value is None or isinstance(value, bool | int | float | str):
        return value
    return [type(value).__qualname__, _plain(vars(value)) if hasattr(value, "__dict__") else ""]


_MIX_EXAMPLE = "generate:prompt=512,new=128 or call:batch=8"


def parse_mix(text: str) -> Generate | int:
    """What `generate:prompt=512,new=128` says; or the batch of `call:batch=8`.

    `prompt=128+512` are two lengths, each as likely.

    Raises:
        ConfigError: It is neither of these.
    """
    kind, _, rest = text.strip().partition(":")
    words = dict(word.partition("=")[::2] for word in rest.split(",")) if rest else {}
    allowed = {"generate": ("prompt", "new", "batch"), "call": ("batch",)}.get(kind.strip())
    if allowed is None:
        raise ConfigError(f"workload {text!r} is unknown: expected {_MIX_EXAMPLE}")
    numbers: dict[str, list[int]] = {}
    for name, value in words.items():
        if name.strip() not in allowed:
            raise ConfigError(f"workload {text!r}: {name!r} is unknown: {', '.join(allowed)}")
        parts = [part.strip() for part in value.split("+")]
        if not all(part.isdecimal() for part in parts) or (len(parts) > 1 and name != "prompt"):
            raise ConfigError(f"workload {text!r}: {name} is {value!r}: expected {_MIX_EXAMPLE}")
        numbers[name.strip()] = [int(part) for part in parts]
    batch = numbers.get("batch", [1])[0]
    if kind.strip() == "call":
        if batch < 1:
            raise ConfigError(f"workload {text!r}: batch is {batch}: expected 1 or more")
        return batch
    defaults = Generate()
    return Generate(
        numbers.get("prompt", defaults.prompt), numbers.get("new", [defaults.new_tokens])[0], batch
    )
