"""The folders of the user's cache."""

from __future__ import annotations

import os
import sys
from pathlib import Path


def cache_folder(name: str) -> Path:
    """The folder of this name in the user's cache, e.g. `graphs`; it may not exist yet."""
    user_home = Path.home()
    if sys.platform == "darwin":
        base = user_home / "Library" / "Caches"
    elif sys.platform == "win32":
        base = Path(os.environ.get("LOCALAPPDATA", user_home / "AppData" / "Local"))
    else:
        base = Path(os.environ.get("XDG_CACHE_HOME") or user_home / ".cache")
    return base / "placewright" / name
