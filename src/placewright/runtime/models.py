"""A model's name or file, as typed, in, a Program that can be run op by op out."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from placewright import zoo
from placewright.errors import ConfigError
from placewright.frontends.python_file import build_model
from placewright.runtime.machine import load_torch
from placewright.zoo.capture import OPTIMIZER, title_of

if TYPE_CHECKING:
    from placewright.runtime.program.program import Program


def find_program(text: str, training: bool = False, optimizer: str | None = None) -> Program:
    """The program of `model.py:build`, or of a network of the zoo, which is built without data.

    Args:
        training: Of a Python file's model: a training step, not one call.
        optimizer: Of such a step: sgd, momentum or adam.

    Raises:
        PlacewrightError: The name is unknown, the file is bad, or it is no PyTorch model.
    """
    torch = load_torch()
    from placewright.runtime.program.program import program_of

    if text.partition(":")[0].endswith(".py"):
        model, args, kwargs = build_model(text)
        return program_of(model, args, kwargs, training, optimizer)
    entry, given = zoo.parse(text)
    if entry.network is None:
        raise ConfigError(
            f"{text} is drawn op by op and cannot be run: expected a model.py:build, or a network "
            "of the zoo that is a PyTorch model"
        )
    chosen: dict[str, Any] = dict(given)
    rule = str(chosen.pop("optimizer", OPTIMIZER))
    size = str(chosen.pop("size", "full"))
    steps = bool(entry.network.arguments(size, **chosen).get("training", False))
    with torch.device("meta"):
        model, args, kwargs = entry.network.build(size, **chosen)
    title = title_of(entry.network.name, {"size": size, **chosen, "optimizer": rule})
    return program_of(model, args, kwargs, steps, rule if steps else None, title)
