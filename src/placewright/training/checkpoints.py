"""Saves and restores training checkpoints: a JSON file and its tensors.

Samples depend on the seed and the update's number alone. A checkpoint therefore keeps the weights,
Adam's moments, the baseline, the hooks' state and the best plans, and a resumed run ends as one
that was never interrupted.
"""

from __future__ import annotations

import hashlib
import math
from dataclasses import asdict, fields, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from placewright import policies
from placewright.errors import FileError
from placewright.files.header import body, make_header
from placewright.outcome import Outcome
from placewright.policies import Episodes, Policy
from placewright.policies.tensor_files import load_with_tensors, save_with_tensors
from placewright.training.updates import EpisodeBatch, UpdateLog

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    import torch

    from placewright.training.environment import Environment
    from placewright.training.trainer import Trainer

_RENAMED = {
    "plans": "max_evaluations",
    "over": "finished",
    "likeliest": "greedy",
    "rows": "log",
    "more": "metadata",
}
"""Keys of version 1, and what they are called now."""
_POLICY, _ADAM, _ELITE, _HOOKS, _PENDING = "policy.", "adam.", "elite.", "hooks.", "pending."


def save_checkpoint(
    trainer: Trainer, path: Path, metadata: Mapping[str, Any] | None = None
) -> None:
    """Write the state of a trainer; the file is afterwards either the new one or untouched.

    Args:
        metadata: Plain data to keep with it, such as the options of the run.

    Raises:
        FileError: It cannot be written there.
    """
    pending = trainer.pending
    data = {
        **make_header("training"),
        **_identity(trainer),
        "policy": trainer.policy.name,
        "config": trainer.policy.to_config(),
        "max_evaluations": trainer.max_evaluations,
        "updates": trainer.updates,
        "seconds": trainer.seconds,
        "finished": trainer.finished,
        "baseline": trainer.baseline.state(),
        "problems": [
            _environment_record(problem_environment) for problem_environment in trainer.environments
        ],
        "greedy": [[index, _to_json(value)] for index, (_, value) in trainer.greedy_plans.items()],
        "log": [[_to_json(value) for value in asdict(row).values()] for row in trainer.log],
        "hooks": trainer.hooks.state(),
        "pending": None if pending is None else pending.indices,
        "metadata": dict(metadata or {}),
    }
    tensors = {f"{_POLICY}{key}": val for key, val in trainer.policy.state_dict().items()}
    for index, (placement_bytes, _) in trainer.greedy_plans.items():
        tensors[f"likeliest.{index}"] = _int_tensor(np.frombuffer(placement_bytes, dtype=np.int32))
    for index, environment in enumerate(trainer.environments):
        if environment.best_placement is not None:
            tensors[f"best.{index}"] = _int_tensor(environment.best_placement)
        if environment.best_priority is not None:
            tensors[f"order.{index}"] = _float_tensor(environment.best_priority)
        if environment.best_fusion is not None:
            tensors[f"fusion.{index}"] = _int_tensor(environment.best_fusion)
    for index, episodes in trainer.best_episodes.items():
        tensors |= _episode_tensors(f"{_ELITE}{index}.", episodes)
    for position, array in enumerate(() if pending is None else pending.judged()):
        assert pending is not None
        prefix = f"{_PENDING}{position}."
        tensors |= _episode_tensors(prefix, pending.episodes[position])
        tensors |= {
            f"{prefix}outcome.{name}": _tensor(values) for name, values in vars(array).items()
        }
    tensors |= {f"{_HOOKS}{key}": _tensor(value) for key, value in trainer.hooks.arrays().items()}
    for parameter, moments in trainer.optimizer.state_dict()["state"].items():
        tensors |= {f"{_ADAM}{parameter}.{name}": value for name, value in moments.items()}
    save_with_tensors(path, data, {key: value.detach().cpu() for key, value in tensors.items()})


def read_checkpoint(path: Path) -> tuple[dict[str, Any], dict[str, torch.Tensor]]:
    """The data and tensors of a checkpoint; see `restore`.

    Raises:
        FileError: It is missing, damaged, or no checkpoint.
    """
    data, tensors = load_with_tensors(path)
    try:
        checkpoint = body(data, "training")
        if data["version"] == 1:  # its digest of the settings is of the names of that version
            checkpoint.pop("settings", None)
            checkpoint = {_RENAMED.get(key, key): value for key, value in checkpoint.items()}
        if not isinstance(checkpoint.get("metadata"), dict):
            raise FileError('has no "metadata": expected a checkpoint as this release writes it')
        return {**checkpoint, "version": data["version"]}, tensors
    except FileError as error:
        raise FileError(f"{path}: {error}") from None


def checkpoint_policy(data: dict[str, Any], tensors: dict[str, torch.Tensor]) -> Policy:
    """The policy of a checkpoint that was read.

    Raises:
        FileError: The data are malformed.
    """
    return policies.restore(data, _policy_tensors(tensors))


