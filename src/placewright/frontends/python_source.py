"""Reads from a function's source whether it returns a bare module, before it is called."""

from __future__ import annotations

import ast
import inspect
import textwrap
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


def returned_module(function: Callable[..., Any]) -> type | None:
    """The class of the module that every `return` of a function returns; None if that is not clear.

    Clear is `return Model(...)`, or `return model` after `model = Model(...)`, where `Model` is a
    class with a `forward` method.
    """
    try:
        tree = ast.parse(textwrap.dedent(inspect.getsource(function)))
    except (OSError, TypeError, SyntaxError, ValueError):
        return None
    definition = tree.body[0] if tree.body else None
    if not isinstance(definition, ast.FunctionDef) or definition.decorator_list:
        return None
    names = getattr(function, "__globals__", {})
    statements = list(_own_statements(definition))
    returns = [each.value for each in statements if isinstance(each, ast.Return)]
    classes = {_class_of(value, statements, names) for value in returns}
    return classes.pop() if len(classes) == 1 else None


def _own_statements(definition: ast.FunctionDef) -> Iterator[ast.AST]:
    """The statements of a function without those of functions and classes in it."""
    pending: list[ast.AST] = [*definition.body]
    while pending:
        node = pending.pop()
        yield node
        if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef | ast.Lambda):
            pending += ast.iter_child_nodes(node)


def _class_of(
    value: ast.expr | None, statements: list[ast.AST], names: dict[str, Any]
) -> type | None:
    """The class of a module that an expression makes."""
    if isinstance(value, ast.Name):
        assigned = [
            each.value
            for each in statements
            if isinstance(each, ast.Assign)
            and any(isinstance(part, ast.Name) and part.id == value.id
                    for target in each.targets for part in ast.walk(target))
        ]  # fmt: skip
        stored = [
            each
            for each in statements
            if isinstance(each, ast.Name)
            and each.id == value.id
            and isinstance(each.ctx, ast.Store)
        ]
        if len(assigned) != 1 or len(stored) != 1 or isinstance(assigned[0], ast.Name):
            return None
        value = assigned[0]
    found = _value_of(value.func, names) if isinstance(value, ast.Call) else None
    if isinstance(found, type) and hasattr(found, "forward") and not issubclass(found, tuple):
        return found
    return None


def _value_of(name: ast.expr, names: dict[str, Any]) -> Any:
    """What a name such as `Model` or `torch.nn.Linear` stands for; None if that is unknown."""
    if isinstance(name, ast.Name):
        return names.get(name.id)
    if isinstance(name, ast.Attribute):
        return getattr(_value_of(name.value, names), name.attr, None)
    return None
