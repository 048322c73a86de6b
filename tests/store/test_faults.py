"""Faults of a store: a warning, planning goes on, and nothing that was stored is lost."""

from __future__ import annotations

import contextlib
import os
import random
import resource
import signal
import sqlite3
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest
from writers import long_data

from placewright.errors import ConfigError, MissingDependency, StoreError
from placewright.store import network_mounts, open_store, postgresql, sqlite_database
from placewright.store.store import warn_of_failure

WRITERS = Path(__file__).parent / "writers.py"


def kill_writer(location, letter, delay):
    """Kill a process that writes, some time after its first plan; the keys it had stored."""
    process = subprocess.Popen(
        [sys.executable, WRITERS, location, letter, "100000"], stdout=subprocess.PIPE, text=True
    )
    first = process.stdout.readline()
    time.sleep(delay)
    process.send_signal(signal.SIGKILL)
    rest = process.stdout.read()
    process.wait()
    process.stdout.close()
    return [first.strip(), *rest.split()]


def check_all_there(location, keys):
    store = open_store(location)
    for key in keys:
        assert store.get_plan(key).data == long_data(key), key
    if not store.database.is_shared:
        query = "PRAGMA integrity_check"
        assert store.database.run(lambda transaction: transaction.rows(query)) == [("ok",)]


def kill_often(location, count):
    generator = random.Random(count)
    for at in range(count):
        keys = kill_writer(location, f"k{at}-", generator.uniform(0.0, 0.05))
        check_all_there(location, keys)


def test_a_killed_writer_loses_nothing_that_it_had_stored(location):
    kill_often(location, 3)


@pytest.mark.slow
def test_fifty_killed_writers_lose_nothing_that_they_had_stored(location):
    kill_often(location, 50)


def kill_server_often(server, count):
    location = server.new_schema()
    generator = random.Random(count)
    for at in range(count):
        process = subprocess.Popen(
            [sys.executable, WRITERS, location, f"s{at}-", "100000"],
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        first = process.stdout.readline()
        time.sleep(generator.uniform(0.0, 0.05))
        server.kill()
        rest = process.stdout.read()  # it gives up after its last attempt
        assert process.wait() == 1
        process.stdout.close()
        server.start()
        check_all_there(location, [first.strip(), *rest.split()])


def test_a_killed_server_loses_nothing_that_it_had_stored(postgres):
    kill_server_often(postgres, 3)


@pytest.mark.slow
def test_fifty_killed_servers_lose_nothing_that_they_had_stored(postgres):
    kill_server_often(postgres, 50)


def test_a_server_that_is_restarted_between_two_calls_is_not_noticed(postgres, plan_record):
    store = open_store(postgres.new_schema())
    store.put_plan(plan_record())
    postgres.stop()
    postgres.start()
    assert store.get_plan("a" * 64).seconds == 1.0


def test_a_server_that_is_back_in_time_is_waited_for(postgres, plan_record, monkeypatch):
    store = open_store(postgres.new_schema())
    store.put_plan(plan_record())
    pauses = []

    def pause(seconds):
        pauses.append(seconds)
        if len(pauses) == 2:
            postgres.start()

    postgres.stop()
    monkeypatch.setattr(postgresql.time, "sleep", pause)
    assert store.get_plan("a" * 64).seconds == 1.0
    assert len(pauses) == 2
    assert pauses[0] <= postgresql.FIRST_PAUSE
    assert pauses[1] >= postgresql.FIRST_PAUSE  # of 0.4 s at least a half


def test_a_server_that_is_stopped_is_a_warning(postgres, plan_record, monkeypatch, caplog):
    store = open_store(postgres.new_schema())
    store.put_plan(plan_record())
    monkeypatch.setattr(postgresql, "FIRST_PAUSE", 0.001)
    postgres.stop()
    try:
        assert warn_of_failure(lambda: store.get_plan("a" * 64), None) is None
    finally:
        postgres.start()
    assert "cannot be used: connection " in caplog.text
    assert caplog.text.count("planning goes on without it") == 1
    assert store.get_plan("a" * 64).seconds == 1.0


def test_a_server_that_hangs_is_given_up(postgres, plan_record, monkeypatch):
    store = open_store(postgres.new_schema())
    store.put_plan(plan_record())
    monkeypatch.setattr(postgresql, "DEADLINE", 0.5)
    process = postgres.process
    os.kill(process, signal.SIGSTOP)
    try:
        with pytest.raises(StoreError, match=r"cannot be used: no answer within 0\.5 s"):
            store.get_plan("a" * 64)
    finally:
        os.kill(process, signal.SIGCONT)
    monkeypatch.undo()
    assert store.get_plan("a" * 64).seconds == 1.0


def test_a_password_is_in_no_message(monkeypatch):
    pytest.importorskip("psycopg")
    monkeypatch.setattr(postgresql, "FIRST_PAUSE", 0.001)
    store = open_store("postgresql://me:secret@127.0.0.1:1/plans?connect_timeout=2")
    with pytest.raises(StoreError, match=r"postgresql://127\.0\.0\.1:1/plans cannot be") as info:
        store.list_plans()
    assert "secret" not in str(info.value)
    with pytest.raises(ConfigError, match="is no address of PostgreSQL") as info:
        open_store("postgresql://me:secret@host/plans?nonsense=1")
    assert "secret" not in str(info.value)


def test_without_psycopg_the_extra_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "psycopg", None)
    with pytest.raises(MissingDependency, match=r"pip install 'placewright\[postgres\]'"):
        open_store("postgresql://host/plans")


