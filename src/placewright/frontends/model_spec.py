"""Model specs: which kind of model a text names."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from collections.abc import Collection

ModelKind = Literal["python", "network", "onnx", "tensorflow", "file"]

_FILE_SUFFIXES = (".json", ".toml", ".gz", ".txt", ".onnx", ".pb", ".pbtxt")


@dataclass(frozen=True)
class ModelSpec:
    """A text that names a model.

    Args:
        text: As it was typed.
        kind: `python` for `model.py:build`; `network` for a name of the zoo with its arguments;
            `onnx` and `tensorflow` for files of these libraries; `file` for a graph, a problem or a
            workload.
    """

    text: str
    kind: ModelKind

    @classmethod
    def parse(cls, text: str, networks: Collection[str] = ()) -> ModelSpec:
        """What a text names.

        Args:
            networks: Names that are networks even if there is a file of that name.
        """
        name = text.partition(":")[0]
        if name.endswith(".py"):
            return cls(text, "python")
        if name.strip() in networks or not names_file(text):
            return cls(text, "network")
        if text.endswith(".onnx"):
            return cls(text, "onnx")
        if text.endswith((".pb", ".pbtxt")) or os.path.exists(os.path.join(text, "saved_model.pb")):
            return cls(text, "tensorflow")
        return cls(text, "file")

    @property
    def is_python(self) -> bool:
        """Whether it is a Python file, which is run to build the model."""
        return self.kind == "python"


def names_file(text: str) -> bool:
    """Whether a text names a file, which need not exist."""
    return os.path.lexists(text) or "/" in text or os.sep in text or text.endswith(_FILE_SUFFIXES)
