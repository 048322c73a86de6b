"""Stores to test: a SQLite file, and a database of a real PostgreSQL server on a local socket."""

from __future__ import annotations

import contextlib
import glob
import itertools
import os
import pwd
import shutil
import signal
import subprocess
import tempfile
import time
from pathlib import Path

import pytest
from writers import make_record

from placewright.store import open_store

NUMBERS = itertools.count()


class PostgresServer:
    """A server of its own, run by an unprivileged user, that only a local socket leads to."""

    def __init__(self, programs: Path, folder: Path, user: str | None) -> None:
        self.programs, self.folder, self.user = programs, folder, user
        self.data = folder / "data"
        options = ("-U", "placewright", "-A", "trust", "-E", "UTF8", "--locale=C", "--no-sync")
        self._run("initdb", "-D", self.data, *options)
        self.start()

    def new_schema(self) -> str:
        """The address of an empty schema: a database of its own would be 7 MB of files."""
        import psycopg

        url = f"postgresql://placewright@/postgres?host={self.folder}"
        name = f"test{next(NUMBERS)}"
        with psycopg.connect(url) as connection:
            connection.execute(f"CREATE SCHEMA {name}")
        return f"{url}&options=-csearch_path%3D{name}"

    def start(self) -> None:
        options = f"-c listen_addresses='' -c fsync=off -c shared_buffers=16MB -k {self.folder}"
        log = self.folder / "log"
        self._run("pg_ctl", "-D", self.data, "-w", "-t", "60", "-l", log, "-o", options, "start")

    def stop(self, mode: str = "fast") -> None:
        self._run("pg_ctl", "-D", self.data, "-w", "-m", mode, "stop")

    def kill(self) -> None:
        """End it as a crash would."""
        os.kill(self.process, signal.SIGSTOP)  # so that it has no further children
        processes = [self.process, *self.children()]
        for process in processes:
            with contextlib.suppress(ProcessLookupError):
                os.kill(process, signal.SIGKILL)
        deadline = time.monotonic() + 30
        while any(map(_is_running, processes)) and time.monotonic() < deadline:
            time.sleep(0.01)
        # A process that nothing waits for still has its number, so the server would not start.
        for path in (self.data / "postmaster.pid", *self.folder.glob(".s.PGSQL.*")):
            path.unlink(missing_ok=True)

    @property
    def process(self) -> int:
        return int((self.data / "postmaster.pid").read_text().split()[0])

    def children(self) -> list[int]:
        path = Path(f"/proc/{self.process}/task/{self.process}/children")
        return [int(word) for word in path.read_text().split()]

    def _run(self, program: str, *arguments: object) -> None:
        words = [str(self.programs / program), *map(str, arguments)]
        if self.user is not None:
            words = ["setpriv", f"--reuid={self.user}", f"--regid={_group(self.user)}",
                     "--clear-groups", *words]  # fmt: skip
        environment = {**os.environ, "LC_ALL": "C", "HOME": str(self.folder)}
        with (self.folder / "out").open("a") as output:  # a pipe would stay open with the server
            done = subprocess.run(
                words, cwd=self.folder, env=environment, stdin=subprocess.DEVNULL, stdout=output,
                stderr=subprocess.STDOUT,
            )  # fmt: skip
        texts = [path.read_text()[-2000:] for path in (self.folder / "out", self.folder / "log")
                 if done.returncode and path.exists()]  # fmt: skip
        assert done.returncode == 0, "\n".join(texts)


@pytest.fixture(scope="session")
def postgres():
    """A PostgreSQL server; tests are skipped where none can be started."""
    pytest.importorskip("psycopg")
    folders = sorted(glob.glob("/usr/lib/postgresql/*/bin"))
    program = shutil.which("initdb")
    if not folders and program is None:
        pytest.skip("PostgreSQL is not installed: apt-get install postgresql")
    programs = Path(folders[-1]) if folders else Path(str(program)).parent
    user = None
    if os.geteuid() == 0:
        user = "nobody"
        words = ["setpriv", f"--reuid={user}", "--clear-groups", "true"]
        if shutil.which("setpriv") is None or subprocess.run(words).returncode:
            pytest.skip("PostgreSQL refuses to run as root, and there is no setpriv that works")
    memory = "/dev/shm"  # which a container may have little of
    is_large = os.access(memory, os.W_OK) and shutil.disk_usage(memory).free > 2**30
    memory = memory if is_large else "/tmp"
    folder = Path(tempfile.mkdtemp(prefix="pw-", dir=memory))  # short: a socket is in it
    try:
        if user is not None:
            os.chown(folder, pwd.getpwnam(user).pw_uid, pwd.getpwnam(user).pw_gid)
        server = PostgresServer(programs, folder, user)
        yield server
        server.stop("immediate")
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture(params=["sqlite", "postgresql"])
def location(request, tmp_path):
    """Where an empty store is."""
    if request.param == "sqlite":
        return str(tmp_path / "deep" / "store.sqlite")
    return request.getfixturevalue("postgres").new_schema()


@pytest.fixture
def store(location):
    return open_store(location)


@pytest.fixture
def plan_record():
    """Makes a plan of a key that takes some seconds."""
    return make_record


def _group(user: str) -> int:
    return pwd.getpwnam(user).pw_gid


def _is_running(process: int) -> bool:
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False
