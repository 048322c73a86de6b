"""The zoo: a name such as `layered:ops=5000,seed=3` in, a Graph out."""

from __future__ import annotations

import inspect
import math
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from placewright.errors import ConfigError, GraphError, nearest
from placewright.zoo import blocks, families, generators
from placewright.zoo.capture import OPTIMIZER, capture
from placewright.zoo.networks import NETWORKS

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from placewright.graph import Graph
    from placewright.zoo.networks import Network

Value = bool | int | float | str


@dataclass(frozen=True)
class Entry:
    """One network of the zoo.

    Args:
        build: Makes the graph; what it needs beyond the core it imports when called.
        defaults: Its keyword arguments; a value given for one must be of the same type.
        network: Where its graph is captured from, which takes a while the first time.
    """

    name: str
    description: str
    build: Callable[..., Graph]
    defaults: Mapping[str, Value]
    network: Network | None = None


def entry(name: str, description: str, build: Callable[..., Graph]) -> Entry:
    """An entry whose default arguments are those of the function that builds it."""
    parameters = inspect.signature(build).parameters.values()
    return Entry(name, description, build, {each.name: each.default for each in parameters})


def network_entry(network: Network) -> Entry:
    """An entry whose graph is captured from a PyTorch model."""
    defaults = {**network.full, "size": "full", "optimizer": OPTIMIZER}
    build = partial(capture, network)
    return Entry(network.name, network.description, build, defaults, network)


ENTRIES = {
    each.name: each
    for each in (
        *map(network_entry, NETWORKS.values()),
        entry("transformer", "decoder blocks at op level, in bfloat16", blocks.transformer),
        entry("offload", "a chain of 16 blocks of 352 MiB: more than a GPU holds", blocks.offload),
        entry("branches", "a convolutional network with four branches a module", blocks.branches),
        entry("chain", "random: each op reads the one before it", generators.chain),
        entry("diamond", "random: two ops between a first and a last", generators.diamond),
        entry("fork-join", "random: branches between forks and joins", generators.fork_join),
        entry("layered", "random: layers of ops that read the layer before", generators.layered),
        entry(
            "series-parallel",
            "random: edges split in two or doubled, over and over",
            generators.series_parallel,
        ),
        entry("cifar10", "a family of 32: cells drawn from ENAS's space", families.cifar10),
        entry("ptb", "a family of 32: recurrent cells drawn from ENAS's space", families.ptb),
        entry("nmt", "a family of 32: translation, unroll and batch varied", families.nmt),
    )
}


def names() -> list[tuple[str, str]]:
    """The name of each network and one line on it."""
    return [(each.name, each.description) for each in ENTRIES.values()]


def load(text: str, note: Callable[[str], None] | None = None) -> Graph:
    """The network of that name, with arguments after a colon: `nmt-4:batch=64,steps=40`.

    Args:
        note: Told in a line what takes long.

    Raises:
        GraphError: There is no network of that name.
        ConfigError: It has no such argument, or the value is of another type or out of range.
    """
    found, given = parse(text)
    return found.build(**given) if found.network is None else found.build(note=note, **given)


def built(text: str) -> tuple[Any, Sequence[Any], Mapping[str, Any]]:
    """The PyTorch model of the network of that name, and what it is called with.

    Raises:
        GraphError: There is no network of that name, or it is not a PyTorch model.
        ConfigError: It has no such argument, or the value is of another type or out of range.
    """
    found, given = parse(text)
    if found.network is None:
        raise GraphError(f"{found.name} is a graph and no PyTorch model: there is nothing to run")
    given.pop("optimizer", None)
    size = str(given.pop("size", "full"))
    return found.network.build(size, **given)


def parse(text: str) -> tuple[Entry, dict[str, Value]]:
    """The entry that a text such as `nmt-4:batch=64` names, and the arguments that it gives.

    Raises:
        GraphError: There is no network of that name.
        ConfigError: It has no such argument, or the value is of another type.
    """
    name, _, arguments = text.partition(":")
    found = ENTRIES.get(name.strip().replace("_", "-"))
    if found is None:
        raise GraphError(f"no network is named {name!r}: {nearest(name, ENTRIES)}")
    given: dict[str, Value] = {}
    for part in arguments.split(",") if arguments.strip() else ():
        key, equals, value = (word.strip() for word in part.partition("="))
        if not equals:
            raise ConfigError(f"{found.name} is given {part!r}: expected arguments as name=value")
        if key not in found.defaults:
            raise ConfigError(
                f"{found.name} has no argument {key!r}: it has {', '.join(found.defaults)}"
            )
        given[key] = _value(f"{found.name} is given {key} {value!r}", value, found.defaults[key])
    return found, given


def _value(what: str, text: str, default: Value) -> Value:
    """A text as a value of the default's type."""
    if isinstance(default, str):
        return text
    if isinstance(default, bool):
        if text.lower() in ("true", "yes", "1"):
            return True
        if text.lower() in ("false", "no", "0"):
            return False
        raise ConfigError(f"{what}: expected true or false")
    kind = "a whole number" if isinstance(default, int) else "a number"
    try:
        value = type(default)(text)
    except ValueError:
        raise ConfigError(f"{what}: expected {kind}") from None
    if not math.isfinite(value):
        raise ConfigError(f"{what}: expected {kind}")
    return value
