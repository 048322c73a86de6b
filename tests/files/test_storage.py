"""Storage: what is no file of ours gets one clear line, and a save is whole or nothing."""

from __future__ import annotations

import gzip
import math
import os
import re
import stat
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from placewright import Graph, Result, load, save
from placewright.errors import FileError
from placewright.files import to_data, to_json

Write = Callable[..., Path]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("", "the file is empty"),
        (" \n ", "the file is empty"),
        (
            '{"placewright": "gra',
            "is not JSON, or truncated: Unterminated string starting at at line",
        ),
        ('{"placewright": "graph"', "is not JSON, or truncated: Expecting ',' delimiter at line 1"),
        ("hello", "is not JSON, or truncated: Expecting value at line 1 column 1"),
        ("{} {}", "is not JSON, or truncated: Extra data at line 1 column 4"),
        ('{"a": NaN}', 'holds NaN, which is not JSON: expected finite numbers, or "inf" as text'),
        ('{"a": -Infinity}', "holds -Infinity, which is not JSON: expected finite numbers"),
        ('{"a": 1, "a": 2}', "has the key 'a' twice in one object: keep one"),
        ("[" * 100_000, "is nested too deeply to be read"),
        ('{"a": ' + "9" * 5000 + "}", "is not JSON that can be read: Exceeds the limit"),
        (b"\xff\xfe{}", "byte 0 is not UTF-8: expected text"),
        (b'{"placewright": "gr\xe4ph"}', "byte 19 is not UTF-8: expected text"),
        (
            "[]",
            'the file does not say what it holds: expected "placewright" with a kind and "version"',
        ),
        ("7", "the file does not say what it holds"),
        ("{}", "the file does not say what it holds"),
        ('{"placewright": 7, "version": 1}', "the file does not say what it holds"),
        (
            '{"placewright": "grahp", "version": 1}',
            "the file is of unknown kind 'grahp': did you mean 'graph'?",
        ),
        (
            '{"placewright": "graph", "version": 4}',
            "the file has version 4: this release of placewright reads versions 1 to 3",
        ),
        ('{"placewright": "graph", "version": "1"}', "the file has version '1': this release"),
        ('{"placewright": "graph", "version": true}', "the file has version True: this release"),
        ('{"placewright": "graph"}', "the file has no version: this release"),
    ],
)
def test_what_is_no_file_of_ours_is_refused(
    write: Write, content: str | bytes, message: str
) -> None:
    path = write(content)
    with pytest.raises(FileError, match=f"^{re.escape(f'{path}: {message}')}") as caught:
        load(path)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ('placewright = "cluster', "is not TOML, or truncated: "),
        ("a = 1\na = 2", "is not TOML, or truncated: Cannot overwrite a value"),
        ("a = " + "[" * 100_000, "is nested too deeply to be read"),
        ("a = " + "9" * 5000, "is not TOML, or truncated: Exceeds the limit"),
        ("a = 2026-13-45", "is not TOML, or truncated: "),
        ("version = 1", "the file does not say what it holds"),
        ('placewright = "cluster"\nversion = 1.0', "the file has version 1.0: this release"),
        (b'placewright = "cl\xffster"', "byte 17 is not UTF-8: expected text"),
    ],
)
def test_what_is_no_toml_of_ours_is_refused(
    write: Write, content: str | bytes, message: str
) -> None:
    path = write(content, "file.toml")
    with pytest.raises(FileError, match=f"^{re.escape(f'{path}: {message}')}") as caught:
        load(path)
    assert "\n" not in str(caught.value)


def test_a_file_with_a_byte_order_mark_is_read(write: Write, chain: Graph) -> None:
    path = write(b"\xef\xbb\xbf" + to_json(to_data(chain)).encode())
    assert load(path) == chain


def test_a_missing_file_a_folder_and_an_impossible_name_are_refused(tmp_path: Path) -> None:
    with pytest.raises(FileError, match=r"none\.json: there is no such file$"):
        load(tmp_path / "none.json")
    with pytest.raises(FileError, match=r": is a folder: expected a file$"):
        load(tmp_path)
    with pytest.raises(FileError, match=r": cannot be read: .*null"):
        load("a\0b")
    with pytest.raises(FileError, match=r": cannot be read: file name too long$"):
        load("a" * 5000)


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_a_file_that_may_not_be_read_is_refused(write: Write) -> None:
    path = write("{}")
    path.chmod(0)
    with pytest.raises(FileError, match=r": cannot be read: permission denied$"):
        load(path)


def test_damaged_gzip_is_refused(write: Write, chain: Graph) -> None:
    whole = gzip.compress(to_json(to_data(chain)).encode())
    for name, content in {
        "text.json.gz": b"{}",
        "cut.json.gz": whole[:-20],
        "bent.json.gz": whole[:15] + b"\xff\xff" + whole[17:],
    }.items():
        path = write(content, name)
        with pytest.raises(FileError, match=": cannot be unzipped, damaged or truncated: "):
            load(path)


def test_a_small_file_that_unzips_to_gigabytes_is_refused(write: Write) -> None:
    path = write(gzip.compress(b" " * 2**26, compresslevel=9), "bomb.json.gz")
    with pytest.raises(FileError, match="bytes and more than 16,777,216 unzipped: expected at"):
        load(path)


