"""Names the inputs and modules of TorchDynamo's graphs as a plan names them.

TorchDynamo names an input by the expression that reads it, such as
`L['self']._modules['up']._parameters['weight']`, and a module by its own, such as `L['self'].up`.
Weights are found by identity, whatever the expression. What the expressions of a module's weights
and their names in the model have in common tells which module a root such as `L['self']` is.
"""

from __future__ import annotations

import inspect
import re
from typing import TYPE_CHECKING, Any

import torch

from placewright.frontends.pytorch.aot_graph import GraphInput
from placewright.frontends.pytorch.capture import storage_slice

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

_TABLES = re.compile(r"\._(?:modules|parameters|buffers)\['([^']*)'\]")


WRAPPER_ARGS, WRAPPER_KWARGS = ("args", "call_args"), ("kwargs", "call_kwargs")
"""How functions around a forward name its arguments: TorchDynamo's own, and the loss of a step."""


def name_inputs(
    module: torch.fx.GraphModule,
    names: Mapping[int, Sequence[str]],
    known: Mapping[str, object],
    signature: inspect.Signature | None = None,
) -> list[GraphInput]:
    """Names the inputs of a graph, and renames its modules; the inputs, in order.

    Args:
        names: The names of the model's parameters and buffers, by the id of the tensor.
        known: The names that the plan has; of several names of a tensor one of these is taken.
        signature: The parameters of the model's forward.
    """
    inputs: list[GraphInput] = []
    roots: dict[str, str] = {}
    stored_names = {name for all_names in names.values() for name in all_names}
    for node in module.graph.nodes:
        if node.op != "placeholder":
            continue
        expression, tensor = _expression(node.meta.get("grapharg")), real_tensor(node)
        candidates = names.get(id(tensor), ()) if tensor is not None else ()
        for candidate in candidates:
            _add_root(roots, expression, candidate)
        name = next((item for item in candidates if item in known), None)
        if name is None or tensor is None:
            argument_name = _argument_name(expression, signature) or node.name
            is_stored = argument_name in stored_names
            inputs.append(GraphInput(f"{argument_name}.input" if is_stored else argument_name))
            continue
        role = "parameter" if isinstance(tensor, torch.nn.Parameter) else "buffer"
        inputs.append(GraphInput(name, role, storage_slice(tensor)))
    _rename_modules(module, roots)
    return inputs


def _expression(argument: Any) -> str:
    """The expression that reads an input, with a dot between all names."""
    source = getattr(argument, "source", None)
    name = getattr(source, "name", "")
    return _TABLES.sub(r".\1", str(name() if callable(name) else name))


def real_tensor(placeholder: torch.fx.Node) -> torch.Tensor | None:
    """The tensor that an input of a graph of TorchDynamo's stands for."""
    example = getattr(placeholder.meta.get("grapharg"), "example", None)
    return example if isinstance(example, torch.Tensor) else None


def _add_root(roots: dict[str, str], expression: str, name: str) -> None:
    """Learn which module a root is: if `L['self'].bias` is `layers.0.bias`, it is `layers.0`."""
    if expression.endswith(f".{name}"):
        roots[expression.removesuffix(f".{name}")] = ""
        return
    match = re.match(r"(\w+(?:\[[^\]]*\])*)\.(.*)$", expression)
    if match is not None and name.endswith(f".{match[2]}"):
        roots.setdefault(match[1], name.removesuffix(match[2]))


def _argument_name(expression: str, signature: inspect.Signature | None) -> str:
    """`x` for `L['x']`, `cache.0.keys` for `L['cache'][0].keys`, as `input_names` names leaves."""
    root, *path = re.findall(r"\w+", expression)[1:] or [""]
    parameters = {} if signature is None else dict(signature.parameters)
    positional = [name for name, parameter in parameters.items() if parameter.kind <= 1]
    if root not in parameters and signature is not None and path:
        if root in WRAPPER_KWARGS:
            return ".".join(path)
        if root in WRAPPER_ARGS:
            index = int(path[0])
            if index < len(positional):
                return ".".join([positional[index], *path[1:]])
            return ".".join(["args", str(index - len(positional)), *path[1:]])
    kind = parameters[root].kind if root in parameters else None
    if kind is inspect.Parameter.VAR_KEYWORD:
        return ".".join(path)
    return ".".join(["args" if kind is inspect.Parameter.VAR_POSITIONAL else root, *path])


def _rename_modules(module: torch.fx.GraphModule, roots: Mapping[str, str]) -> None:
    """Let every node have the paths of its modules in the model."""
    for node in module.graph.nodes:
        stack = node.meta.get("nn_module_stack") or {"": ("L['self']", "")}
        node.meta["nn_module_stack"] = {
            key: (_module_path(str(path), roots), kind) for key, (path, kind) in stack.items()
        }


def _module_path(path: str, roots: Mapping[str, str]) -> str:
    path = _TABLES.sub(r".\1", path)
    for root in sorted(roots, key=len, reverse=True):
        if path == root or path.startswith(f"{root}."):
            return (roots[root] + path.removeprefix(root).removeprefix(".")).strip(".")
    return re.sub(r"^\w+(?:\[[^\]]*\])*\.?", "", path)
