"""The nodes of a GraphDef in, those that a step runs out."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from placewright.frontends.graph_builder import words

if TYPE_CHECKING:
    from collections.abc import Sequence

FILES = words("SaveV2 RestoreV2 Save Restore SaveSlices RestoreSlice MergeV2Checkpoints")
ASKS = ("VarIsInitializedOp", "IsVariableInitialized")
STORES = ("Assign", "AssignVariableOp")
LIVE = words(
    "Placeholder PlaceholderV2 PlaceholderWithDefault IteratorGetNext ReadVariableOp VarHandleOp "
    "Variable VariableV2"
)


def step_only(nodes: Sequence[Any]) -> list[Any]:
    """Leave out what only initialises, saves or restores variables.

    That is: file ops, stores of values that depend on no input and no other variable, and then
    whatever only served those.
    """
    known = {node.name: node for node in nodes}
    sources = {
        node.name: [entry.removeprefix("^").partition(":")[0] for entry in node.input]
        for node in nodes
    }
    dropped = {node.name for node in nodes if node.op in FILES or node.op in ASKS}
    for node in nodes:
        if node.op in STORES and len(sources[node.name]) > 1:
            value = sources[node.name][1]
            found = _ancestors(value, sources)
            ops = {known[name].op for name in found if name in known}
            if not ops & LIVE or ops & FILES:
                dropped.add(node.name)
    if not dropped:
        return list(nodes)
    readers: dict[str, set[str]] = {node.name: set() for node in nodes}
    for node in nodes:
        for source in sources[node.name]:
            readers.setdefault(source, set()).add(node.name)
    waiting = list(dropped)
    while waiting:
        name = waiting.pop()
        for source in sources.get(name, ()):  # what served only the dropped
            if source in known and source not in dropped and readers[source] <= dropped:
                dropped.add(source)
                waiting.append(source)
        for reader in readers.get(name, ()):  # what only waits for the dropped
            waits = f"^{name}" in known[reader].input
            idle = known[reader].op == "NoOp" and set(sources[reader]) <= dropped
            if (idle or (waits and known[reader].op == "Identity")) and reader not in dropped:
                dropped.add(reader)
                waiting.append(reader)
    return [node for node in nodes if node.name not in dropped]


def _ancestors(name: str, sources: dict[str, list[str]]) -> set[str]:
    found: set[str] = set()
    waiting = [name]
    while waiting:
        current = waiting.pop()
        if current not in found:
            found.add(current)
            waiting += sources.get(current, ())
    return found
