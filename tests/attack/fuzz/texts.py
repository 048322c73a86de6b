"""Texts of the command line: units, cluster strings, and names of models with arguments."""

from __future__ import annotations

from random import Random
from typing import TYPE_CHECKING

from attack.fuzz import use
from attack.fuzz.batches import attack_of
from attack.fuzz.mutation import mutate_text

from placewright import Cluster, zoo
from placewright.errors import PlacewrightError
from placewright.frontends.model_spec import ModelSpec
from placewright.presets import device_presets, link_presets
from placewright.units import format_bytes, format_seconds, parse_bytes, parse_seconds

if TYPE_CHECKING:
    from collections.abc import Callable

attack = attack_of(__name__)
GENERATORS = ("chain", "diamond", "fork-join", "layered", "series-parallel", "branches", "offload")
"""Models that are made at once; others are captured, which takes seconds."""
_UNITS = (
    "b", "kB", "KiB", "MB", "GiB", "TB", "PiB", "ns", "us", "µs", "ms", "s", "min", "h", "m", "XB",
)  # fmt: skip
_NUMBERS = (
    "0",
    "1",
    "2",
    "3",
    "7",
    "16",
    "1.5",
    "0.25",
    "1e3",
    "-1",
    "1e400",
    "x",
    "",
    "007",
    "40000",
    "10000000000",
)
_DEVICES = [name for preset in device_presets() for name in (preset.name, *preset.also)]
_LINKS = [preset.name for preset in link_presets()]
_NETWORKS = [preset.name for preset in link_presets() if preset.kind == "network"]


def attempt(seed: int) -> str:
    """Read a text by the grammar of its kind, sometimes with a character changed."""
    rng = Random(seed)
    make: Callable[[Random], str]
    make, read = rng.choice(((_unit, _read_unit), (_cluster, _read_cluster), (_model, _read_model)))
    text = make(rng)
    if rng.random() < 0.35:
        text = mutate_text(text, rng)
    try:
        read(text, seed)
    except PlacewrightError as error:
        return use.refused(error)
    return "accepted"


def _unit(rng: Random) -> str:
    number = f"{rng.randrange(10 ** rng.randrange(1, 25))}"
    if rng.random() < 0.5:
        number += f".{rng.randrange(1000)}"
    if rng.random() < 0.2:
        number += f"e{rng.randrange(-99, 130)}"
    return number + rng.choice(("", " ", "  ")) + rng.choice(_UNITS)


def _read_unit(text: str, seed: int) -> None:
    if seed % 2:
        assert format_bytes(parse_bytes(text))
    else:
        assert format_seconds(parse_seconds(text))


def _cluster(rng: Random) -> str:
    def group() -> str:
        count = rng.choice(("", "", "1x", "2x", "3 x ", "8x", "40X"))
        suffix = rng.choice(("", "", "", "-nvlink", "-pcie", f"-{rng.choice(_LINKS)}"))
        device = rng.choice((rng.choice(_DEVICES), "cpu", "P100", "a100"))
        return f"{count}{device}{suffix}"

    def groups() -> str:
        return rng.choice(("+", " + ")).join(group() for _ in range(rng.randrange(1, 4)))

    if rng.random() < 0.6:
        return groups()
    network = rng.choice(_NETWORKS)
    nodes = [
        f"{rng.choice(('', '2x', '3x'))}({groups()})"
        + (f"@{network}" if rng.random() < 0.5 else "")
        for _ in range(rng.randrange(1, 3))
    ]
    return "+".join(nodes) + ("" if nodes[-1].endswith(network) else f"@{network}")


def _read_cluster(text: str, seed: int) -> None:
    cluster = Cluster.parse(text)
    assert len(cluster.links) == len(cluster) * (len(cluster) - 1)
    if seed % 20 == 0 and len(cluster) < 20:
        use.use_problem(use.Problem(zoo.load("diamond"), cluster), seed)


def _model(rng: Random) -> str:
    name = rng.choice(GENERATORS)
    defaults = zoo.ENTRIES[name].defaults
    words = []
    for key in rng.sample(list(defaults), min(len(defaults), rng.randrange(4))):
        default = defaults[key]
        near = [str(default), "1", "2", "3", rng.choice(_NUMBERS)]
        words.append(f"{key}={rng.choice(near)}")
    return f"{name}:{','.join(words)}" if words else name


def _read_model(text: str, seed: int) -> None:
    ModelSpec.parse(text, zoo.ENTRIES)
    entry, arguments = zoo.parse(text)
    if entry.network is None:
        graph = entry.build(**arguments)
        if seed % 50 == 0 and len(graph) < 500:
            use.use_graph(graph, seed)
