"""Digests that ranks compare: of a plan, of a graph, of weights and of their files."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    import os

    from placewright.plan import Plan
    from placewright.runtime.distributed.host_ranks import HostRanks
    from placewright.runtime.program.program import Program

_HEAD_BYTES = 1 << 20


def plan_digest(plan: Plan, host_ranks: HostRanks) -> str:
    """A digest of all that a plan says, and of the ranks of its devices."""
    arrays = (plan.placement, plan.priority, plan.fusion, plan.staging)
    contents = [None if array is None else array.tobytes() for array in arrays]
    return _digest(plan.ops, plan.device_names, host_ranks.ranks, *contents)


def program_digest(program: Program, plan: Plan) -> str:
    """A digest of a program's captured graph, its constants and optimizer, and of its plan.

    Two ranks whose digests are equal run the same ops with the same numbers.
    """
    nodes = [
        (node.op, str(node.target), str(node.args), str(node.kwargs), _value(node))
        for node in program.builder.capture.graph.nodes
    ]
    constants = [(name, tensor_digest(tensor)) for name, tensor in program.capture.literals.items()]
    graph = program.graph.fingerprint
    arrays = (plan.placement, plan.priority, plan.staging)
    contents = [None if array is None else array.tobytes() for array in arrays]
    return _digest(nodes, sorted(constants), graph, program.rule, plan.ops, *contents)


def tensor_digest(tensor: torch.Tensor) -> str:
    """A digest of a tensor's data; empty if it has none yet."""
    if tensor.is_meta:
        return ""
    data = tensor.detach().cpu().contiguous().view(-1)
    digest = hashlib.blake2b(digest_size=16)
    if data.numel():
        content: Any = data.view(torch.uint8).numpy()
        digest.update(content)
    return digest.hexdigest()


def file_digest(path: str | os.PathLike[str]) -> str:
    """A digest of a file's beginning and size, or of the files of a folder."""
    root = Path(path)
    paths = sorted(root.glob("*.safetensors*")) if root.is_dir() else [root]
    parts = []
    for each in paths:
        with each.open("rb") as file:
            parts.append((each.name, each.stat().st_size, file.read(_HEAD_BYTES)))
    return _digest(*parts)


def _value(node: torch.fx.Node) -> str:
    """The shape and dtype of a node's value; the content of a tensor that the graph holds."""
    value = node.meta.get("val")
    values = value if isinstance(value, list | tuple) else [value]
    text = str([(tuple(v.shape), v.dtype) for v in values if isinstance(v, torch.Tensor)])
    if node.op != "get_attr":
        return text
    owner: object = node.graph.owning_module
    for part in str(node.target).split("."):
        owner = getattr(owner, part, None)
    return text + (tensor_digest(owner) if isinstance(owner, torch.Tensor) else "")


def _digest(*content: object) -> str:
    return hashlib.blake2b(repr(content).encode(), digest_size=16).hexdigest()
