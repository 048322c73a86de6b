"""Learned placement policies, a folder per paper: given a problem they sample episodes of plans.

All but the linear policy need torch.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any, NamedTuple

from placewright.errors import ConfigError, FileError, MissingDependency, nearest
from placewright.files.header import body, make_header
from placewright.policies.policy import (
    Clock,
    Episodes,
    HeadScores,
    Policy,
    PolicyConfig,
    Scores,
)
from placewright.policies.tensor_files import load_with_tensors, save_with_tensors

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path


class PolicyEntry(NamedTuple):
    """The module and the classes of a policy."""

    module: str
    policy: str
    config: str
    needs_torch: bool = True


POLICIES = {
    "colocrl": PolicyEntry("colocrl.policy", "ColocRL", "ColocRLConfig"),
    "go": PolicyEntry("go.policy", "Go", "GoConfig"),
    "hierarchical": PolicyEntry("hierarchical.policy", "Hierarchical", "HierarchicalConfig"),
    "pair": PolicyEntry("transfer.linear", "LinearPolicy", "LinearConfig", needs_torch=False),
    "placeto": PolicyEntry("placeto.policy", "Placeto", "PlacetoConfig"),
    "placeto-any": PolicyEntry("transfer.gnn", "GnnPolicy", "GnnConfig"),
}
"""The policies by name."""

__all__ = [
    "POLICIES",
    "Clock",
    "Episodes",
    "HeadScores",
    "Policy",
    "PolicyConfig",
    "PolicyEntry",
    "Scores",
    "find_config",
    "find_policy",
    "load",
    "save",
]


def find_policy(name: str) -> Any:
    """The class of the policy of that name.

    Raises:
        ConfigError: There is none of that name.
        MissingDependency: It needs torch, and there is none.
    """
    return _load(name, "policy")


def find_config(name: str) -> Any:
    """The class of a policy's configuration; `find_config(name)(…).build(problem)` builds a policy.

    Raises:
        ConfigError: There is none of that name.
        MissingDependency: It needs torch, and there is none.
    """
    return _load(name, "config")


def _load(name: str, part: str) -> Any:
    if name not in POLICIES:
        raise ConfigError(f"no policy is named {name!r}: {nearest(name, POLICIES)}")
    entry = POLICIES[name]
    try:
        if entry.needs_torch:
            import torch  # noqa: F401
    except ImportError:
        raise MissingDependency("torch", "torch") from None
    module = importlib.import_module(f"placewright.policies.{entry.module}")
    return getattr(module, getattr(entry, part))


def save(
    policy: Policy, path: Path, made_by: str = "", training: Mapping[str, Any] | None = None
) -> None:
    """Write a policy to a JSON file and its weights to a safetensors file beside it.

    Args:
        made_by: The command that trained it, for readers of the file.
        training: The seed, commit and data that it was trained with, for the same readers.

    Raises:
        FileError: It cannot be written there.
    """
    data = {**make_header("policy"), "policy": policy.name, "config": policy.to_config()}
    if made_by:
        data["made_by"] = made_by
    if training:
        data["training"] = dict(training)
    save_with_tensors(path, data, policy.state_dict())


def load(path: Path) -> Policy:
    """The policy that `save` wrote; the files are data and no code.

    Raises:
        FileError: A file is missing, damaged, or not a policy file.
    """
    data, tensors = load_with_tensors(path)
    try:
        return restore(body(data, "policy"), tensors)
    except FileError as error:
        raise FileError(f"{path}: {error}") from None


def restore(data: dict[str, Any], tensors: dict[str, Any]) -> Policy:
    """The policy of a file's data (`policy`, `config`) and its weights.

    Raises:
        FileError: The data and the weights do not match.
    """
    name, config = data.get("policy"), data.get("config")
    if not isinstance(name, str) or name not in POLICIES or not isinstance(config, dict):
        raise FileError(f"holds policy {name!r}: {nearest(str(name), POLICIES)}")
    try:
        _check_tensors(name, config, tensors)
        policy: Policy = find_policy(name).from_config(config)
        policy.load_state_dict(tensors)
    except (ArithmeticError, KeyError, TypeError, ValueError, RuntimeError, ConfigError) as error:
        reason = " ".join(str(error).split())[:200]
        raise FileError(f"is no policy of this release of placewright: {reason}") from None
    return policy


def _check_tensors(name: str, config: dict[str, Any], tensors: dict[str, Any]) -> None:
    """Raise ValueError unless a file's tensors are those of the policy that its settings describe.

    The policy is built without memory first: settings can ask for more than the machine has.
    """
    import torch

    for key, tensor in tensors.items():
        if not bool(torch.isfinite(tensor).all()):
            raise ValueError(f"tensor {key!r} holds a number that is not finite")
    if not POLICIES[name].needs_torch:
        return  # of one size
    with torch.device("meta"):
        expected = find_policy(name).from_config(config).state_dict()
    for key, tensor in expected.items():
        if key not in tensors or tensors[key].shape != tensor.shape:
            actual = tuple(tensors[key].shape) if key in tensors else "missing"
            raise ValueError(f"tensor {key!r} is {actual}: expected {tuple(tensor.shape)}")
