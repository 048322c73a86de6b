"""Completes names on the command line: models, clusters, methods, recipes, runtimes and keys."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

Completions = list[tuple[str, str]]


def complete_model(incomplete: str) -> Completions:
    """Built-in models with their descriptions, and files that may hold a model."""
    from placewright import zoo

    models = [(name, about) for name, about in zoo.names() if name.startswith(incomplete)]
    suffixes = (".py", ".onnx", ".json", ".pb", ".pbtxt", ".toml")
    return models + [(path, "") for path in _paths(incomplete, suffixes)]


def complete_cluster(incomplete: str) -> Completions:
    """The device or link that is being typed, after what is there: `2xP100+c` gives `…+cpu`."""
    from placewright import presets

    devices = [(each.name, each.kind) for each in presets.device_presets()]
    links = [(each.name, each.kind) for each in presets.link_presets()]
    before, word = _split_last_name(incomplete, "+(@")
    here = [] if before else [("here", "this machine, measured")]
    found = _names_after(before, word, links if before.endswith("@") else devices + here)
    if "-" in word:  # a link between GPUs: 4xV100-nvlink
        found += _names_after(*_split_last_name(incomplete, "-"), links)
    return found + [(path, "") for path in _paths(incomplete, (".toml", ".json"))]


def complete_method(incomplete: str) -> Completions:
    """Methods and trained policies, and folders of trained runs."""
    names = [name for name in method_names() if name.startswith(incomplete)]
    folders = [path for path in _paths(incomplete, ()) if path.endswith("/")]
    return [(name, "") for name in [*names, *folders]]


def complete_methods(incomplete: str) -> Completions:
    """The last of several methods with commas between them."""
    before, comma, word = incomplete.rpartition(",")
    names = ["all", *method_names()] if not before else method_names()
    return [(f"{before}{comma}{name}", "") for name in names if name.startswith(word)]


def complete_recipe(incomplete: str) -> Completions:
    """Recipes of `train`."""
    from placewright.cli.names import RECIPE_NAMES

    return [(name, "") for name in RECIPE_NAMES if name.startswith(incomplete)]


def complete_target(incomplete: str) -> Completions:
    """Runtimes that `export` writes for."""
    from placewright.cli.names import TARGET_NAMES

    return [(name, "") for name in TARGET_NAMES if name.startswith(incomplete)]


def complete_key(incomplete: str) -> Completions:
    """Keys of stored plans with the models they are for; none if the store cannot be read."""
    from placewright.errors import PlacewrightError
    from placewright.store import open_store

    try:
        records = open_store().list_plans()
    except PlacewrightError:
        return []
    return [(each.key, each.name) for each in records if each.key.startswith(incomplete)]


def method_names() -> list[str]:
    """What `--method` takes, without the folders of trained runs."""
    from placewright.cli.names import METHOD_NAMES, POLICY_NAMES

    return [*METHOD_NAMES, *POLICY_NAMES]


def _split_last_name(text: str, separators: str) -> tuple[str, str]:
    """What comes before the last device or link of a cluster, and that name as far as typed."""
    match = re.search(
        rf"(?:^|[{re.escape(separators)}])(?:\d+x)?(?=[^{re.escape(separators)}]*$)", text
    )
    end = match.end() if match else 0
    return text[:end], text[end:]


def _names_after(before: str, word: str, known: Completions) -> Completions:
    return [
        (before + name, about) for name, about in known if name.lower().startswith(word.lower())
    ]


def _paths(incomplete: str, suffixes: tuple[str, ...]) -> Iterator[str]:
    """Folders, which end in `/`, and files with one of the suffixes."""
    import os

    folder, name = os.path.split(incomplete)
    try:
        entries: Iterable[os.DirEntry[str]] = sorted(
            os.scandir(folder or "."), key=lambda entry: entry.name
        )
    except OSError:
        return
    for entry in entries:
        if not entry.name.startswith(name) or (entry.name.startswith(".") and not name):
            continue
        path = os.path.join(folder, entry.name)
        if entry.is_dir():
            yield f"{path}/"
        elif entry.name.endswith(suffixes):
            yield path
