"""The command line: parses arguments, and prints tables or one JSON object.

One file a command.
"""

from __future__ import annotations

import io
import os
import sys
from typing import TYPE_CHECKING

from placewright.errors import PlacewrightError

if TYPE_CHECKING:
    from collections.abc import Sequence


def main(arguments: Sequence[str] | None = None) -> None:
    """Run a command and exit: 0, also when no plan fits; 1 for bad input; 2 for bad usage.

    And 130 where a person stopped it.
    """
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):  # a terminal that knows no µ must not stop us
            stream.reconfigure(errors="backslashreplace")
    try:
        # Here, since it takes a while, in which a person may think better of it.
        from placewright.cli.app import app

        try:
            app(arguments)
        finally:
            if sys.stdout is not None:  # None: it is closed
                sys.stdout.flush()  # here, where a reader that has gone away can be told apart
    except PlacewrightError as error:
        print("placewright:", " ".join(str(error).split("\n")), file=sys.stderr)
        sys.exit(1)
    except BrokenPipeError:
        _drop_output()
        sys.exit(1)
    except OSError as error:
        # Files are opened where their errors are told: one without a name is of the output.
        message = f"{error.filename or 'the output'}: {error.strerror or error}"
        print("placewright:", " ".join(message.split("\n")), file=sys.stderr)
        _drop_output()
        sys.exit(1)
    except KeyboardInterrupt:  # typer answers those that come later
        sys.exit(130)


def _drop_output() -> None:
    """Let what is left to be written go nowhere, or Python would try again when it exits."""
    if sys.stdout is not None:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
