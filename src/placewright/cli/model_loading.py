"""Loads the model that the command line names."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from placewright.cli.paths import kind_name, print_note
from placewright.errors import ConfigError, FileError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from placewright.cluster import Cluster
    from placewright.frontends.model_spec import ModelSpec
    from placewright.graph import Graph
    from placewright.problem import Problem


@dataclass(frozen=True)
class ModelOptions:
    """How a model of another library is to be read."""

    training: bool = False
    optimizer: str | None = None
    dims: Mapping[str, int] = field(default_factory=dict)
    shapes: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    arguments: Mapping[str, int] = field(default_factory=dict)


def parse_spec(text: str) -> ModelSpec:
    """What a text names, with the zoo's names."""
    from placewright import zoo
    from placewright.frontends.model_spec import ModelSpec

    return ModelSpec.parse(text, zoo.ENTRIES)


def load_model(text: str, cluster: Cluster | None, options: ModelOptions) -> Graph | Problem:
    """The graph or problem that a text names: a built-in model, a file or `model.py:build`.

    Args:
        cluster: Used in place of a workload's own.

    Raises:
        PlacewrightError: The name is unknown, or the file is missing or malformed.
    """
    from placewright import files, frontends, zoo
    from placewright.deployment.named_models import is_library_model
    from placewright.graph import Graph
    from placewright.problem import Problem

    if is_library_model(text):
        raise ConfigError(
            f"{text!r} is planned by its calls: use `placewright place` or `simulate`"
        )
    spec = parse_spec(text)
    spec.check_file()
    check_training(spec, options.training, options.optimizer)
    if spec.kind == "onnx":
        return frontends.from_onnx(text, options.dims, options.shapes)
    if spec.kind == "tensorflow":
        rows = {name: (size,) for name, size in options.dims.items()}
        return frontends.from_tensorflow(text, {**rows, **options.shapes})
    if options.dims or options.shapes:
        raise ConfigError(
            f"--dims is for ONNX and TensorFlow files: {text!r} has no symbolic dimensions"
        )
    if spec.is_python:
        return frontends.from_python(
            text, options.training, options.optimizer, arguments=options.arguments
        )
    if spec.kind == "network":
        return zoo.load(text, note=print_note)
    if frontends.is_workload(text):
        return frontends.from_workload(text, cluster=cluster)
    noun = files.load(text)
    if not isinstance(noun, Graph | Problem):
        raise FileError(
            f"{text}: holds {kind_name(noun)}: expected a graph, a problem or a workload"
        )
    return noun


def set_sizes(
    text: str, options: ModelOptions, sizes: Mapping[str, int]
) -> tuple[str, ModelOptions]:
    """A model and its options with other sizes: `batch`, `tokens`, `context`.

    Raises:
        ConfigError: The model has no such size.
    """
    if not sizes:
        return text, options
    spec = parse_spec(text)
    if spec.is_python:
        return text, replace(options, arguments=sizes)
    if spec.kind in ("onnx", "tensorflow"):
        return text, replace(options, dims={**options.dims, **sizes})
    if spec.kind != "network":
        names = ", ".join(f"--{name}" for name in sizes)
        raise ConfigError(f"{names}: {text!r} is a file whose sizes are fixed")
    from placewright import zoo

    entry = zoo.parse(text)[0]
    length = None if entry.network is None else entry.network.tokens
    words = []
    for name, size in sizes.items():
        argument = length if name == "tokens" and length is not None else name
        if argument not in entry.defaults:
            raise ConfigError(
                f"--{name}: {entry.name} has no such size: it has {', '.join(entry.defaults)}"
            )
        words.append(f"{argument}={size}")
    has_arguments = bool(text.partition(":")[2].strip())
    return f"{text}{',' if has_arguments else ':'}{','.join(words)}".replace("::", ":"), options


def check_training(spec: ModelSpec, training: bool, optimizer: str | None) -> None:
    """Raise ConfigError if --training or --optimizer is given for a model that is no Python file.

    Raises:
        PlacewrightError: Also if the text names no network.
    """
    from placewright import zoo

    if spec.is_python or not (training or optimizer is not None):
        return
    option, word = (
        ("--training", "training=true") if training else ("--optimizer", "optimizer=NAME")
    )
    what = "a file that defines its step itself"
    if spec.kind == "network":
        name = zoo.parse(spec.text)[0].name
        has = word.partition("=")[0] in zoo.ENTRIES[name].defaults
        what = "a built-in model" + (
            f": write {word} in its name" if has else ", a synthetic graph"
        )
    raise ConfigError(f"{option} is for model.py:build: {spec.text!r} is {what}")


def training_mode(text: str, training: bool, optimizer: str | None) -> tuple[bool, str | None]:
    """Whether a model's step trains, and with which optimizer.

    The options say so for a Python file; a built-in model's name says so itself.

    Raises:
        PlacewrightError: The text names no network.
    """
    if parse_spec(text).is_python:
        return training, optimizer
    from placewright import zoo
    from placewright.zoo.capture import DEFAULT_OPTIMIZER

    entry, chosen = zoo.parse(text)
    rule, size = chosen.pop("optimizer", DEFAULT_OPTIMIZER), chosen.pop("size", "full")
    if entry.network is None or not entry.network.arguments(str(size), **chosen).get("training"):
        return False, None
    return True, str(rule)
