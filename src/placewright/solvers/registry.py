"""The registry of methods: solvers by name, with the names of the last release."""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    from placewright.solvers.search import Solver

RENAMED_METHODS = {"schedule": "order-search"}  # old name -> new name; read until the next release


class MethodRegistry(dict[str, "Callable[[], Solver]"]):
    """Makers of solvers by name. A renamed method is also found by its old name, with a warning."""

    def __contains__(self, name: object) -> bool:
        return super().__contains__(name) or name in RENAMED_METHODS

    def __missing__(self, name: str) -> Callable[[], Solver]:
        if name not in RENAMED_METHODS:
            raise KeyError(name)
        new_name = RENAMED_METHODS[name]
        warnings.warn(
            f"method {name!r} is called {new_name!r} now: the next release reads that name only",
            FutureWarning,
            stacklevel=2,
        )
        return self[new_name]
