"""The contract of a store: SQLite and PostgreSQL do the same, also with several processes."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from placewright.errors import ConfigError, StoreError
from placewright.store import open_store, plain_data, schema
from placewright.store import store as store_module
from placewright.store.measurement_records import MeasurementRecord


def run_writers(location, *letters, count=5):
    """Write plans in several processes at the same time."""
    program = Path(__file__).parent / "writers.py"
    processes = [
        subprocess.Popen(
            [sys.executable, program, location, letter, str(count)], stdout=subprocess.DEVNULL
        )
        for letter in letters
    ]
    assert [process.wait(120) for process in processes] == [0] * len(letters)


def test_a_plan_is_found_by_its_key_with_all_of_its_fields(store, plan_record):
    assert store.get_plan("a" * 64) is None
    record = plan_record(name="a 'name' of 50 %, ? and \u4e2d", overflow=2**62, data={"x": [1]})
    assert store.put_plan(record)
    found = store.get_plan("a" * 64)
    for name in ("key", "kind", "name", "cluster", "objective", "overflow", "seconds", "bound"):
        assert getattr(found, name) == getattr(record, name), name
    for name in ("method", "digest", "version", "created_at", "data"):
        assert getattr(found, name) == getattr(record, name), name
    assert store.get_plan("b" * 64) is None
    assert store.remove_plan(found)
    assert store.get_plan("a" * 64) is None


@pytest.mark.parametrize(
    ("first", "second", "is_replaced"),
    [
        ((0, 2.0), (0, 1.0), True),
        ((0, 1.0), (0, 2.0), False),
        ((0, 1.0), (0, 1.0), False),
        ((8, 1.0), (0, 2.0), True),  # a plan that fits is better than one that does not
        ((0, 2.0), (8, 1.0), False),
    ],
)
def test_a_better_plan_replaces_a_worse_one_alone(store, plan_record, first, second, is_replaced):
    for at, (overflow, seconds) in enumerate((first, second)):
        stored = store.put_plan(plan_record(overflow=overflow, seconds=seconds))
        assert stored == (at == 0 or is_replaced)
    found = store.get_plan("a" * 64)
    assert (found.overflow, found.seconds) == (second if is_replaced else first)
    assert found.data == {"seconds": found.seconds}


def test_the_plan_that_a_model_runs_under_is_the_last_one(store, plan_record):
    for seconds in (1.0, 2.0):
        assert store.put_plan(plan_record(seconds=seconds, kind="model"))
    assert store.get_plan("a" * 64).seconds == 2.0


def test_a_plan_that_was_replaced_meanwhile_is_not_removed(store, plan_record):
    store.put_plan(plan_record(seconds=2.0))
    old = store.get_plan("a" * 64)
    store.put_plan(plan_record(seconds=1.0))
    assert not store.remove_plan(old)
    assert store.get_plan("a" * 64).seconds == 1.0


def test_plans_are_listed_by_last_use_and_pruned(store, plan_record):
    now = time.time()
    for at, key in enumerate("abc"):
        store.put_plan(plan_record(key * 64, used_at=now - 1000 * at))
    assert [record.key[0] for record in store.list_plans()] == ["a", "b", "c"]
    assert all(record.data == {} for record in store.list_plans())
    assert store.prune(older_than=1500) == 1
    assert [record.key[0] for record in store.list_plans()] == ["a", "b"]
    store.get_plan("b" * 64)  # which is a use
    assert store.prune(keep=1) == 1
    assert [record.key[0] for record in store.list_plans()] == ["b"]


def test_a_key_may_be_shortened_as_long_as_it_names_one_plan(store, plan_record):
    for key in ("abcd1", "abcd2"):
        store.put_plan(plan_record(key))
    assert store.find_plan("abcd1").data == {"seconds": 1.0}
    for prefix, message in (("abcd", "2 plans have"), ("efgh", "no plan has"), ("a", "2 plans")):
        with pytest.raises(ConfigError, match=f"{message}.*4 characters or more"):
            store.find_plan(prefix)


def test_measurements_of_a_plan_are_listed_the_last_one_first(store):
    values = ("chain", "machine", 1.5, 0.1, "d", "0.1.0")
    records = [MeasurementRecord(*values, created_at=float(at), data={"at": at}) for at in (1, 2)]
    for record in (*records, records[0]):  # one is sent twice
        store.put_measurement(record)
    found = store.list_measurements("d")
    assert [record.identity for record in found] == [record.identity for record in records[::-1]]
    assert (found[0].name, found[0].machine, found[0].seconds) == ("chain", "machine", 1.5)
    assert store.list_measurements("e") == []
    assert store.prune(keep=1) == 1


def test_profiles_and_timings_are_the_last_ones(store):
    assert store.get_profile("m") is None
    assert store.get_timings("m") == {}
    for number in (1, 2):
        store.put_profile("m", {"number": number})
        store.put_timings("m", {"op": {"row": [number]}, f"op{number}": {"row": []}})
    assert store.get_profile("m") == {"number": 2}
    assert store.get_timings("m") == {"op": {"row": [2]}, "op1": {"row": []}, "op2": {"row": []}}
    assert store.get_timings("other") == {}


def test_a_value_that_is_too_large_is_neither_written_nor_read(store, plan_record, monkeypatch):
    store.put_plan(plan_record(data={"x": "y" * 100}))
    monkeypatch.setattr(plain_data, "MAX_CHARACTERS", 50)
    monkeypatch.setattr("placewright.store.plan_records.MAX_CHARACTERS", 50)
    assert store.get_plan("a" * 64) is None
    with pytest.raises(StoreError, match="a value of 108 characters is not stored: expected 50 or"):
        store.put_plan(plan_record("b" * 64, data={"x": "y" * 100}))


def test_numbers_that_are_not_json_are_refused(store, plan_record):
    with pytest.raises(StoreError, match="a value cannot be stored"):
        store.put_plan(plan_record(data={"x": float("nan")}))


def test_names_that_no_database_takes_are_cleaned(store, plan_record):
    store.put_plan(plan_record(name="nul \0, half a pair \ud800" + "x" * 300))
    (found,) = store.list_plans()
    assert found.name.startswith("nul ?, half a pair ?xxx")
    assert len(found.name) == plain_data.MAX_NAME


def test_a_local_store_holds_the_plans_that_were_used_last(store, plan_record, monkeypatch):
    monkeypatch.setattr(store_module, "MAX_PLANS", 2)
    for at, key in enumerate("abc"):
        store.put_plan(plan_record(key * 64, used_at=float(at)))
    keys = [record.key[0] for record in store.list_plans()]
    assert keys == (["c", "b", "a"] if store.database.is_shared else ["c", "b"])


def test_the_best_plan_of_several_processes_stays(location):
    run_writers(location, "=", "=", "=")
    found = open_store(location).get_plan("a" * 64)
    assert (found.seconds, found.data["key"]) == (1.0, "1")


def test_several_processes_make_one_schema_and_lose_nothing(location):
    run_writers(location, *"abc")
    keys = {record.key for record in open_store(location).list_plans()}
    assert keys == {f"{letter}{at}" for letter in "abc" for at in range(5)}


def test_an_older_schema_is_brought_forward_with_what_it_holds(store, plan_record, monkeypatch):
    store.put_plan(plan_record())
    added = ("ALTER TABLE placewright_plans ADD COLUMN note TEXT NOT NULL DEFAULT 'n'",)
    monkeypatch.setattr(schema, "MIGRATIONS", (*schema.MIGRATIONS, added))
    newer = store_module.Store(store.database)
    threads = [threading.Thread(target=newer.get_plan, args=("a" * 64,)) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert newer.get_plan("a" * 64).seconds == 1.0
    query = "SELECT note FROM placewright_plans"
    assert store.database.run(lambda transaction: transaction.rows(query)) == [("n",)]


def test_a_migration_that_fails_changes_nothing(store, plan_record, monkeypatch):
    store.put_plan(plan_record())
    broken = ("CREATE TABLE placewright_more (x INTEGER)", "CREATE TABLE nonsense nonsense")
    with monkeypatch.context() as patch:
        patch.setattr(schema, "MIGRATIONS", (*schema.MIGRATIONS, broken))
        with pytest.raises(StoreError, match="syntax error"):
            store_module.Store(store.database).get_plan("a" * 64)
    assert store_module.Store(store.database).get_plan("a" * 64).seconds == 1.0
    has_table = store.database.has_table
    assert not store.database.run(lambda transaction: has_table(transaction, "placewright_more"))


def test_a_newer_schema_is_refused_with_a_word(store, plan_record, monkeypatch):
    with monkeypatch.context() as patch:
        patch.setattr(schema, "MIGRATIONS", (*schema.MIGRATIONS, ()))
        store.put_plan(plan_record())
    old = store_module.Store(store.database)
    with pytest.raises(
        StoreError, match=r"of version 2, made by a newer release; this one knows 1"
    ):
        old.put_plan(plan_record(seconds=0.5))
    monkeypatch.setattr(schema, "MIGRATIONS", (*schema.MIGRATIONS, ()))
    assert store.get_plan("a" * 64).seconds == 1.0  # and it was not touched
