"""Saves and restores training checkpoints: a JSON file and its tensors.

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
from placewright.files.header import body, make_header
from placewright.policies import Episodes
from placewright.policies.storage import load_with_tensors, save_with_tensors
from placewright.training.trainer import UpdateLog

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    import torch

    from placewright.training.environment import Environment
    from placewright.training.trainer import Trainer

_POLICY, _ADAM, _ELITE = "policy.", "adam.", "elite."


def save_checkpoint(
    trainer: Trainer, path: Path, metadata: Mapping[str, Any] | None = None
) -> None:
    """Write where training stands; the file is afterwards the new one or untouched.

    Args:
        metadata: Plain data to keep beside it, such as what was asked for.

    Raises:
        FileError: It cannot be written there.
    """
    data = {
        **make_header("training"),
        **_identity(trainer),
        "policy": trainer.policy.name,
        "config": trainer.policy.to_config(),
        "updates": trainer.updates,
        "over": trainer.finished,
        "baseline": trainer.baseline.state(),
        "problems": [
            _environment_record(problem_environment) for problem_environment in trainer.environments
        ],
        "likeliest": [
            [index, _to_json(value)] for index, (_, value) in trainer.greedy_plans.items()
        ],
        "rows": [[_to_json(value) for value in asdict(row).values()] for row in trainer.log],
        "more": dict(metadata or {}),
    }
    tensors = {f"{_POLICY}{key}": val for key, val in trainer.policy.state_dict().items()}
    for index, (placement_bytes, _) in trainer.greedy_plans.items():
        tensors[f"likeliest.{index}"] = _int_tensor(np.frombuffer(placement_bytes, dtype=np.int32))
    for index, environment in enumerate(trainer.environments):
        if environment.best_placement is not None:
            tensors[f"best.{index}"] = _int_tensor(environment.best_placement)
        if environment.best_priority is not None:
            tensors[f"order.{index}"] = _float_tensor(environment.best_priority)
    for index, episodes in trainer.best_episodes.items():
        tensors |= _episode_tensors(f"{_ELITE}{index}.", episodes)
    for parameter, moments in trainer.optimizer.state_dict()["state"].items():
        tensors |= {f"{_ADAM}{parameter}.{name}": value for name, value in moments.items()}
    save_with_tensors(path, data, {key: value.detach().cpu() for key, value in tensors.items()})


def read_checkpoint(path: Path) -> tuple[dict[str, Any], dict[str, torch.Tensor]]:
    """What a checkpoint holds; see `restore`.

    Raises:
        FileError: It is missing, damaged, or no checkpoint.
    """
    data, tensors = load_with_tensors(path)
    try:
        checkpoint = body(data, "training")
        if data["version"] == 1:  # its digest of the settings was made of names of that version
            checkpoint.pop("settings", None)
        if not isinstance(checkpoint.get("more"), dict):
            raise FileError('has no "more" object: expected a checkpoint as this release writes it')
        return checkpoint, tensors
    except FileError as error:
        raise FileError(f"{path}: {error}") from None


def restore(trainer: Trainer, data: dict[str, Any], tensors: dict[str, torch.Tensor]) -> None:
    """Stand where an equal trainer stood when its checkpoint was written.

    Raises:
        FileError: It had another recipe, seed, budget or problem, or the data are malformed.
    """
    for setting, expected in _identity(trainer).items():
        if setting == "settings" and setting not in data:
            continue
        if data.get(setting) != expected:
            difference = f"{data.get(setting)!r} there and {expected!r} here"
            raise FileError(
                f"the checkpoint is of another run: {setting} is "
                f"{difference if len(difference) < 80 else 'not the same'}; begin a new one"
            )
    try:
        policy_tensors = {key: val for key, val in tensors.items() if key.startswith(_POLICY)}
        trainer.policy.load_state_dict(
            {k.removeprefix(_POLICY): v for k, v in policy_tensors.items()}
        )
        _restore_adam(trainer, tensors)
        trainer.updates, trainer.finished = int(data["updates"]), bool(data["over"])
        trainer.baseline.restore(data["baseline"])
        for index, (environment, record) in enumerate(
            zip(trainer.environments, data["problems"], strict=True)
        ):
            environment.evaluations = int(record["evaluations"])
            environment.found_by = str(record["found_by"])
            environment.earlier_seconds = float(record["seconds"])
            environment.history = [
                (int(count), float(seconds), float(value))
                for count, seconds, value in record["history"]
            ]
            if record["key"] is not None:
                environment.best_key = (float(record["key"][0]), float(record["key"][1]))
                environment.best_placement = _read_placement(environment, tensors[f"best.{index}"])
                order = tensors.get(f"order.{index}")
                environment.best_priority = (
                    None if order is None else order.numpy().astype(np.float64)
                )
        for index, value in data["likeliest"]:
            greedy_placement = _read_placement(
                trainer.environments[index], tensors[f"likeliest.{index}"]
            )
            trainer.greedy_plans[int(index)] = greedy_placement.tobytes(), _from_json(value)
        for index in range(len(trainer.environments)):
            episode_tensors = {
                k: v for k, v in tensors.items() if k.startswith(f"{_ELITE}{index}.")
            }
            if episode_tensors:
                trainer.best_episodes[index] = _read_episode(f"{_ELITE}{index}.", episode_tensors)
        trainer.log = [_read_update(values) for values in data["rows"]]
    except (KeyError, IndexError, TypeError, ValueError, RuntimeError, AttributeError) as error:
        reason = " ".join(str(error).split())[:200]
        raise FileError(f"the checkpoint is malformed: {reason}") from None


def _identity(trainer: Trainer) -> dict[str, Any]:
    """What must be the same for a run to go on."""
    return {
        "recipe": trainer.recipe.name,
        "settings": hashlib.blake2b(repr(trainer.recipe).encode(), digest_size=8).hexdigest(),
        "seed": trainer.seed,
        "plans": trainer.max_evaluations,
        "graphs": [
            f"{environment.problem.graph.fingerprint} on {environment.problem.cluster.fingerprint}"
            for environment in trainer.environments
        ],
    }


def _environment_record(environment: Environment) -> dict[str, Any]:
    return {
        "evaluations": environment.evaluations,
        "seconds": environment.seconds,
        "key": None if environment.best_placement is None else list(environment.best_key),
        "found_by": environment.found_by,
        "history": [list(improvement) for improvement in environment.history],
    }


def _episode_tensors(prefix: str, episodes: Episodes) -> dict[str, torch.Tensor]:
    import torch

    arrays = {
        "device": episodes.placements,
        "owner": episodes.episode_of,
        "log_prob": episodes.log_prob,
    }
    actions = {f"actions.{key}": value for key, value in episodes.actions.items()}
    return {
        f"{prefix}{key}": torch.as_tensor(value) for key, value in {**arrays, **actions}.items()
    }


def _read_episode(prefix: str, tensors: dict[str, torch.Tensor]) -> Episodes:
    arrays = {key.removeprefix(prefix): value.numpy() for key, value in tensors.items()}
    actions = {k.removeprefix("actions."): v for k, v in arrays.items() if k.startswith("actions.")}
    return Episodes(actions, arrays["device"], arrays["owner"], arrays["log_prob"])


def _restore_adam(trainer: Trainer, tensors: dict[str, torch.Tensor]) -> None:
    moments: dict[int, dict[str, torch.Tensor]] = {}
    for key, value in tensors.items():
        if key.startswith(_ADAM):
            parameter, _, name = key.removeprefix(_ADAM).partition(".")
            moments.setdefault(int(parameter), {})[name] = value
    fresh_state = trainer.optimizer.state_dict()
    trainer.optimizer.load_state_dict({**fresh_state, "state": moments})


def _read_placement(environment: Environment, row: torch.Tensor) -> Any:
    placement = row.numpy().astype(np.int32)
    if placement.shape != (environment.problem.arrays.ops,):
        raise ValueError(f"a plan has shape {placement.shape}")
    return placement


def _int_tensor(placement: Any) -> torch.Tensor:
    import torch

    return torch.as_tensor(np.array(placement, dtype=np.int32))


def _float_tensor(values: Any) -> torch.Tensor:
    import torch

    return torch.as_tensor(np.array(values, dtype=np.float64))


def _to_json(value: float) -> float | None:
    """JSON has no infinity and no NaN."""
    return value if math.isfinite(value) else None


def _from_json(value: float | None) -> float:
    return math.nan if value is None else float(value)


def _read_update(values: list[Any]) -> UpdateLog:
    update, plans, *figures = values
    if len(values) != len(fields(UpdateLog)):
        raise ValueError(f"a row has {len(values)} numbers")
    return UpdateLog(int(update), int(plans), *map(_from_json, figures))
