"""Public workload files and splits of them."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from random import Random
from typing import Any

from attack.fuzz import use
from attack.fuzz.batches import attack_of
from attack.fuzz.mutation import mutate_data, mutate_text
from workload_files import PROFILE, SPLIT, TRAINING

from placewright.errors import PlacewrightError
from placewright.frontends import from_workload, is_split, is_workload, read_split

attack = attack_of(__name__)


def attempt(seed: int) -> str:
    """Read a mutated workload, profile or split."""
    rng = Random(seed)
    try:
        match rng.randrange(3):
            case 0:
                text = json.dumps(mutate_data(TRAINING, rng, rng.choice((0, 1, 1, 2))))
                return use.use_problem(_read(text, rng), seed)
            case 1:
                return use.use_problem(_read(_profile(rng), rng), seed)
            case _:
                path = _write(_split(rng), "split.json")
                is_split(path)
                read_split(_training(), path)
                return "accepted"
    except PlacewrightError as error:
        return use.refused(error)


def _read(text: str, rng: Random) -> Any:
    path = _write(text, "work.json")
    is_workload(path)
    return from_workload(path, training=rng.random() < 0.7)


def _profile(rng: Random) -> str:
    """A profile with a line changed, moved or left out, or a number in it."""
    lines = PROFILE.splitlines()
    for _ in range(rng.choice((0, 1, 1, 2))):
        at = rng.randrange(len(lines))
        match rng.randrange(5):
            case 0:
                lines.insert(at, lines.pop(rng.randrange(len(lines))))
            case 1:
                words = lines[at].split("=")
                number = rng.choice(("0", "-1", "1e9", "1e400", "nan", "[1; 2]", "[]", "12.5"))
                words[-1] = number
                lines[at] = "=".join(words)
            case 2:
                ends = rng.sample(range(1, 6), 2)
                lines[at] = f"\tnode{ends[0]} -- node{ends[1]}"
            case 3 if len(lines) > 1:
                del lines[at]
            case _:
                lines[at] = mutate_text(lines[at], rng)
    return "\n".join(lines) + "\n"


def _split(rng: Random) -> str:
    """A split by its grammar, most often of every node once; then sometimes mutated."""
    units = [[1, 11], [2, 12], [3, 13]]
    entries: list[list[Any]] = [[] for _ in range(3)]
    for unit in units:
        device = rng.randrange(3)
        entries[device] += unit if rng.random() < 0.6 else [rng.choice(unit)]
    rng.shuffle(entries[0])
    data: Any = {
        "fpgas": [{"nodes": entries[0]}, {"nodes": entries[1]}],
        "cpus": [{"nodes": entries[2]}],
    }
    if rng.random() < 0.1:
        data = SPLIT
    if rng.random() < 0.6:
        data = mutate_data(data, rng, rng.choice((1, 1, 2)))
    return json.dumps(data)


def _write(text: str, name: str) -> Path:
    path = Path(name)
    path.write_bytes(text.encode(errors="surrogatepass"))
    return path


@cache
def _training() -> Any:
    return from_workload(_write(json.dumps(TRAINING), "training.json"))
