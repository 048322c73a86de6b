"""Reads the commands of documents: the lines of console blocks that begin with a dollar sign."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@dataclass(frozen=True)
class ConsoleCommand:
    """One command, and the output that the document shows below it, if any."""

    document: str
    text: str
    output: str

    def __str__(self) -> str:
        return f"{self.document}: {self.text}"


def console_commands(path: Path) -> Iterator[ConsoleCommand]:
    """The commands of a document, in order, without the comments behind them."""
    for block in re.findall(r"^```console\n(.*?)^```", path.read_text(), re.S | re.M):
        for part in re.split(r"^\$ ", block, flags=re.M)[1:]:
            line, _, output = part.partition("\n")
            for text in re.sub(r"\s+# .*", "", line).split(";"):
                yield ConsoleCommand(path.name, text.strip(), output.strip("\n"))
