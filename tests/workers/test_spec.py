"""Which workers a text means."""

from __future__ import annotations

import pytest

from placewright.errors import ConfigError
from placewright.workers import WorkerSpec, as_workers, open_workers
from placewright.workers.worker_spec import usable_cores


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("2", WorkerSpec("processes", 2)),
        (3, WorkerSpec("processes", 3)),
        ("threads:2", WorkerSpec("threads", 2)),
        ("processes:8", WorkerSpec("processes", 8)),
        (" ray:8 ", WorkerSpec("ray", 8)),
        ("ray:auto", WorkerSpec("ray", None, "auto")),
        ("ray:auto?workers=3", WorkerSpec("ray", 3, "auto")),
        ("ray://host:10001", WorkerSpec("ray", None, "ray://host:10001")),
        ("ray://[::1]:10001?workers=4", WorkerSpec("ray", 4, "ray://[::1]:10001")),
        ("processes", WorkerSpec("processes", usable_cores())),
    ],
)
def test_a_text_names_workers_and_is_written_back(text, expected):
    assert WorkerSpec.parse(text) == expected
    assert WorkerSpec.parse(str(expected)) == expected


@pytest.mark.parametrize(
    "text",
    [
        *("", "many", "threads:", "threads:two", "thread:2", "processes:2.5", "ray:", "-1"),
        *("ray://", "ray://host", "ray://host:port", "ray://host:1/path", "ray://host:99999"),
        *("ray:automatic", "ray:auto?workers=", "ray:auto?workers=1&workers=2", "ray:auto?cpus=2"),
        *("threads2", "2:threads", "ray://:10001"),
    ],
)
def test_a_text_that_names_no_workers_is_refused(text):
    with pytest.raises(ConfigError, match=r"workers '.*': expected "):
        WorkerSpec.parse(text)


@pytest.mark.parametrize("text", ["0", "threads:0", "processes:5000", "ray:auto?workers=0"])
def test_a_count_is_from_1_to_4096(text):
    with pytest.raises(ConfigError, match="expected a count from 1 to 4096"):
        WorkerSpec.parse(text)


def test_settings_out_of_range_are_refused():
    for settings, text in (
        ({"timeout": 0}, "time-out of 0 s: expected more than 0"),
        ({"timeout": float("nan")}, "time-out of nan s: expected more than 0"),
        ({"attempts": 0}, "expected 1 or more of each"),
        ({"max_message_bytes": 0}, "expected 1 or more of each"),
    ):
        with pytest.raises(ConfigError, match=text):
            open_workers("threads:1", **settings)
    for spec in (None, 2.0, True):
        with pytest.raises(ConfigError, match="expected '2', 'threads:2'"):
            open_workers(spec)


def test_open_workers_are_borrowed_and_others_are_opened_for_a_while():
    with as_workers(None) as nothing:
        assert nothing is None
    with open_workers("threads:2") as workers:
        with as_workers(workers) as borrowed:
            assert borrowed is workers
        workers.submit(*_some_work()).result(60)
    with as_workers("threads:3") as opened:
        assert opened.count == 3
    with pytest.raises(ConfigError, match="these workers are closed"):
        opened.submit(*_some_work())


def _some_work():
    from worker_tasks import Scale

    return Scale(), [1]