def test_what_is_written_can_be_unzipped(tmp_path: Path, monkeypatch, chain: Graph) -> None:
    monkeypatch.setattr("placewright.files.storage.MAX_SMALL_UNZIPPED", 10)
    save(chain, tmp_path / "graph.json.gz")
    assert load(tmp_path / "graph.json.gz") == chain


@pytest.mark.parametrize(
    "text",
    [
        "a." * 40 + "a = 1",
        "[" + "a . " * 40 + "a]",
        '"a".' * 40 + "a = 1",
        "b = { c = 1, " + "'a'." * 40 + "a = 1 }",
        "b = { c = '''d'''', " + "a." * 40 + "a = 1 }",
        'b = """d"""" # "\n' + "a." * 40 + "a = 1",
    ],
)
def test_a_dotted_key_of_many_parts_is_refused_before_it_is_read(
    write: Write, monkeypatch, text: str
) -> None:
    monkeypatch.setattr("tomllib.loads", lambda text: pytest.fail("it was read"))
    with pytest.raises(FileError, match="a dotted key has more than 32 parts"):
        load(write(text, "file.toml"))


def test_dots_in_strings_numbers_and_comments_are_no_keys(write: Write) -> None:
    dots = "a." * 40
    lines = [f'"{dots}" = "{dots}"', f"b = '''{dots}'''", f"# {dots}", f"c = {[0.5] * 40}"]
    with pytest.raises(FileError, match="does not say what it holds"):
        load(write("\n".join(lines), "file.toml"))


def test_a_file_of_another_kind_says_both_kinds(tmp_path: Path, chain: Graph) -> None:
    save(chain, tmp_path / "graph.json")
    message = "graph.json: the file is of kind 'graph': expected 'plan'"
    with pytest.raises(FileError, match=f"{message}$"):
        load(tmp_path / "graph.json", kind="plan")


def test_asking_for_an_unknown_kind_offers_the_nearest(tmp_path: Path, chain: Graph) -> None:
    save(chain, tmp_path / "graph.json")
    with pytest.raises(FileError, match=r"kind 'plam' is unknown: did you mean 'plan'\?$"):
        load(tmp_path / "graph.json", kind="plam")


def test_nan_cannot_be_saved(split_result: Result, tmp_path: Path) -> None:
    path = tmp_path / "result.json"
    with pytest.raises(FileError, match=r"result\.json: cannot be written: .*not JSON compliant"):
        save(replace(split_result, step_time=math.nan), path)
    assert not path.exists()


def test_only_clusters_and_constraints_are_written_as_toml(tmp_path: Path, chain: Graph) -> None:
    message = r"graph\.toml: a graph is written as JSON: end the name in \.json$"
    with pytest.raises(FileError, match=message):
        save(chain, tmp_path / "graph.toml")
    assert list(tmp_path.iterdir()) == []
    save(chain, tmp_path / "graph.toml.json")
    assert load(tmp_path / "graph.toml.json") == chain


def test_a_failed_save_leaves_the_old_file_and_no_other(
    tmp_path: Path, chain: Graph, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "graph.json"
    path.write_text("precious")

    def fail(self: Path, target: Path) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "replace", fail)
    with pytest.raises(
        FileError,
        match=r"graph\.json: cannot be written: no space left on device; what was there before is "
        r"unchanged: make space",
    ):
        save(chain, path)
    assert path.read_text() == "precious"
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
def test_a_full_disk_is_an_error_that_says_what_to_do(chain: Graph) -> None:
    with pytest.raises(FileError, match=r"no space left on device; .*: make space, or write else"):
        save(chain, "/dev/full")


def test_saving_where_no_file_can_be_is_refused(tmp_path: Path, chain: Graph) -> None:
    with pytest.raises(FileError, match=r": cannot be written: is a directory$"):
        save(chain, tmp_path)
    with pytest.raises(FileError, match=r": cannot be written: no such file or directory$"):
        save(chain, tmp_path / "none" / "graph.json")
    with pytest.raises(FileError, match=r": cannot be written: .*null"):
        save(chain, "a\0b.json")


def test_saving_keeps_links_and_permissions(tmp_path: Path, write: Write, chain: Graph) -> None:
    path = write("old", "real.json")
    path.chmod(0o640)
    (tmp_path / "link.json").symlink_to(path)
    save(chain, tmp_path / "link.json")
    assert (tmp_path / "link.json").is_symlink()
    assert load(path) == chain
    assert stat.S_IMODE(path.stat().st_mode) == 0o640


def test_what_is_no_plain_file_is_written_to_and_not_replaced(chain: Graph) -> None:
    save(chain, os.devnull)
    assert not Path(os.devnull).is_file()


def test_loading_leaves_the_garbage_collector_as_it_was(tmp_path: Path, chain: Graph) -> None:
    import gc

    save(chain, tmp_path / "graph.json")
    load(tmp_path / "graph.json")
    assert gc.isenabled()
    with pytest.raises(FileError):
        load(tmp_path / "none.json")
    assert gc.isenabled()
    gc.disable()
    try:
        load(tmp_path / "graph.json")
        assert not gc.isenabled()
    finally:
        gc.enable()
