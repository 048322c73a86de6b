"""cuBLAS workspaces: freed only while no CUDA graph uses them."""

from __future__ import annotations

from typing import TYPE_CHECKING
from weakref import WeakSet

from placewright.runtime.cuda.backend import current_backend

if TYPE_CHECKING:
    from placewright.runtime.cuda.issuer import Issuer

open_issuers: WeakSet[Issuer] = WeakSet()
"""Issuers that have not released their streams."""


def clear_workspaces() -> None:
    """Free cuBLAS's workspaces of all streams; cuBLAS allocates them again when it is used.

    They stay while there are graphs anywhere, which were captured with them.
    """
    has_graphs = any(issuer.cuda_graphs.has_graphs for issuer in open_issuers)
    backend = current_backend()
    if backend.device_count() and not has_graphs:
        backend.clear_workspaces()
