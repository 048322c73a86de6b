"""What tests of deployment share: a cache folder of their own, and tiny models."""

from __future__ import annotations

import pytest


@pytest.fixture(autouse=True)
def own_cache(tmp_path, monkeypatch):
    """Plans are stored in a folder of the test."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("PLACEWRIGHT_STORE", str(tmp_path / "store.sqlite"))
