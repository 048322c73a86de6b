"""Captures the graph of a zoo network, and caches it on disk."""

from __future__ import annotations

import hashlib
from dataclasses import replace
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING

from placewright import files
from placewright.cache import cache_folder
from placewright.errors import MissingDependency, PlacewrightError
from placewright.graph import Graph
from placewright.logs import log_duration
from placewright.version import __version__

if TYPE_CHECKING:
    from collections.abc import Callable

    from placewright.zoo.networks import Network
    from placewright.zoo.networks.network import ArgumentValue

DEFAULT_OPTIMIZER = "sgd"


def capture_network(
    network: Network, note: Callable[[str], None] | None = None, **overrides: ArgumentValue
) -> Graph:
    """The graph of a network, from the cache if it was captured before.

    Args:
        note: Called with one line before a slow capture.
        overrides: The network's arguments, and `optimizer` for a training step.

    Raises:
        ConfigError: There is no such argument, or a value is out of range.
        MissingDependency: PyTorch is not installed.
    """
    optimizer = str(overrides.pop("optimizer", DEFAULT_OPTIMIZER))
    size = str(overrides.pop("size", "full"))
    arguments = network.arguments(size, **overrides)
    title = title_of(network.name, {"size": size, **overrides, "optimizer": optimizer})
    path = _cache_path(network.name, arguments, optimizer)
    graph = _load_cached(path)
    if graph is None:
        if note is not None:
            note(f"capturing {title} (one-time; may take a minute)")
        with log_duration(f"capturing {title}"):
            graph = _capture(network, title, size, overrides, optimizer)
        _save_cached(graph, path)
    return graph if graph.name == title else replace(graph, name=title)


def cached_graph(network: Network) -> Graph | None:
    """The graph of a network with its default arguments, if it is cached."""
    return _load_cached(_cache_path(network.name, network.arguments(), DEFAULT_OPTIMIZER))


def _capture(
    network: Network, title: str, size: str, overrides: dict[str, ArgumentValue], optimizer: str
) -> Graph:
    try:
        import torch
    except ModuleNotFoundError:
        raise MissingDependency("torch", "torch") from None
    from placewright.frontends import from_torch

    training = bool(network.arguments(size, **overrides).get("training", False))
    with torch.device("meta"):
        model, args, kwargs = network.build(size, **overrides)
    return from_torch(model, args, kwargs, training, optimizer if training else None, title)


def title_of(name: str, arguments: dict[str, ArgumentValue]) -> str:
    """The text that loads this network again."""
    defaults = {"size": "full", "optimizer": DEFAULT_OPTIMIZER}
    non_defaults = {key: value for key, value in arguments.items() if defaults.get(key) != value}
    words = [f"{key}={str(value).lower()}" for key, value in non_defaults.items()]
    return f"{name}:{','.join(words)}" if words else name


def _cache_path(name: str, arguments: dict[str, ArgumentValue], optimizer: str) -> Path:
    """A cache file, named after everything that the graph depends on, sources included."""
    try:
        torch_version = metadata.version("torch")
    except metadata.PackageNotFoundError:
        torch_version = ""
    digest = hashlib.blake2b(digest_size=12)
    digest.update(
        repr((name, sorted(arguments.items()), optimizer, __version__, torch_version)).encode()
    )
    package = Path(__file__).parent.parent
    for folder in (package / "frontends", package / "zoo"):
        for source in sorted(folder.rglob("*.py")):
            digest.update(source.read_bytes())
    return cache_folder("graphs") / f"{name}-{digest.hexdigest()}.json.gz"


def _load_cached(path: Path) -> Graph | None:
    """The graph in a cache file; None if it is missing or damaged."""
    try:
        graph = files.load(path, "graph")
        fingerprint = _fingerprint_path(path).read_text().strip()
    except (PlacewrightError, OSError, ValueError):
        return None
    return graph if isinstance(graph, Graph) and graph.fingerprint == fingerprint else None


def _save_cached(graph: Graph, path: Path) -> None:
    """Write a cache file; failing to is not an error."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        files.save(graph, path)
        _fingerprint_path(path).write_text(graph.fingerprint)
    except (PlacewrightError, OSError):
        return


def _fingerprint_path(path: Path) -> Path:
    """The file next to a cache file with the fingerprint of its graph."""
    return path.with_name(f"{path.name}.seal")
