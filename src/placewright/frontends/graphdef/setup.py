"""Finds the nodes of a GraphDef that a step runs: not initialisation, saving or restoring."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from placewright.frontends.graph_builder import word_set

if TYPE_CHECKING:
    from collections.abc import Sequence

FILE_OPS = word_set("SaveV2 RestoreV2 Save Restore SaveSlices RestoreSlice MergeV2Checkpoints")
INITIALIZED_QUERIES = ("VarIsInitializedOp", "IsVariableInitialized")
ASSIGN_OPS = ("Assign", "AssignVariableOp")
LIVE_OPS = word_set(
    "Placeholder PlaceholderV2 PlaceholderWithDefault IteratorGetNext ReadVariableOp VarHandleOp "
    "Variable VariableV2"
)


def step_nodes(nodes: Sequence[Any]) -> list[Any]:
    """The nodes without those that only initialise, save or restore variables.

    These are file ops, stores of values that depend on no input and no other variable, and nodes
    that only those need.
    """
    node_of = {node.name: node for node in nodes}
    sources = {
        node.name: [entry.removeprefix("^").partition(":")[0] for entry in node.input]
        for node in nodes
    }
    dropped = {node.name for node in nodes if node.op in FILE_OPS or node.op in INITIALIZED_QUERIES}
    for node in nodes:
        if node.op in ASSIGN_OPS and len(sources[node.name]) > 1:
            value = sources[node.name][1]
            value_ancestors = _ancestors(value, sources)
            ops = {node_of[name].op for name in value_ancestors if name in node_of}
            if not ops & LIVE_OPS or ops & FILE_OPS:
                dropped.add(node.name)
    if not dropped:
        return list(nodes)
    readers: dict[str, set[str]] = {node.name: set() for node in nodes}
    for node in nodes:
        for source in sources[node.name]:
            readers.setdefault(source, set()).add(node.name)
    pending = list(dropped)
    while pending:
        name = pending.pop()
        for source in sources.get(name, ()):  # only dropped nodes read it
            if source in node_of and source not in dropped and readers[source] <= dropped:
                dropped.add(source)
                pending.append(source)
        for reader in readers.get(name, ()):  # it only waits for dropped nodes
            has_control_edge = f"^{name}" in node_of[reader].input
            is_idle = node_of[reader].op == "NoOp" and set(sources[reader]) <= dropped
            if (
                is_idle or (has_control_edge and node_of[reader].op == "Identity")
            ) and reader not in dropped:
                dropped.add(reader)
                pending.append(reader)
    return [node for node in nodes if node.name not in dropped]


def _ancestors(name: str, sources: dict[str, list[str]]) -> set[str]:
    ancestors: set[str] = set()
    pending = [name]
    while pending:
        current = pending.pop()
        if current not in ancestors:
            ancestors.add(current)
            pending += sources.get(current, ())
    return ancestors
