"""A network of the zoo and its arguments in, its graph out: captured once, then kept in a cache."""

from __future__ import annotations

import hashlib
import os
import sys
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING

from placewright import files
from placewright.errors import MissingDependency, PlacewrightError
from placewright.graph import Graph
from placewright.version import __version__

if TYPE_CHECKING:
    from collections.abc import Callable

    from placewright.zoo.networks import Network
    from placewright.zoo.networks.network import Value

OPTIMIZER = "sgd"


def capture(network: Network, note: Callable[[str], None] | None = None, **given: Value) -> Graph:
    """The graph of a network, from the cache if it was captured before.

    Args:
        note: Told in a line what takes long.
        given: The network's arguments, and `optimizer` for a training step.

    Raises:
        ConfigError: There is no such argument, or a value is out of range.
        MissingDependency: PyTorch is not installed.
    """
    optimizer = str(given.pop("optimizer", OPTIMIZER))
    size = str(given.pop("size", "full"))
    chosen = network.arguments(size, **given)
    title = title_of(network.name, {"size": size, **given, "optimizer": optimizer})
    path = _path(network.name, chosen, optimizer)
    graph = _cached(path)
    if graph is None:
        if note is not None:
            note(f"capturing {title}: this takes a while, once")
        graph = _captured(network, title, size, given, optimizer)
        _keep(graph, path)
    return graph if graph.name == title else Graph(title, graph.ops, graph.outputs)


def captured_before(network: Network) -> Graph | None:
    """The graph of a network with its own arguments, if the cache has it."""
    return _cached(_path(network.name, network.arguments(), OPTIMIZER))


def cache_folder() -> Path:
    """Where captured graphs are kept: the user's own cache folder."""
    home = Path.home()
    if sys.platform == "darwin":
        base = home / "Library" / "Caches"
    elif sys.platform == "win32":
        base = Path(os.environ.get("LOCALAPPDATA", home / "AppData" / "Local"))
    else:
        base = Path(os.environ.get("XDG_CACHE_HOME") or home / ".cache")
    return base / "placewright" / "graphs"


def _captured(
    network: Network, title: str, size: str, given: dict[str, Value], optimizer: str
) -> Graph:
    try:
        import torch
    except ModuleNotFoundError:
        raise MissingDependency("torch", "torch") from None
    from placewright.frontends import from_torch

    training = bool(network.arguments(size, **given).get("training", False))
    with torch.device("meta"):
        model, args, kwargs = network.build(size, **given)
    return from_torch(model, args, kwargs, training, optimizer if training else None, title)


def title_of(name: str, given: dict[str, Value]) -> str:
    """The text that loads this network again."""
    usual = {"size": "full", "optimizer": OPTIMIZER}
    said = {key: value for key, value in given.items() if usual.get(key) != value}
    words = [f"{key}={str(value).lower()}" for key, value in said.items()]
    return f"{name}:{','.join(words)}" if words else name


def _path(name: str, chosen: dict[str, Value], optimizer: str) -> Path:
    """A cache file, named after all that the graph depends on: this package's sources too."""
    try:
        torch = metadata.version("torch")
    except metadata.PackageNotFoundError:
        torch = ""
    digest = hashlib.blake2b(digest_size=12)
    digest.update(repr((name, sorted(chosen.items()), optimizer, __version__, torch)).encode())
    package = Path(__file__).parent.parent
    for folder in (package / "frontends", package / "zoo"):
        for source in sorted(folder.rglob("*.py")):
            digest.update(source.read_bytes())
    return cache_folder() / f"{name}-{digest.hexdigest()}.json.gz"


def _cached(path: Path) -> Graph | None:
    """The graph in a cache file; None if there is none or it is not what was written."""
    try:
        graph = files.load(path, "graph")
        fingerprint = _seal(path).read_text().strip()
    except (PlacewrightError, OSError, ValueError):
        return None
    return graph if isinstance(graph, Graph) and graph.fingerprint == fingerprint else None


def _keep(graph: Graph, path: Path) -> None:
    """Write a cache file; a cache that cannot be written is no cache, and no error."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        files.save(graph, path)
        _seal(path).write_text(graph.fingerprint)
    except (PlacewrightError, OSError):
        return


def _seal(path: Path) -> Path:
    """Beside a cache file, the fingerprint of the graph that was written to it."""
    return path.with_name(f"{path.name}.seal")
