"""OutputFiles: the files that a command writes beside its answer."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from placewright.errors import PlacewrightError

if TYPE_CHECKING:
    from collections.abc import Callable


@dataclass
class OutputFiles:
    """Files that are written one after the other; one that fails stops neither the others nor the
    answer, which took long to find.

    Args:
        lines: What was written where.
        error: The first failure.
    """

    lines: list[str] = field(default_factory=list)
    error: PlacewrightError | None = None

    def write(self, save: Callable[..., list[str]], *args: Any, **kwargs: Any) -> None:
        """Call a function that writes a file and says so in lines."""
        try:
            self.lines += save(*args, **kwargs)
        except PlacewrightError as error:
            self.error = self.error or error

    def check(self) -> None:
        """Raise the first failure; to be called once the answer is printed."""
        if self.error is not None:
            raise self.error
