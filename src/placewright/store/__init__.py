"""The store: best plans, measured plans and profiles, between two runs of a program.

`open_store` opens it; `search_start` finds a plan to start a search from, and stores results.
SQL is written by hand: four tables, in the dialect that SQLite and PostgreSQL share. SQLAlchemy
would be a dependency of the core for a placeholder and a lock, which are all that differs.
"""

from typing import TYPE_CHECKING

from placewright.store.location import open_store
from placewright.store.store import Store

if TYPE_CHECKING:
    from placewright.store.search_start import find_start as find_start
    from placewright.store.search_start import find_workload_start as find_workload_start
    from placewright.store.search_start import store_result as store_result

__all__ = ["Store", "find_start", "find_workload_start", "open_store", "store_result"]


def __getattr__(name: str) -> object:
    """What needs the simulator loads on first use: a list of plans needs none."""
    if name in __all__:
        from placewright.store import search_start

        return getattr(search_start, name)
    raise AttributeError(f"module 'placewright.store' has no attribute {name!r}")
