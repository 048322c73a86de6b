"""The plan store: safe with several processes, and no error whatever its file is."""

from __future__ import annotations

import multiprocessing
import os
import sqlite3

import pytest

from placewright.deployment import plan_store
from placewright.deployment.plan_store import PlanStore, store_key


def test_a_plan_is_found_by_its_key_alone(tmp_path):
    store = PlanStore(tmp_path / "deep" / "plans.sqlite")
    assert store.get("a") is None
    assert store.put("a", {"plan": [1, 2]})
    assert store.get("a") == {"plan": [1, 2]}
    assert store.get("b") is None
    store.remove("a")
    assert store.get("a") is None


def test_keys_differ_in_any_fact_and_not_in_its_order():
    key = store_key({"limits": {"gpu0": 4}, "model": "a"})
    assert key == store_key({"model": "a", "limits": {"gpu0": 4}})
    assert key != store_key({"model": "a", "limits": {"gpu0": 5}})


def test_plans_that_were_used_last_stay(tmp_path, monkeypatch):
    monkeypatch.setattr(plan_store, "MAX_PLANS", 2)
    clock = iter(range(100))
    monkeypatch.setattr(plan_store.time, "time", lambda: next(clock))
    store = PlanStore(tmp_path / "plans.sqlite")
    store.put("a", {})
    store.put("b", {})
    assert store.get("a") == {}  # used after b
    store.put("c", {})
    assert [store.get(key) for key in "abc"] == [{}, None, {}]


def test_a_plan_that_is_too_large_is_not_kept(tmp_path, monkeypatch):
    monkeypatch.setattr(plan_store, "MAX_BYTES", 20)
    store = PlanStore(tmp_path / "plans.sqlite")
    assert not store.put("a", {"plan": "x" * 30})
    assert store.get("a") is None


def test_a_damaged_file_is_a_warning(tmp_path, caplog):
    path = tmp_path / "plans.sqlite"
    path.write_bytes(b"not a database" * 100)
    store = PlanStore(path)
    assert store.get("a") is None
    assert not store.put("a", {})
    assert len(caplog.records) == 2
    assert "remove it if it is damaged" in caplog.text


def test_text_that_is_no_plan_is_none(tmp_path, caplog):
    store = PlanStore(tmp_path / "plans.sqlite")
    store.put("a", {})
    with sqlite3.connect(store.path) as connection:
        connection.execute("UPDATE plans SET data = '[1'")
    connection.close()
    assert store.get("a") is None
    assert "cannot be read" in caplog.text


@pytest.mark.skipif(os.geteuid() == 0, reason="root writes anywhere")
def test_a_folder_that_cannot_be_written_is_a_warning(tmp_path, caplog):
    tmp_path.chmod(0o500)
    assert not PlanStore(tmp_path / "deep" / "plans.sqlite").put("a", {})
    tmp_path.chmod(0o700)
    assert "cannot be written" in caplog.text


def test_a_locked_file_is_a_warning(tmp_path, monkeypatch, caplog):
    monkeypatch.setattr(plan_store, "BUSY_SECONDS", 0.01)
    store = PlanStore(tmp_path / "plans.sqlite")
    store.put("a", {"plan": 1})
    other = sqlite3.connect(store.path)
    other.execute("BEGIN EXCLUSIVE")
    try:
        assert not store.put("b", {})
        assert "cannot be written" in caplog.text
    finally:
        other.rollback()
        other.close()
    assert store.get("a") == {"plan": 1}


def _put_many(path, first):
    store = PlanStore(path)
    for number in range(first, first + 10):
        assert store.put(str(number), {"plan": number})


def test_several_processes_may_write_at_once(tmp_path):
    path = tmp_path / "plans.sqlite"
    context = multiprocessing.get_context("spawn")
    processes = [context.Process(target=_put_many, args=(path, first)) for first in (0, 10, 20)]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
        assert process.exitcode == 0
    assert [PlanStore(path).get(str(number)) for number in range(30)] == [
        {"plan": number} for number in range(30)
    ]
