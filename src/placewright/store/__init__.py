"""The store: best plans, measured plans and profiles, between two runs of a program.

`open_store` opens it; `search_start` finds a plan to start a search from, and stores results.
SQL is written by hand: four tables, in the dialect that SQLite and PostgreSQL share. SQLAlchemy
would be a dependency of the core for a placeholder and a lock, which are all that differs.
"""

from placewright.store.location import open_store
from placewright.store.store import Store

__all__ = ["Store", "open_store"]
