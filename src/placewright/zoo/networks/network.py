"""What the zoo knows of a network: a size and some arguments in, the model out."""

from __future__ import annotations

import importlib
from dataclasses import dataclass
from typing import TYPE_CHECKING

from placewright.errors import ConfigError, MissingDependency, nearest

if TYPE_CHECKING:
    from collections.abc import Mapping

    from placewright.zoo.networks.experts import Expert
    from placewright.zoo.networks.layers import Built

Value = bool | int | float | str
TYPES = {bool: "true or false", int: "a whole number", float: "a number", str: "a word"}
WORDS = {
    "mode": ("prefill", "decode"),
    "dtype": ("float32", "bfloat16", "float16"),
    "size": ("full", "test"),
}
"""The arguments that are words, and the words they can be."""
MOST = {"layers": 1000, "cells": 1000, "stacks": 1000, "experts": 1000}
"""The largest values of arguments that tell how often something is repeated."""
LARGEST = 100_000_000
"""The largest value of any other."""


@dataclass(frozen=True)
class Network:
    """One network of the zoo.

    Args:
        module: The module of this package whose `build` makes it.
        full: All arguments of `build`, with their values at full size.
        test: Those that differ at test size: a forward and backward pass in less than a second.
        expert: Where people put its modules.
        cluster: What the paper that places it ran on, as far as it is known.
    """

    name: str
    description: str
    module: str
    full: Mapping[str, Value]
    test: Mapping[str, Value]
    expert: Expert
    cluster: str | None = None

    def arguments(self, size: str = "full", **given: Value) -> dict[str, Value]:
        """All arguments of `build`: those given, the others as that size has them.

        Raises:
            ConfigError: There is no such argument or size, or a value is of another type, no word
                that it can be, or out of range.
        """
        self._check("size", size, "")
        for key, value in given.items():
            if key not in self.full:
                known = ", ".join(self.full)
                raise ConfigError(f"{self.name} has no argument {key!r}: it has {known}")
            self._check(key, value, self.full[key])
        return {**self.full, **(self.test if size == "test" else {}), **given}

    def build(self, size: str = "full", **given: Value) -> Built:
        """The model, its positional and its keyword arguments.

        Raises:
            ConfigError: See `arguments`; or the values do not go together.
            MissingDependency: PyTorch is not installed.
        """
        chosen = self.arguments(size, **given)
        try:
            module = importlib.import_module(f"placewright.zoo.networks.{self.module}")
        except ModuleNotFoundError as error:
            if error.name != "torch":
                raise
            raise MissingDependency("torch", "torch") from None
        built: Built = module.build(**chosen)
        return built

    def _check(self, key: str, value: Value, default: Value) -> None:
        what = f"{self.name} has {key} {value!r}"
        if type(value) is not type(default):
            raise ConfigError(f"{what}: expected {TYPES[type(default)]}")
        if key in WORDS and value not in WORDS[key]:
            raise ConfigError(f"{what}: {nearest(str(value), WORDS[key])}")
        most = MOST.get(key, LARGEST)
        if type(value) is int and not 1 <= value <= most:
            raise ConfigError(f"{what}: expected 1 to {most:,}")
        if type(value) is float and not 0 < value <= most:
            raise ConfigError(f"{what}: expected more than 0")
