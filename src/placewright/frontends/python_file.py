"""A Python file and the name of a function in it in, the Graph of the model that it builds out."""

from __future__ import annotations

import contextlib
import importlib.util
import sys
import traceback
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from placewright.errors import FileError, PlacewrightError, nearest
from placewright.frontends.pytorch.frontend import from_torch
from placewright.frontends.workloads.checks import place

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from types import ModuleType

    from placewright.graph import Graph

DEFAULT = "build"
_MODULE = "_placewright_model"  # under which the user's file is loaded


def from_python(
    spec: str | Path,
    training: bool = False,
    optimizer: str | None = None,
    name: str | None = None,
) -> Graph:
    """The graph of the PyTorch model that a function in a Python file builds.

    The file is run, as `import` would run it, and the function called without arguments. It
    returns (model, args, kwargs), or (model, args); the model may be built on `meta`.

    Args:
        spec: The file and the function, such as `model.py:build`; `build` may be left out.
        training: Capture a training step; see `from_torch`.
        optimizer: See `from_torch`.
        name: The graph's name, by default that of the model's class.

    Raises:
        FileError: The file cannot be read, or an error happened in it; the message names the line.
        GraphError: The model cannot be exported.
    """
    model, args, kwargs = build_model(spec)
    with _folder_in_reach(_split(str(spec))[0]):
        return from_torch(model, args, kwargs, training, optimizer, name)


def build_model(spec: str | Path) -> tuple[Any, Sequence[Any], Mapping[str, Any]]:
    """The model that a function in a Python file builds, and what it is called with.

    Raises:
        FileError: The file cannot be read, or an error happened in it; the message names the line.
    """
    path, function = _split(str(spec))
    subject = f"{place(path)}: {function}()"
    with _folder_in_reach(path):
        build = _function(path, _load(path), function)
        try:
            made = build()
        except (Exception, SystemExit) as error:
            raise _failure(subject, path, error) from error
        if not (isinstance(made, tuple) and len(made) in (2, 3)):
            size = f" of {len(made)}" if isinstance(made, tuple) else ""
            raise FileError(
                f"{subject} returned a {type(made).__name__}{size}: expected (model, args, kwargs)"
            )
        if len(made) == 3 and not isinstance(made[2], Mapping):
            raise FileError(
                f"{subject} returned arguments by name of type {type(made[2]).__name__}: "
                "expected a dict"
            )
        return made if len(made) == 3 else (*made, {})


@contextlib.contextmanager
def _folder_in_reach(path: Path) -> Iterator[None]:
    """Let the user's file import its neighbours, as a script can."""
    folder = str(path.resolve().parent)
    sys.path.insert(0, folder)
    try:
        yield
    finally:
        with contextlib.suppress(ValueError):  # the file took it out itself
            sys.path.remove(folder)


def _split(spec: str) -> tuple[Path, str]:
    """The file and the function; the colon of a drive is followed by no function."""
    file, colon, function = spec.rpartition(":")
    if not colon or not function.isidentifier():
        return Path(spec), DEFAULT
    return Path(file), function


def _load(path: Path) -> ModuleType:
    """The user's file as a module."""
    if not path.is_file():
        raise FileError(f"{place(path)} does not exist: expected a Python file")
    found = importlib.util.spec_from_file_location(_MODULE, path)
    if found is None or found.loader is None:
        raise FileError(f"{place(path)} is not a Python file: expected a name that ends in '.py'")
    module = importlib.util.module_from_spec(found)
    sys.modules[_MODULE] = module
    try:
        found.loader.exec_module(module)
    except (Exception, SystemExit) as error:
        raise _failure(place(path), path, error) from error
    return module


def _function(path: Path, module: ModuleType, name: str) -> Callable[[], Any]:
    function: Callable[[], Any] | None = getattr(module, name, None)
    if callable(function):
        return function
    known = [word for word, value in vars(module).items() if callable(value) and word[0] != "_"]
    raise FileError(f"{place(path)} has no function {name!r}: {nearest(name, known)}")


def _failure(subject: str, path: Path, error: BaseException) -> FileError:
    """One line about an error in the user's file: what it was, and the last line there."""
    reason = str(error).strip().split("\n", 1)[0] or "no reason given"
    if isinstance(error, SyntaxError):
        return FileError(f"{subject} line {error.lineno}: {error.msg}")
    lines = [
        f" line {frame.lineno}"
        for frame in traceback.extract_tb(error.__traceback__)
        if Path(frame.filename).resolve() == path.resolve()
    ]
    if not isinstance(error, PlacewrightError):  # whose messages stand for themselves
        reason = f"{type(error).__name__}: {reason}"
    return FileError(f"{subject}{lines[-1] if lines else ''}: {reason}")