@pytest.mark.parametrize("text", ["mysql://me:secret@host/x", "sqlite:///x"])
def test_another_address_is_refused(text):
    with pytest.raises(ConfigError, match="expected a file, postgresql://user@host/database") as e:
        open_store(text)
    assert "secret" not in str(e.value)


@pytest.fixture
def file_store(tmp_path, plan_record):
    store = open_store(tmp_path / "store.sqlite")
    store.put_plan(plan_record())
    return store


def test_a_damaged_file_is_a_warning(tmp_path, plan_record, caplog):
    path = tmp_path / "store.sqlite"
    path.write_bytes(b"not a database" * 100)
    store = open_store(path)
    assert warn_of_failure(lambda: store.get_plan("a" * 64), None) is None
    assert not warn_of_failure(lambda: store.put_plan(plan_record()), False)
    assert caplog.text.count("if it is damaged, move it away; planning goes on without it") == 2
    assert path.read_bytes() == b"not a database" * 100


def test_damage_in_the_middle_of_a_file_is_an_error_of_the_store(tmp_path, plan_record):
    store = open_store(tmp_path / "store.sqlite")
    for at in range(20):
        store.put_plan(plan_record(f"k{at}", data=long_data(f"k{at}")))
    content = bytearray(store.database.path.read_bytes())
    generator = random.Random(0)
    for _ in range(2_000):
        content[generator.randrange(4096, len(content))] = generator.randrange(256)
    store.database.path.write_bytes(bytes(content))
    failures = 0
    for at in range(20):
        try:
            open_store(tmp_path / "store.sqlite").get_plan(f"k{at}")
        except StoreError:
            failures += 1
    assert failures > 0


def test_data_that_are_no_json_are_no_data(file_store):
    with contextlib.closing(sqlite3.connect(file_store.database.path)) as connection, connection:
        connection.execute("UPDATE placewright_plans SET data = '[1'")
    assert file_store.get_plan("a" * 64).data == {}
    with contextlib.closing(sqlite3.connect(file_store.database.path)) as connection, connection:
        connection.execute("UPDATE placewright_plans SET seconds = 'soon'")
    with pytest.raises(StoreError, match="a stored plan is damaged"):
        file_store.get_plan("a" * 64)


def test_a_locked_file_is_a_warning(file_store, plan_record, monkeypatch, caplog):
    monkeypatch.setattr(sqlite_database, "BUSY_SECONDS", 0.01)
    with contextlib.closing(sqlite3.connect(file_store.database.path)) as other:
        other.execute("BEGIN EXCLUSIVE")
        better = plan_record(seconds=0.5)
        assert not warn_of_failure(lambda: file_store.put_plan(better), False)
        assert file_store.get_plan("a" * 64).seconds == 1.0  # a reader does not wait
    assert "cannot be used: database is locked; planning goes on without it" in caplog.text
    assert file_store.put_plan(better)


