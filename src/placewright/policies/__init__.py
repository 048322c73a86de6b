"""A problem in, episodes out: policies that learn to place. One file a paper; most need torch."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from placewright.errors import ConfigError, FileError, MissingDependency, nearest
from placewright.files.header import body, head
from placewright.policies.policy import Episodes, Head, Policy, Scores
from placewright.policies.storage import load_with_tensors, save_with_tensors

if TYPE_CHECKING:
    from pathlib import Path

POLICIES = {
    "colocrl": "ColocRL",
    "go": "Go",
    "hierarchical": "Hierarchical",
    "pair": "Pair",
    "placeto": "Placeto",
    "placeto-any": "PlacetoAny",
}
"""The policies by name, and their classes, each in the module of that name (`_` for `-`)."""

_MODULES = {
    "colocrl": "colocrl.policy",
    "go": "go.policy",
    "hierarchical": "hierarchical.policy",
    "pair": "transfer.linear",
    "placeto": "placeto.policy",
    "placeto-any": "transfer.gnn",
}
_NO_TORCH = frozenset({"pair"})

__all__ = ["POLICIES", "Episodes", "Head", "Policy", "Scores", "find", "load", "save"]


def find(name: str) -> Any:
    """The module of a policy, which has its class and its `Shape`.

    Raises:
        ConfigError: There is none of that name.
        MissingDependency: It needs torch, and there is none.
    """
    if name not in POLICIES:
        raise ConfigError(f"no policy is named {name!r}: {nearest(name, POLICIES)}")
    try:
        if name not in _NO_TORCH:
            import torch  # noqa: F401
    except ImportError:
        raise MissingDependency("torch", "torch") from None
    return importlib.import_module(f"placewright.policies.{_MODULES[name]}")


def save(policy: Policy, path: Path, made_by: str = "") -> None:
    """Write a policy to a JSON file and its weights to a safetensors file beside it.

    Args:
        made_by: The command that made it, for whoever reads the file.

    Raises:
        FileError: It cannot be written there.
    """
    data = {**head("policy"), "policy": policy.name, "config": policy.config()}
    if made_by:
        data["made_by"] = made_by
    save_with_tensors(path, data, policy.state_dict())


def load(path: Path) -> Policy:
    """The policy that `save` wrote; nothing in the files is ever run.

    Raises:
        FileError: A file is missing, damaged, or no policy's.
    """
    data, tensors = load_with_tensors(path)
    try:
        return restored(body(data, "policy"), tensors)
    except FileError as error:
        raise FileError(f"{path}: {error}") from None


def restored(data: dict[str, Any], tensors: dict[str, Any]) -> Policy:
    """The policy of a file's data (`policy`, `config`) and its weights.

    Raises:
        FileError: They do not go together.
    """
    name, config = data.get("policy"), data.get("config")
    if not isinstance(name, str) or name not in POLICIES or not isinstance(config, dict):
        raise FileError(f"holds policy {name!r}: {nearest(str(name), POLICIES)}")
    try:
        policy: Policy = getattr(find(name), POLICIES[name]).from_config(config)
        policy.load_state_dict(tensors)
    except (KeyError, TypeError, ValueError, RuntimeError) as error:
        reason = " ".join(str(error).split())[:200]
        raise FileError(f"is no policy of this release of placewright: {reason}") from None
    return policy
