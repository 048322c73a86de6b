"""Checkpoints: a trainer in, a JSON file and its tensors out, from which a trainer goes on.

What is drawn depends on the seed and the update's number alone, so weights, Adam's averages, the
baseline and the best plans are all there is to keep: a run that goes on ends as one never stopped.
"""

from __future__ import annotations

import hashlib
import math
from dataclasses import asdict, fields
from typing import TYPE_CHECKING, Any

import numpy as np

from placewright.errors import FileError
from placewright.files.header import body, head
from placewright.policies import Episodes
from placewright.policies.storage import load_with_tensors, save_with_tensors
from placewright.training.trainer import Row

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    import torch

    from placewright.training.environment import Environment
    from placewright.training.trainer import Trainer

_POLICY, _ADAM, _ELITE = "policy.", "adam.", "elite."


def save_checkpoint(trainer: Trainer, path: Path, more: Mapping[str, Any] | None = None) -> None:
    """Write where training stands; the file is afterwards the new one or untouched.

    Args:
        more: Plain data to keep beside it, such as what was asked for.

    Raises:
        FileError: It cannot be written there.
    """
    data = {
        **head("training"),
        **_identity(trainer),
        "policy": trainer.policy.name,
        "config": trainer.policy.config(),
        "updates": trainer.updates,
        "over": trainer.over,
        "baseline": trainer.baseline.state(),
        "problems": [_environment(each) for each in trainer.environments],
        "likeliest": [[at, _plain(value)] for at, (_, value) in trainer.likeliest.items()],
        "rows": [[_plain(value) for value in asdict(row).values()] for row in trainer.rows],
        "more": dict(more or {}),
    }
    tensors = {f"{_POLICY}{key}": val for key, val in trainer.policy.state_dict().items()}
    for at, (mark, _) in trainer.likeliest.items():
        tensors[f"likeliest.{at}"] = _row(np.frombuffer(mark, dtype=np.int32))
    for at, environment in enumerate(trainer.environments):
        if environment.best is not None:
            tensors[f"best.{at}"] = _row(environment.best)
        if environment.order is not None:
            tensors[f"order.{at}"] = _numbers(environment.order)
    for at, episodes in trainer.elite.items():
        tensors |= _kept_episode(f"{_ELITE}{at}.", episodes)
    for number, averages in trainer.optimizer.state_dict()["state"].items():
        tensors |= {f"{_ADAM}{number}.{name}": value for name, value in averages.items()}
    save_with_tensors(path, data, {key: value.detach().cpu() for key, value in tensors.items()})


def read_checkpoint(path: Path) -> tuple[dict[str, Any], dict[str, torch.Tensor]]:
    """What a checkpoint holds; see `restore`.

    Raises:
        FileError: It is missing, damaged, or no checkpoint.
    """
    data, tensors = load_with_tensors(path)
    try:
        found = body(data, "training")
        if not isinstance(found.get("more"), dict):
            raise FileError('has no "more" object: expected a checkpoint as this release writes it')
        return found, tensors
    except FileError as error:
        raise FileError(f"{path}: {error}") from None


