"""Turns exceptions of PyTorch's exporters into one line that names the op or the user's line."""

from __future__ import annotations

import contextlib
import re
import sysconfig
import traceback
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from placewright.errors import GraphError, PlacewrightError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

_FRAME_PATTERN = re.compile(r'File "?([^"\n]+?)"?,? line (\d+), in [^\n]*\n\s*([^\n]*)')
_FRONTENDS = Path(__file__).parent.parent
_LIBRARIES = (
    str(Path(torch.__file__).parent),
    str(_FRONTENDS),
    str(_FRONTENDS.parent / "runtime" / "program"),
)
_PYTHON = sysconfig.get_path("stdlib")
_VALUE_ERRORS = frozenset(
    {
        "DataDependentOutputException",
        "DynamicOutputShapeException",
        "GuardOnDataDependentSymNode",
        "PendingUnbackedSymbolNotFound",
        "UnsupportedOperatorException",
    }
)
_MAX_MESSAGE = 300  # characters of a message that is not ours


@contextlib.contextmanager
def as_graph_error(subject: str) -> Iterator[None]:
    """Turn any exception inside into one `GraphError` that begins with the subject."""
    try:
        yield
    except PlacewrightError:
        raise
    except Exception as error:
        raise GraphError(f"{subject}: {describe_error(error)}") from error


@contextlib.contextmanager
def at_op(name: str) -> Iterator[None]:
    """Turn any unexpected exception inside into one `GraphError` that names the op."""
    try:
        yield
    except PlacewrightError:
        raise
    except Exception as error:
        reason = f"{type(error).__name__}: {_reason(error)}"
        raise GraphError(f"the captured model cannot be read: {reason}, at op {name!r}") from error


def describe_error(error: Exception) -> str:
    """The reason of an error, and its location in the user's code if it has one."""
    return f"{_reason(error)}{_user_location(error)}"


def refuse_detector(model: torch.nn.Module) -> None:
    """Refuse the detection models of torchvision, before exports that take minutes and fail.

    Raises:
        GraphError: The message says how to capture the backbone.
    """
    modules = [base.__module__ for base in type(model).__mro__]
    is_detector = any(name.startswith("torchvision.models.detection.") for name in modules)
    if is_detector and isinstance(getattr(model, "backbone", None), torch.nn.Module):
        raise GraphError(
            f"model {type(model).__name__!r} selects boxes by their values, so its sizes are not "
            "known before it runs: place its backbone alone, with "
            "pw.from_torch(model.backbone, model.transform(images)[0].tensors)"
        )


def value_advice(model: torch.nn.Module, ran: bool) -> str:
    """What to do with a model whose values are needed and that cannot be exported by running it.

    Args:
        ran: Whether it was run on the example; otherwise it is too large.
    """
    paths = [path for path, _ in model.named_modules() if path.split(".")[-1] == "backbone"]
    part = f"model.{paths[0]}" if paths else "model.part"
    attempt = (
        "to run it on the example did not help" if ran else "it is too large to run on the example"
    )
    return (
        f"it depends on values, and {attempt}: place the part that does not alone, such as "
        f"pw.from_torch({part}, example)"
    )


def most_specific(errors: Sequence[Exception]) -> Exception:
    """The last exception with a location in the user's code, or else the last."""
    return next((error for error in reversed(errors) if _user_location(error)), errors[-1])


def needs_values(error: BaseException | None) -> bool:
    """Whether an export failed because the values of tensors were needed, or an op was unknown."""
    while error is not None:
        if type(error).__name__ in _VALUE_ERRORS or "no fake impl" in str(error):
            return True
        error = error.__cause__ or error.__context__
    return False


def _reason(error: Exception) -> str:
    """The first line of an exception, or the op that it is about."""
    op = getattr(error, "func", None)  # exceptions of fake tensors carry their op
    if isinstance(op, torch._ops.OpOverload):
        return f"{op} depends on the values of tensors, and only their shapes are known"
    text = str(error).strip()
    explanation = re.search(r"Explanation: ([^\n]+)", text)
    line = explanation.group(1) if explanation else text.split("\n", 1)[0]
    line = " ".join(line.split()).rstrip(".")
    if len(line) > _MAX_MESSAGE:
        line = line[:_MAX_MESSAGE] + "..."
    return line or type(error).__name__


def _user_location(error: Exception) -> str:
    """The location of an error in the user's own code, or empty text."""
    frames = [(file, int(line), code) for file, line, code in _FRAME_PATTERN.findall(str(error))]
    frames += [
        (frame.filename, frame.lineno or 0, frame.line or "")
        for frame in traceback.extract_tb(error.__traceback__)
    ]
    for file, line, code in reversed(frames):
        if _is_user_file(file):
            return f", at {Path(file).name} line {line}: {code.strip()!r}"
    return ""


def _is_user_file(file: str) -> bool:
    """Whether a file belongs neither to Python, nor to PyTorch, nor to this package."""
    python = file.startswith(_PYTHON) and "site-packages" not in file
    return not (python or file.startswith((*_LIBRARIES, "<")))
