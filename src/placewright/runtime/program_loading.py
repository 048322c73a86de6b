"""Builds a runnable Program from the text of a model: a network name or a Python file."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from placewright import zoo
from placewright.errors import ConfigError
from placewright.frontends.model_spec import ModelSpec
from placewright.frontends.python_file import build_model
from placewright.runtime.machine import load_torch
from placewright.zoo.capture import DEFAULT_OPTIMIZER, title_of

if TYPE_CHECKING:
    from placewright.runtime.program.program import Program


def find_program(text: str, training: bool = False, optimizer: str | None = None) -> Program:
    """The program of `model.py:build`, or of a network of the zoo, which is built without data.

    Args:
        training: (Python files only) Capture a training step, not one call.
        optimizer: Its optimizer: sgd, momentum or adam.

    Raises:
        PlacewrightError: The name is unknown, the file is invalid, or it is not a PyTorch model.
    """
    torch = load_torch()
    from placewright.runtime.program.program import build_program

    if ModelSpec.parse(text).is_python:
        model, args, kwargs = build_model(text)
        return build_program(model, args, kwargs, training, optimizer)
    entry, options = zoo.parse(text)
    if entry.network is None:
        raise ConfigError(
            f"{text} is synthetic and cannot be run: expected a model.py:build, or a network "
            "of the zoo that is a PyTorch model"
        )
    arguments: dict[str, Any] = dict(options)
    optimizer_name = str(arguments.pop("optimizer", DEFAULT_OPTIMIZER))
    size = str(arguments.pop("size", "full"))
    is_training = bool(entry.network.arguments(size, **arguments).get("training", False))
    with torch.device("meta"):
        model, args, kwargs = entry.network.build(size, **arguments)
    title = title_of(entry.network.name, {"size": size, **arguments, "optimizer": optimizer_name})
    return build_program(
        model, args, kwargs, is_training, optimizer_name if is_training else None, title
    )