def restore(trainer: Trainer, data: dict[str, Any], tensors: dict[str, torch.Tensor]) -> None:
    """Stand where an equal trainer stood when its checkpoint was written.

    Raises:
        FileError: It had another recipe, seed, budget or problem, or the data are malformed.
    """
    for what, mine in _identity(trainer).items():
        if data.get(what) != mine:
            shown = f"{data.get(what)!r} there and {mine!r} here"
            raise FileError(
                f"the checkpoint is of another run: {what} is "
                f"{shown if len(shown) < 80 else 'not the same'}; begin a new one"
            )
    try:
        policy = {key: val for key, val in tensors.items() if key.startswith(_POLICY)}
        trainer.policy.load_state_dict({k.removeprefix(_POLICY): v for k, v in policy.items()})
        _restore_adam(trainer, tensors)
        trainer.updates, trainer.over = int(data["updates"]), bool(data["over"])
        trainer.baseline.restore(data["baseline"])
        for at, (environment, kept) in enumerate(
            zip(trainer.environments, data["problems"], strict=True)
        ):
            environment.evaluations = int(kept["evaluations"])
            environment.found_by = str(kept["found_by"])
            environment.seconds_before = float(kept["seconds"])
            environment.history = [
                (int(count), float(seconds), float(value))
                for count, seconds, value in kept["history"]
            ]
            if kept["key"] is not None:
                environment.key = (float(kept["key"][0]), float(kept["key"][1]))
                environment.best = _placement(environment, tensors[f"best.{at}"])
                order = tensors.get(f"order.{at}")
                environment.order = None if order is None else order.numpy().astype(np.float64)
        for at, value in data["likeliest"]:
            mark = _placement(trainer.environments[at], tensors[f"likeliest.{at}"])
            trainer.likeliest[int(at)] = mark.tobytes(), _number(value)
        for at in range(len(trainer.environments)):
            own = {k: v for k, v in tensors.items() if k.startswith(f"{_ELITE}{at}.")}
            if own:
                trainer.elite[at] = _read_episode(f"{_ELITE}{at}.", own)
        trainer.rows = [_read_row(row) for row in data["rows"]]
    except (KeyError, IndexError, TypeError, ValueError, RuntimeError, AttributeError) as error:
        reason = " ".join(str(error).split())[:200]
        raise FileError(f"the checkpoint is malformed: {reason}") from None


def _identity(trainer: Trainer) -> dict[str, Any]:
    """What must be the same for a run to go on."""
    return {
        "recipe": trainer.recipe.name,
        "settings": hashlib.blake2b(repr(trainer.recipe).encode(), digest_size=8).hexdigest(),
        "seed": trainer.seed,
        "plans": trainer.plans,
        "graphs": [
            f"{each.problem.graph.fingerprint} on {each.problem.cluster.fingerprint}"
            for each in trainer.environments
        ],
    }


def _environment(environment: Environment) -> dict[str, Any]:
    return {
        "evaluations": environment.evaluations,
        "seconds": environment.seconds,
        "key": None if environment.best is None else list(environment.key),
        "found_by": environment.found_by,
        "history": [list(each) for each in environment.history],
    }


def _kept_episode(name: str, episodes: Episodes) -> dict[str, torch.Tensor]:
    import torch

    own = {"device": episodes.device, "owner": episodes.owner, "log_prob": episodes.log_prob}
    drawn = {f"actions.{key}": value for key, value in episodes.actions.items()}
    return {f"{name}{key}": torch.as_tensor(value) for key, value in {**own, **drawn}.items()}


def _read_episode(name: str, tensors: dict[str, torch.Tensor]) -> Episodes:
    arrays = {key.removeprefix(name): value.numpy() for key, value in tensors.items()}
    drawn = {k.removeprefix("actions."): v for k, v in arrays.items() if k.startswith("actions.")}
    return Episodes(drawn, arrays["device"], arrays["owner"], arrays["log_prob"])


def _restore_adam(trainer: Trainer, tensors: dict[str, torch.Tensor]) -> None:
    averages: dict[int, dict[str, torch.Tensor]] = {}
    for key, value in tensors.items():
        if key.startswith(_ADAM):
            number, _, name = key.removeprefix(_ADAM).partition(".")
            averages.setdefault(int(number), {})[name] = value
    mine = trainer.optimizer.state_dict()
    trainer.optimizer.load_state_dict({**mine, "state": averages})


def _placement(environment: Environment, row: torch.Tensor) -> Any:
    device = row.numpy().astype(np.int32)
    if device.shape != (environment.problem.arrays.ops,):
        raise ValueError(f"a plan has shape {device.shape}")
    return device


def _row(device: Any) -> torch.Tensor:
    import torch

    return torch.as_tensor(np.array(device, dtype=np.int32))


def _numbers(values: Any) -> torch.Tensor:
    import torch

    return torch.as_tensor(np.array(values, dtype=np.float64))


def _plain(value: float) -> float | None:
    """JSON has no infinity and no NaN."""
    return value if math.isfinite(value) else None


def _number(value: float | None) -> float:
    return math.nan if value is None else float(value)


def _read_row(values: list[Any]) -> Row:
    update, plans, *rest = values
    if len(values) != len(fields(Row)):
        raise ValueError(f"a row has {len(values)} numbers")
    return Row(int(update), int(plans), *map(_number, rest))
