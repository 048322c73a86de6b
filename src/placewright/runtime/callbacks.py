"""Callbacks that do not keep their object alive."""

from __future__ import annotations

import weakref
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable


def weak_callback(method: Callable[..., None]) -> Callable[..., None]:
    """Calls a method while its object lives: a waiting thread does not keep it alive."""
    reference = weakref.WeakMethod(method)

    def call(*args: Any) -> None:
        bound_method = reference()
        if bound_method is not None:
            bound_method(*args)

    return call
