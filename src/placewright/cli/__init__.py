"""The command line: parses arguments, calls the library, and prints tables or one JSON object.

One file per command.
"""

from __future__ import annotations

import io
import os
import sys
from typing import TYPE_CHECKING

from placewright.errors import PlacewrightError, printable

if TYPE_CHECKING:
    from collections.abc import Sequence


def main(arguments: Sequence[str] | None = None) -> None:
    """Run a command and exit.

    The status is 0, also when no plan fits; 1 for bad input; 2 for bad usage; 130 after Ctrl-C.
    """
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):  # a terminal without a µ must not stop us
            stream.reconfigure(errors="backslashreplace")
    try:
        # Imported here: it takes a while, in which Ctrl-C may be pressed.
        from placewright.cli.app import app
        from placewright.cli.renamed_options import replace_old_options

        try:
            words = sys.argv[1:] if arguments is None else arguments
            app(replace_old_options(words), prog_name="placewright")
        finally:
            if sys.stdout is not None:  # None: it is closed
                sys.stdout.flush()  # here, where a closed pipe can be told apart
    except PlacewrightError as error:
        print("placewright:", error, file=sys.stderr)
        for note in getattr(error, "__notes__", ()):  # an example of several lines
            print("\n".join(map(printable, note.split("\n"))), file=sys.stderr)
        sys.exit(1)
    except BrokenPipeError:
        _drop_output()
        sys.exit(1)
    except OSError as error:
        # Files that we open report errors themselves: an error without a name is the output's.
        message = f"{error.filename or 'the output'}: {error.strerror or error}"
        print("placewright:", printable(message), file=sys.stderr)
        _drop_output()
        sys.exit(1)
    except KeyboardInterrupt:  # typer handles later ones
        sys.exit(130)


def _drop_output() -> None:
    """Discard what is still to be written, or Python would try again when it exits."""
    if sys.stdout is not None:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
