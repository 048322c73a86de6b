"""Options of every command: how much is printed, and the file of defaults."""

import functools
import inspect
import logging
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer

from placewright.cli import panels
from placewright.errors import printable

META_KEY = "placewright.cli"  # of what the root command passes to the others
CONFIG_KEY = "placewright.config"  # of the file of defaults that is used
logger = logging.getLogger("placewright")


class LogLevel(StrEnum):
    """The least severe messages that are printed."""

    DEBUG = "debug"
    INFO = "info"
    WARNING = "warning"
    ERROR = "error"


Verbose = Annotated[
    int,
    typer.Option(
        "-v",
        "--verbose",
        count=True,
        show_default=False,
        help="Print what takes long as it begins and ends; -vv prints more.",
        rich_help_panel=panels.GENERAL,
    ),
]
Quiet = Annotated[
    bool,
    typer.Option(
        "-q",
        "--quiet",
        help="Print no progress and no warnings.",
        rich_help_panel=panels.GENERAL,
    ),
]
LogLevelOption = Annotated[
    LogLevel | None,
    typer.Option(
        "--log-level",
        metavar="LEVEL",
        help="debug, info, warning or error. [default: warning]",
        rich_help_panel=panels.GENERAL,
    ),
]
Config = Annotated[
    Path | None,
    typer.Option(
        "--config",
        metavar="FILE",
        help="Defaults of options. [default: placewright.toml here or in a folder above]",
        rich_help_panel=panels.GENERAL,
    ),
]
_OPTIONS: dict[str, tuple[Any, Any]] = {
    "verbose": (Verbose, 0),
    "quiet": (Quiet, False),
    "log_level": (LogLevelOption, None),
    "config": (Config, None),
}


def with_general_options(command: Callable[..., None]) -> Callable[..., None]:
    """Give a command -v, -q, --log-level and --config."""
    parameters = [
        inspect.Parameter("context", inspect.Parameter.KEYWORD_ONLY, annotation=typer.Context),
        *(
            each.replace(kind=inspect.Parameter.KEYWORD_ONLY)
            for each in inspect.signature(command).parameters.values()
        ),
        *(
            inspect.Parameter(
                name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=annotation
            )
            for name, (annotation, default) in _OPTIONS.items()
        ),
    ]

    @functools.wraps(command)
    def run(context: typer.Context, **arguments: Any) -> None:
        typed = {name: arguments.pop(name) for name in _OPTIONS}
        root = context.meta.get(META_KEY, {})
        general = {name: value or root.get(name) for name, value in typed.items()}
        level = message_level(general["verbose"] or 0, general["quiet"], general["log_level"])
        with log_to_stderr(level):
            config = context.meta.get(CONFIG_KEY)
            if config is not None:
                names = ", ".join(sorted(config[1])) or "nothing for this command"
                logger.info("%s sets %s", config[0], names.replace("_", "-"))
            command(**arguments)

    run.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]  # typer reads it
    run.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    return run


def message_level(verbose: int, quiet: bool | None, level: LogLevel | None) -> int:
    """The level of `logging` that the options name.

    Raises:
        typer.BadParameter: They contradict each other.
    """
    given = [
        name for name, value in (("-v", verbose), ("-q", quiet), ("--log-level", level)) if value
    ]
    if len(given) > 1:
        raise typer.BadParameter(
            "they contradict each other: keep one", param_hint=" and ".join(given)
        )
    if level is not None:
        return int(getattr(logging, level.name))
    if quiet:
        return logging.ERROR
    return (logging.WARNING, logging.INFO, logging.DEBUG)[min(verbose, 2)]


@contextmanager
def log_to_stderr(level: int) -> Iterator[None]:
    """Print messages of this level and above, a line each."""
    handler, former = _StderrHandler(), logger.level
    logger.addHandler(handler)
    logger.setLevel(level)
    try:
        yield
    finally:
        logger.removeHandler(handler)
        logger.setLevel(former)


def is_quiet() -> bool:
    """Whether no progress and no notes are to be printed."""
    return not logger.isEnabledFor(logging.WARNING)


class _StderrHandler(logging.Handler):
    """Writes to what stderr is now: a progress bar puts lines above itself."""

    def emit(self, record: logging.LogRecord) -> None:
        if sys.stderr is not None:  # None: it is closed
            print("placewright:", printable(record.getMessage()), file=sys.stderr, flush=True)
