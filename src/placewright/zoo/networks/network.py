"""Network: the sizes of a zoo network, and how to build the model."""

from __future__ import annotations

import importlib
from dataclasses import dataclass
from typing import TYPE_CHECKING

from placewright.errors import ConfigError, MissingDependency, nearest

if TYPE_CHECKING:
    from collections.abc import Mapping

    from placewright.zoo.networks.experts import ExpertRule
    from placewright.zoo.networks.layers import NetworkCall

ArgumentValue = bool | int | float | str
TYPE_TEXTS = {bool: "true or false", int: "a whole number", float: "a number", str: "a word"}
CHOICES = {
    "mode": ("prefill", "decode"),
    "dtype": ("float32", "bfloat16", "float16"),
    "size": ("full", "test"),
}
"""The choices of arguments that are words."""
MAX_REPEATS = {"layers": 1000, "cells": 1000, "stacks": 1000, "experts": 1000}
"""The maximum of arguments that count repeated modules."""
MAX_VALUE = 100_000_000
"""The maximum of all other arguments."""


@dataclass(frozen=True)
class Network:
    """One network of the zoo.

    Args:
        module: The module of this package whose `build` builds it.
        full: All arguments of `build`, with their values at full size.
        test: Those that differ at test size: a forward and backward pass in less than a second.
        expert: The expert placement of its modules.
        cluster: The cluster of the paper that places it, if known.
        tokens: The argument that counts the tokens of a sample, where it is a language model.
    """

    name: str
    description: str
    module: str
    full: Mapping[str, ArgumentValue]
    test: Mapping[str, ArgumentValue]
    expert: ExpertRule
    cluster: str | None = None
    tokens: str | None = None

    def arguments(self, size: str = "full", **overrides: ArgumentValue) -> dict[str, ArgumentValue]:
        """All arguments of `build`: the overrides, the others of that size.

        Raises:
            ConfigError: There is no such argument or size, or a value is of another type, not one
                of its choices, or out of range.
        """
        self._check_value("size", size, "")
        for key, value in overrides.items():
            if key not in self.full:
                known_names = ", ".join(self.full)
                raise ConfigError(f"{self.name} has no argument {key!r}: it has {known_names}")
            self._check_value(key, value, self.full[key])
        return {**self.full, **(self.test if size == "test" else {}), **overrides}

    def build(self, size: str = "full", **overrides: ArgumentValue) -> NetworkCall:
        """The model, its positional and its keyword arguments.

        Raises:
            ConfigError: See `arguments`; or the values are inconsistent.
            MissingDependency: PyTorch is not installed.
        """
        arguments = self.arguments(size, **overrides)
        try:
            module = importlib.import_module(f"placewright.zoo.networks.{self.module}")
        except ModuleNotFoundError as error:
            if error.name != "torch":
                raise
            raise MissingDependency("torch", "torch") from None
        network_call: NetworkCall = module.build(**arguments)
        return network_call

    def _check_value(self, key: str, value: ArgumentValue, default: ArgumentValue) -> None:
        subject = f"{self.name} has {key} {value!r}"
        if type(value) is not type(default):
            raise ConfigError(f"{subject}: expected {TYPE_TEXTS[type(default)]}")
        if key in CHOICES and value not in CHOICES[key]:
            raise ConfigError(f"{subject}: {nearest(str(value), CHOICES[key])}")
        limit = MAX_REPEATS.get(key, MAX_VALUE)
        if type(value) is int and not 1 <= value <= limit:
            raise ConfigError(f"{subject}: expected 1 to {limit:,}")
        if type(value) is float and not 0 < value <= limit:
            raise ConfigError(f"{subject}: expected more than 0")
