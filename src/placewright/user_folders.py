"""The user's configuration folder."""

from __future__ import annotations

import os
from pathlib import Path


def config_folder() -> Path:
    """The folder of the user's own files, e.g. `devices.toml`; it may not exist.

    It is `PLACEWRIGHT_CONFIG`, or `placewright` in `XDG_CONFIG_HOME`, or `~/.config/placewright`.
    """
    chosen = os.environ.get("PLACEWRIGHT_CONFIG")
    if chosen:
        return Path(chosen)
    base = os.environ.get("XDG_CONFIG_HOME")
    return (Path(base) if base else Path.home() / ".config") / "placewright"
