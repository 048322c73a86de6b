"""Model specs: which kind of model a text names."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from placewright.errors import FileError

if TYPE_CHECKING:
    from collections.abc import Collection

ModelKind = Literal["python", "network", "onnx", "tensorflow", "file"]

_WEIGHTS = "holds weights without the model's code"
_BUILD = (
    "write a function that builds the model and returns (model, args), and name it: model.py:build"
)
_FOREIGN_FILES = {
    (".pt", ".pth", ".ckpt", ".bin", ".pkl"): f"a checkpoint of PyTorch {_WEIGHTS}: {_BUILD}",
    (".safetensors",): f"a file of safetensors {_WEIGHTS}: {_BUILD}",
    (
        ".gguf",
    ): f"a file of llama.cpp {_WEIGHTS}: {_BUILD}, and export the plan with --to llama.cpp",
    (".h5", ".keras", ".tflite"): "files of Keras and TFLite are not read: save the model as ONNX "
    "or as a TensorFlow SavedModel",
}
"""Endings of files that are no graphs, and what to do instead."""
_FOREIGN_SUFFIXES = tuple(suffix for suffixes in _FOREIGN_FILES for suffix in suffixes)
_FILE_SUFFIXES = (".json", ".toml", ".gz", ".txt", ".onnx", ".pb", ".pbtxt", *_FOREIGN_SUFFIXES)
_HUB_NAME = re.compile(r"[\w.-]+/[\w.-]+")


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

    def check_file(self) -> None:
        """Raise FileError if it names a file that is missing, or that holds no graph."""
        if self.kind in ("python", "network"):
            return
        exists = os.path.lexists(self.text)
        for suffixes, remedy in _FOREIGN_FILES.items():
            if self.text.lower().endswith(suffixes):
                missing = "" if exists else "there is no such file; and "
                raise FileError(f"{self.text}: {missing}{remedy}")
        if exists:
            return
        if _HUB_NAME.fullmatch(self.text) and not self.text.endswith(_FILE_SUFFIXES):
            raise FileError(
                f"{self.text}: there is no such file; if it names a model of the Hugging Face hub, "
                "download it and name its folder, hf:FOLDER, which needs no more than its "
                "config.json; or build it in a Python file that returns (model, args): "
                "model.py:build"
            )
        raise FileError(f"{self.text}: there is no such file")

    @property
    def is_python(self) -> bool:
        """Whether it is a Python file, which is run to build the model."""
        return self.kind == "python"


def names_file(text: str) -> bool:
    """Whether a text names a file, which need not exist."""
    has_suffix = text.lower().endswith(_FILE_SUFFIXES)
    return os.path.lexists(text) or "/" in text or os.sep in text or has_suffix
