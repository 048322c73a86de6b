"""The zoo: loads the Graph of a network by its name, e.g. `layered:ops=5000,seed=3`."""

from __future__ import annotations

import inspect
import math
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from placewright.errors import ConfigError, GraphError, nearest
from placewright.zoo import blocks, families, generators
from placewright.zoo.capture import DEFAULT_OPTIMIZER, capture_network
from placewright.zoo.networks import NETWORKS

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from placewright.graph import Graph
    from placewright.zoo.networks import Network
    from placewright.zoo.networks.network import ArgumentValue


@dataclass(frozen=True)
class Entry:
    """One network of the zoo.

    Args:
        build: Builds the graph; it imports optional packages when called.
        defaults: Its keyword arguments and their defaults, which also set the types.
        network: The PyTorch model whose graph is captured, if there is one.
    """

    name: str
    description: str
    build: Callable[..., Graph]
    defaults: Mapping[str, ArgumentValue]
    network: Network | None = None


def entry(name: str, description: str, build: Callable[..., Graph]) -> Entry:
    """An entry whose default arguments are those of the function that builds it."""
    parameters = inspect.signature(build).parameters.values()
    return Entry(
        name, description, build, {parameter.name: parameter.default for parameter in parameters}
    )


def network_entry(network: Network) -> Entry:
    """An entry whose graph is captured from a PyTorch model."""
    defaults = {**network.full, "size": "full", "optimizer": DEFAULT_OPTIMIZER}
    build = partial(capture_network, network)
    return Entry(network.name, network.description, build, defaults, network)


ENTRIES = {
    each.name: each
    for each in (
        *map(network_entry, NETWORKS.values()),
        entry("transformer", "decoder blocks at op level, in bfloat16", blocks.transformer),
        entry("offload", "a chain of 16 blocks of 352 MiB: more than a GPU holds", blocks.offload),
        entry("branches", "a convolutional network with four branches per module", blocks.branches),
        entry("chain", "random: each op reads the one before it", generators.chain),
        entry("diamond", "random: two ops between a first and a last", generators.diamond),
        entry("fork-join", "random: branches between forks and joins", generators.fork_join),
        entry("layered", "random: layers of ops that read the layer before", generators.layered),
        entry(
            "series-parallel",
            "random: edges repeatedly split in two or doubled",
            generators.series_parallel,
        ),
        entry("cifar10", "a family: cells sampled from ENAS's space", families.cifar10),
        entry("ptb", "a family: recurrent cells sampled from ENAS's space", families.ptb),
        entry("nmt", "a family: translation with varied unroll and batch", families.nmt),
    )
}


def names() -> list[tuple[str, str]]:
    """The name and a one-line description of each network."""
    return [(network.name, network.description) for network in ENTRIES.values()]


def load(text: str, note: Callable[[str], None] | None = None) -> Graph:
    """The graph of a network by name, with arguments after a colon: `nmt-4:batch=64,steps=40`.

    Args:
        note: Called with one line before a slow capture.

    Raises:
        GraphError: There is no network of that name.
        ConfigError: It has no such argument, or the value is of another type or out of range.
    """
    network, arguments = parse(text)
    graph = (
        network.build(**arguments)
        if network.network is None
        else network.build(note=note, **arguments)
    )
    counts = _step_counts(network, arguments)
    return graph.with_counts(**counts) if counts else graph


def _step_counts(network: Entry, arguments: Mapping[str, ArgumentValue]) -> dict[str, int]:
    """The samples and tokens that a step processes, as far as the arguments say it."""
    sizes: Mapping[str, ArgumentValue] = {**network.defaults, **arguments}
    tokens = sizes.get("tokens")
    if network.network is not None:
        options = {key: sizes[key] for key in arguments if key in network.network.full}
        sizes = network.network.arguments(str(arguments.get("size", "full")), **options)
        length = 1 if sizes.get("mode") == "decode" else sizes.get(network.network.tokens or "")
        tokens = None if length is None else int(sizes["batch"]) * int(length)
    counts = {"samples": sizes.get("batch"), "tokens": tokens}
    return {noun: int(count) for noun, count in counts.items() if count is not None}


def build_network(text: str) -> tuple[Any, Sequence[Any], Mapping[str, Any]]:
    """The PyTorch model of a network by name, and its arguments.

    Raises:
        GraphError: There is no network of that name, or it is not a PyTorch model.
        ConfigError: It has no such argument, or the value is of another type or out of range.
    """
    network, arguments = parse(text)
    if network.network is None:
        raise GraphError(
            f"{network.name} is a graph and not a PyTorch model: there is nothing to run"
        )
    arguments.pop("optimizer", None)
    size = str(arguments.pop("size", "full"))
    return network.network.build(size, **arguments)


def parse(text: str) -> tuple[Entry, dict[str, ArgumentValue]]:
    """The entry and the arguments in a text such as `nmt-4:batch=64`.

    Raises:
        GraphError: There is no network of that name.
        ConfigError: It has no such argument, or the value is of another type.
    """
    name, _, arguments = text.partition(":")
    network = ENTRIES.get(name.strip().replace("_", "-"))
    if network is None:
        raise GraphError(f"no network is named {name!r}: {nearest(name, ENTRIES)}")
    values: dict[str, ArgumentValue] = {}
    for part in arguments.split(",") if arguments.strip() else ():
        key, equals, value = (word.strip() for word in part.partition("="))
        if not equals:
            raise ConfigError(f"{network.name} is given {part!r}: expected arguments as name=value")
        if key not in network.defaults:
            raise ConfigError(
                f"{network.name} has no argument {key!r}: it has {', '.join(network.defaults)}"
            )
        values[key] = _parse_value(
            f"{network.name} is given {key} {value!r}", value, network.defaults[key]
        )
    return network, values


def _parse_value(subject: str, text: str, default: ArgumentValue) -> ArgumentValue:
    """A text as a value of the default's type."""
    if isinstance(default, str):
        return text
    if isinstance(default, bool):
        if text.lower() in ("true", "yes", "1"):
            return True
        if text.lower() in ("false", "no", "0"):
            return False
        raise ConfigError(f"{subject}: expected true or false")
    kind = "a whole number" if isinstance(default, int) else "a number"
    try:
        value = type(default)(text)
    except ValueError:
        raise ConfigError(f"{subject}: expected {kind}") from None
    if not math.isfinite(value):
        raise ConfigError(f"{subject}: expected {kind}")
    return value