@contextlib.contextmanager
def unprivileged_folder():
    """A folder, and a user that may not write there."""
    folder = Path(tempfile.mkdtemp(prefix="pw-"))
    user = os.geteuid()
    try:
        yield folder
    finally:
        os.seteuid(user)
        folder.chmod(0o700)
        for path in folder.iterdir():
            path.unlink()
        folder.rmdir()


def become_unprivileged(folder):
    folder.chmod(0o555)
    if os.geteuid() == 0:
        os.seteuid(65534)


def test_a_folder_that_cannot_be_written_is_a_warning(plan_record, caplog):
    with unprivileged_folder() as folder:
        become_unprivileged(folder)
        for path in (folder / "store.sqlite", folder / "deep" / "store.sqlite"):
            store = open_store(path)
            assert warn_of_failure(lambda store=store: store.get_plan("a"), None) is None
            assert not warn_of_failure(lambda store=store: store.put_plan(plan_record()), False)
    assert caplog.text.count("planning goes on without it") == 2


def test_a_file_that_cannot_be_written_is_a_warning(plan_record, caplog):
    with unprivileged_folder() as folder:
        open_store(folder / "store.sqlite").put_plan(plan_record())
        become_unprivileged(folder)
        store = open_store(folder / "store.sqlite")
        better = plan_record(seconds=0.5)
        assert not warn_of_failure(lambda: store.put_plan(better), False)
    assert "planning goes on without it" in caplog.text


def test_a_full_disk_is_a_warning_and_loses_nothing(file_store, plan_record, caplog):
    large = plan_record("b" * 64, data=long_data("x" * 100))
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, hard))
    try:
        assert not warn_of_failure(lambda: file_store.put_plan(large), False)
        assert file_store.get_plan("a" * 64).seconds == 1.0
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert "planning goes on without it" in caplog.text
    assert file_store.put_plan(large)
    assert file_store.get_plan("b" * 64).data == large.data


@pytest.mark.parametrize(
    ("kind", "is_refused"),
    [
        *((kind, True) for kind in ("nfs", "nfs4", "cifs", "lustre", "fuse.sshfs", "fuse.s3fs")),
        *((kind, False) for kind in ("ext4", "overlay", "tmpfs", "fuse.fuse-overlayfs")),
    ],
)
def test_a_file_on_a_network_is_refused(kind, is_refused, tmp_path, plan_record, monkeypatch):
    folder = tmp_path / "a folder"
    folder.mkdir()
    mounts = tmp_path / "mounts"
    point = str(folder).replace(" ", r"\040")
    mounts.write_text(
        "1 0 8:1 / / rw - ext4 /dev/sda1 rw\n"
        f"2 1 0:5 / {point} rw,relatime shared:1 - {kind} host:/export rw\n"
        f"3 1 0:6 / {point}er rw - nfs host:/other rw\n"
    )
    monkeypatch.setattr(network_mounts, "MOUNTS", mounts)
    store = open_store(folder / "deep" / "store.sqlite")
    if is_refused:
        with pytest.raises(StoreError, match=rf"on a network file system \({kind}\)"):
            store.put_plan(plan_record())
        assert list(folder.iterdir()) == []
    else:
        assert store.put_plan(plan_record())
    monkeypatch.setattr(network_mounts, "MOUNTS", tmp_path / "nowhere")  # as on macOS
    assert store.put_plan(plan_record(seconds=0.5))


def test_no_store_finds_nothing_and_stores_nothing(plan_record, monkeypatch):
    monkeypatch.setenv("PLACEWRIGHT_STORE", "none")
    store = open_store()
    assert not store.put_plan(plan_record())
    assert store.get_plan("a" * 64) is None
    assert (store.list_plans(), store.prune(keep=0), store.name) == ([], 0, "none")


def test_reading_makes_no_file(tmp_path):
    store = open_store(tmp_path / "deep" / "store.sqlite")
    assert store.get_plan("a" * 64) is None
    assert store.list_plans() == []
    assert store.prune(keep=1) == 0
    assert list(tmp_path.iterdir()) == []
