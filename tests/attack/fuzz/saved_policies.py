"""Policies: settings, and tensors whose digest is right."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from random import Random
from typing import Any

import torch
from attack.fuzz import corpus, use
from attack.fuzz.batches import attack_of
from attack.fuzz.mutation import mutate_data

from placewright import policies
from placewright.errors import PlacewrightError
from placewright.files.storage import write_data
from placewright.policies.tensor_files import _digest, load_with_tensors, save_with_tensors
from placewright.policies.transfer.linear import LinearPolicy

attack = attack_of(__name__)
torch.set_num_threads(1)
SIZES: dict[str, dict[str, Any]] = {
    "colocrl": {"grouping": "coarse", "max_groups": 8, "hidden": 8},
    "go": {"hidden": 8, "segment": 4, "heads": 2, "tasks": ("device", "priority"), "drawn": 0},
    "hierarchical": {"groups": 4, "hidden": 8, "grouper": 4},
    "pair": {"grouping": "coarse", "max_groups": 8},
    "placeto": {"grouping": "coarse", "max_groups": 8, "hidden": 8, "rounds": 2},
    "placeto-any": {"grouping": "coarse", "max_groups": 8, "hidden": 8, "shipped": False},
}


@cache
def saved(name: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """The data and the tensors of a small policy."""
    policy = policies.find_config(name)(**SIZES[name]).build(corpus.problem())
    path = Path(f"{name}.json")
    policies.save(policy, path)
    return load_with_tensors(path)


def attempt(seed: int) -> str:
    """Load a mutated policy, and let it act."""
    rng = Random(seed)
    name = rng.choice(list(SIZES))
    path = Path("policy.json")
    try:
        if name == "pair" and rng.random() < 0.5:
            policy: Any = _linear(rng, path)
        else:
            _write(rng, name, path)
            policy = policies.load(path)
        if policy.name in ("pair", "colocrl", "hierarchical", "placeto") or seed % 4 == 0:
            policy.act(corpus.problem(), 2, seed=0)
    except PlacewrightError as error:
        return use.refused(error)
    return "accepted"


def _linear(rng: Random, path: Path) -> LinearPolicy:
    fresh = policies.find_config("pair")(**SIZES["pair"]).build(corpus.problem())
    fresh.save(path)
    data = mutate_data(json.loads(path.read_text()), rng, rng.choice((0, 1, 1, 2)))
    path.write_text(json.dumps(data))
    return LinearPolicy.load(path)


def _write(rng: Random, name: str, path: Path) -> None:
    data, tensors = saved(name)
    for old in Path().glob("policy.*.safetensors"):
        old.unlink()
    changed = mutate_data(data, rng, rng.choice((0, 1, 1, 2))) if rng.random() < 0.7 else data
    if not isinstance(changed, dict):
        changed = {}
    tensors = dict(tensors)
    if rng.random() < 0.4 and tensors:
        key = rng.choice(list(tensors))
        tensor = tensors[key]
        match rng.randrange(6):
            case 0:
                del tensors[key]
            case 1:
                tensors[key] = tensor.to(rng.choice((torch.float64, torch.int64, torch.bool)))
            case 2:
                tensors[key] = tensor.flatten()[:1]
            case 3:
                tensors[key] = tensor * rng.choice((0.0, 1e6, float("nan"), float("inf"), 1e38))
            case 4:
                tensors[rng.choice(("", "x", f"{key}.x"))] = tensor.clone()
            case _:
                tensors[key] = tensor + 1
    changed = {key: value for key, value in changed.items() if key != "tensors"}
    try:
        save_with_tensors(path, changed, tensors)
    except (ValueError, PlacewrightError):  # NaN, which no file can hold
        save_with_tensors(path, data, tensors)
    if rng.random() < 0.1:  # damaged, with the right digest
        (file,) = Path().glob("policy.*.safetensors")
        content = bytearray(file.read_bytes())
        for _ in range(3):
            content[rng.randrange(min(len(content), 300))] = rng.randrange(256)
        new_name = f"policy.{_digest(bytes(content))}.safetensors"
        Path(new_name).write_bytes(bytes(content))
        data = json.loads(path.read_text())
        write_data({**data, "tensors": new_name}, path)
