"""Builds the model that a function in a Python file returns, and reads it as a Graph."""

from __future__ import annotations

import contextlib
import importlib.util
import inspect
import sys
import traceback
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from placewright.errors import ConfigError, FileError, PlacewrightError, nearest
from placewright.frontends.python_source import returned_module
from placewright.frontends.pytorch.frontend import from_torch
from placewright.frontends.sample_counts import step_counts
from placewright.frontends.text_files import file_label
from placewright.logs import log_duration

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from types import ModuleType

    from placewright.graph import Graph

DEFAULT_FUNCTION = "build"
_MODULE_NAME = "_placewright_model"  # the name of the user's file in sys.modules


def from_python(
    spec: str | Path,
    training: bool = False,
    optimizer: str | None = None,
    name: str | None = None,
    arguments: Mapping[str, int] | None = None,
) -> Graph:
    """The graph of the PyTorch model that a function in a Python file builds.

    The file is run, as `import` would run it, and the function called. It returns
    (model, args, kwargs), or (model, args); the model may be built on `meta`. Parameters of the
    function named `batch` and `tokens` say what a step processes.

    Args:
        spec: The file and the function, e.g. `model.py:build`; the default function is `build`.
        training: Capture a training step; see `from_torch`.
        optimizer: See `from_torch`.
        name: The graph's name, by default that of the model's class.
        arguments: Arguments of the function; by default none.

    Raises:
        FileError: The file cannot be read, or an error happened in it; the message names the line.
        ConfigError: The function takes no such argument.
        GraphError: The model cannot be exported.
    """
    with log_duration(f"running {spec}"):
        model, args, kwargs, sizes = _build(spec, arguments or {})
    with _folder_on_path(_split_spec(str(spec))[0]):
        graph = from_torch(model, args, kwargs, training, optimizer, name)
    return graph.with_counts(**step_counts(sizes))


def build_model(spec: str | Path) -> tuple[Any, Sequence[Any], Mapping[str, Any]]:
    """The model that a function in a Python file builds, and its arguments.

    Raises:
        FileError: The file cannot be read, or an error happened in it; the message names the line.
    """
    return _build(spec, {})[:3]


def build_parameters(spec: str | Path) -> dict[str, object]:
    """The parameters of the function in a Python file that builds a model, with their defaults.

    Raises:
        FileError: The file cannot be read, or an error happened in it; the message names the line.
    """
    path, function = _split_spec(str(spec))
    with _folder_on_path(path):
        return _parameters(_find_function(path, _load_module(path), function))


def _build(
    spec: str | Path, arguments: Mapping[str, int]
) -> tuple[Any, Sequence[Any], Mapping[str, Any], Mapping[str, object]]:
    """The model, the arguments of its call, and those of the function that builds it."""
    path, function = _split_spec(str(spec))
    subject = f"{file_label(path)}: {function}()"
    with _folder_on_path(path):
        build = _find_function(path, _load_module(path), function)
        parameters = _parameters(build)
        for key in arguments:
            if key not in parameters:
                raise ConfigError(
                    f"{subject} has no parameter {key!r}: write def {function}({key}=1) and use it "
                    "for the example input"
                )
        returned_class = returned_module(build)
        if returned_class is not None:  # seen before a large model is built in vain
            raise _no_inputs_error(subject, function, returned_class)
        try:
            result = build(**arguments)
        except (Exception, SystemExit) as error:
            raise _file_error(subject, path, error) from error
        if not isinstance(result, tuple) and callable(result):
            raise _no_inputs_error(subject, function, type(result))
        if not (isinstance(result, tuple) and len(result) in (2, 3)):
            length = f" of {len(result)}" if isinstance(result, tuple) else ""
            raise FileError(
                f"{subject} returned a value of type {type(result).__name__}{length}: "
                "expected (model, args, kwargs)"
            )
        if len(result) == 3 and not isinstance(result[2], Mapping):
            raise FileError(
                f"{subject} returned arguments by name of type {type(result[2]).__name__}: "
                "expected a dict"
            )
        whole = result if len(result) == 3 else (*result, {})
        return (*whole, {**parameters, **arguments})


def _parameters(function: Callable[..., Any]) -> dict[str, object]:
    """Parameters with their defaults, as far as Python can tell."""
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):
        return {}
    return {parameter.name: parameter.default for parameter in parameters}


def _no_inputs_error(subject: str, function: str, model: type) -> FileError:
    """A model alone says nothing of the sizes of a step."""
    error = FileError(
        f"{subject} returns a model of type {model.__name__} without an example input, which sets "
        "the sizes of a step: expected (model, args)"
    )
    error.add_note(
        f"    def {function}(batch=1):\n"
        f"        model = {model.__name__}(...)\n"
        "        return model, (torch.zeros(batch, 128, dtype=torch.long),)"
    )
    return error


@contextlib.contextmanager
def _folder_on_path(path: Path) -> Iterator[None]:
    """Let the user's file import modules of its own folder, as a script can."""
    folder = str(path.resolve().parent)
    sys.path.insert(0, folder)
    try:
        yield
    finally:
        with contextlib.suppress(ValueError):  # the user's file removed it
            sys.path.remove(folder)


def _split_spec(spec: str) -> tuple[Path, str]:
    """The file and the function; what follows the colon of a drive is not an identifier."""
    file, colon, function = spec.rpartition(":")
    if not colon or not function.isidentifier():
        return Path(spec), DEFAULT_FUNCTION
    return Path(file), function


def _load_module(path: Path) -> ModuleType:
    """The user's file as a module."""
    if not path.is_file():
        raise FileError(f"{file_label(path)} does not exist: expected a Python file")
    module_spec = importlib.util.spec_from_file_location(_MODULE_NAME, path)
    if module_spec is None or module_spec.loader is None:
        raise FileError(
            f"{file_label(path)} is not a Python file: expected a name that ends in '.py'"
        )
    module = importlib.util.module_from_spec(module_spec)
    sys.modules[_MODULE_NAME] = module
    try:
        module_spec.loader.exec_module(module)
    except (Exception, SystemExit) as error:
        raise _file_error(file_label(path), path, error) from error
    return module


def _find_function(path: Path, module: ModuleType, name: str) -> Callable[..., Any]:
    function: Callable[..., Any] | None = getattr(module, name, None)
    if callable(function):
        return function
    function_names = [
        word for word, value in vars(module).items() if callable(value) and word[0] != "_"
    ]
    raise FileError(f"{file_label(path)} has no function {name!r}: {nearest(name, function_names)}")


def _file_error(subject: str, path: Path, error: BaseException) -> FileError:
    """An error in the user's file in one line: its text, and the last line of that file."""
    reason = str(error).strip().split("\n", 1)[0] or "no reason given"
    if isinstance(error, SyntaxError):
        return FileError(f"{subject} line {error.lineno}: {error.msg}")
    lines = [
        f" line {frame.lineno}"
        for frame in traceback.extract_tb(error.__traceback__)
        if Path(frame.filename).resolve() == path.resolve()
    ]
    if not isinstance(error, PlacewrightError):  # whose messages need no type
        reason = f"{type(error).__name__}: {reason}"
    return FileError(f"{subject}{lines[-1] if lines else ''}: {reason}")