def restore(trainer: Trainer, data: dict[str, Any], tensors: dict[str, torch.Tensor]) -> None:
    """Continue from the state of an equal trainer whose checkpoint was written.

    The budget may be larger than that trainer's; schedules then go by shares of the new one.

    Raises:
        FileError: It had another recipe, seed or problem, or a larger budget, or the data are
            malformed.
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
    former, budget = data.get("max_evaluations"), trainer.max_evaluations
    if isinstance(former, int) and budget is not None and budget < former:
        raise FileError(
            f"the checkpoint is of a run of {former:,} plans: expected a budget as large "
            f"or larger, not {budget:,}"
        )
    try:
        trainer.policy.load_state_dict(_policy_tensors(tensors))
        _restore_adam(trainer, tensors)
        trainer.updates, trainer.seconds = int(data["updates"]), float(data.get("seconds", 0.0))
        trainer.finished = bool(data["finished"]) and budget == former and _spent(trainer)
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
                order, fusion = tensors.get(f"order.{index}"), tensors.get(f"fusion.{index}")
                if order is not None:
                    environment.best_priority = order.numpy().astype(np.float64)
                if fusion is not None:
                    environment.best_fusion = fusion.numpy().astype(np.int32)
        for index, value in data["greedy"]:
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
        trainer.log = [
            _read_update(values, position % len(trainer.environments))
            for position, values in enumerate(data["log"])
        ]
        trainer.pending = _read_pending(data.get("pending"), tensors)
        arrays = {
            key.removeprefix(_HOOKS): value.numpy()
            for key, value in tensors.items()
            if key.startswith(_HOOKS)
        }
        if "hooks" in data:
            trainer.hooks.restore(trainer, data["hooks"], arrays)
    except (KeyError, IndexError, TypeError, ValueError, RuntimeError, AttributeError) as error:
        reason = " ".join(str(error).split())[:200]
        raise FileError(f"the checkpoint is malformed: {reason}") from None


def _policy_tensors(tensors: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    own = {key: value for key, value in tensors.items() if key.startswith(_POLICY)}
    return {key.removeprefix(_POLICY): value for key, value in own.items()}


def _spent(trainer: Trainer) -> bool:
    """Whether the budgets of updates and seconds, if there are any, are used."""
    updates, seconds = trainer.max_updates, trainer.max_seconds
    limits = [limit for limit in (updates, seconds) if limit is not None]
    return not limits or (
        (updates is not None and trainer.updates >= updates)
        or (seconds is not None and trainer.seconds >= seconds)
    )


def _identity(trainer: Trainer) -> dict[str, Any]:
    """What must be equal for a run to continue."""
    return {
        "recipe": trainer.recipe.name,
        "settings": hashlib.blake2b(repr(trainer.recipe).encode(), digest_size=8).hexdigest(),
        "seed": trainer.seed,
        **trainer.mode,
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
    arrays = {
        "device": episodes.placements,
        "owner": episodes.episode_of,
        "log_prob": episodes.log_prob,
    }
    if episodes.priority is not None:
        arrays["priority"] = episodes.priority
    if episodes.fusion is not None:
        arrays["fusion"] = episodes.fusion
    actions = {f"actions.{key}": value for key, value in episodes.actions.items()}
    return {f"{prefix}{key}": _tensor(value) for key, value in {**arrays, **actions}.items()}


def _read_episode(prefix: str, tensors: dict[str, torch.Tensor]) -> Episodes:
    arrays = {key.removeprefix(prefix): value.numpy() for key, value in tensors.items()}
    actions = {k.removeprefix("actions."): v for k, v in arrays.items() if k.startswith("actions.")}
    return Episodes(
        actions,
        arrays["device"],
        arrays["owner"],
        arrays["log_prob"],
        arrays.get("priority"),
        arrays.get("fusion"),
    )


def _read_pending(indices: Any, tensors: dict[str, torch.Tensor]) -> EpisodeBatch | None:
    if indices is None:
        return None
    episodes, outcomes = [], []
    for position in range(len(indices)):
        prefix = f"{_PENDING}{position}."
        own = {key: value for key, value in tensors.items() if key.startswith(prefix)}
        outcome_prefix = f"{prefix}outcome."
        figures = {
            key.removeprefix(outcome_prefix): own.pop(key).numpy()
            for key in list(own)
            if key.startswith(outcome_prefix)
        }
        episodes.append(_read_episode(prefix, own))
        outcomes.append(Outcome(**figures))
    return EpisodeBatch([int(index) for index in indices], episodes, [*outcomes])


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


def _tensor(values: Any) -> torch.Tensor:
    import torch

    return torch.as_tensor(np.ascontiguousarray(values))


def _to_json(value: Any) -> Any:
    """The value; null for infinity and NaN, which JSON lacks."""
    if isinstance(value, dict):
        return {key: _to_json(item) for key, item in value.items()}
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _from_json(value: float | None) -> float:
    return math.nan if value is None else float(value)


def _read_update(values: list[Any], problem: int) -> UpdateLog:
    """A row as any release wrote it; in 0.1.0 problems took turns and rows did not name them."""
    if len(values) not in (len(fields(UpdateLog)), len(fields(UpdateLog)) - 3):
        raise ValueError(f"a row has {len(values)} numbers")
    update, plans, *figures = values[:9]
    numbers: Any = [_from_json(figure) for figure in figures]
    row = UpdateLog(int(update), int(plans), *numbers)
    if len(values) == 9:
        return replace(row, problem=problem)
    problem, phase, stats = values[9:]
    figures_by_name = {str(name): _from_json(value) for name, value in stats.items()}
    return replace(row, problem=int(problem), phase=str(phase), stats=figures_by_name)
