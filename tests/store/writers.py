"""Writes plans into a store, as a program of its own: `python writers.py LOCATION LETTER COUNT`.

It prints the key of each plan once it is stored. LETTER `=` writes better and better plans of one
key.
"""

from __future__ import annotations

import sys

from placewright.store import open_store
from placewright.store.plan_records import PlanRecord

KEY = "a" * 64


def make_record(key: str = KEY, seconds: float = 1.0, **changes: object) -> PlanRecord:
    """A plan of a key that takes some seconds."""
    values = {
        "key": key,
        "kind": "problem",
        "name": "chain",
        "cluster": "2xP100",
        "objective": "step",
        "overflow": 0,
        "seconds": seconds,
        "bound": 0.5,
        "method": "auto",
        "digest": "d",
        "version": "0.1.0",
        "created_at": 1000.0,
        "used_at": 1000.0,
        "data": {"seconds": seconds},
    }
    return PlanRecord(**{**values, **changes})


def long_data(key: str) -> dict[str, object]:
    """Data of many pages, so that a write takes a while."""
    return {"key": key, "values": [key] * 5_000}


def main(location: str, letter: str, count: int) -> None:
    store = open_store(location)
    for at in range(count):
        if letter == "=":
            store.put_plan(make_record(seconds=float(count - at), data=long_data(str(count - at))))
            print(count - at, flush=True)
        else:
            key = f"{letter}{at}"
            assert store.put_plan(make_record(key, data=long_data(key)))
            print(key, flush=True)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]))
