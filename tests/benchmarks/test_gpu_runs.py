"""Runs on a GPU: what fits into the minutes, what is kept, and what a later call goes on with."""

from __future__ import annotations

import json
import tarfile

import pytest

pytest.importorskip("torch")

from benchmarks.gpu_runs import records, run, setup
from benchmarks.gpu_runs.commands import BUILDS, SETUP, SLICES, Command
from benchmarks.gpu_runs.prepare import OTHER_PARTS, WHEELS


@pytest.fixture
def call(tmp_path, monkeypatch):
    """Runs commands as a slice; gives the states of all commands."""
    ready = Command("setup", "-c pass", 1.0)
    monkeypatch.setattr(run, "SETUP", ready)
    monkeypatch.setattr(run, "GRACE_SECONDS", 0.0)

    def run_slice(commands, *words, builds=(), work="work", minutes=1.0):
        monkeypatch.setattr(run, "BUILDS", tuple(builds))
        monkeypatch.setattr(run, "BUILT", {build.name: [build.keep[0]] for build in builds})
        monkeypatch.setattr(run, "SLICES", {"one": list(commands)})
        folders = ["--work", str(tmp_path / work), "--out", str(tmp_path / "out")]
        assert run.main(["one", "--minutes", str(minutes), *folders, *words]) == 0
        lines = (tmp_path / "out" / "runs.jsonl").read_text().splitlines()
        return {row["command"]: row["state"] for row in map(json.loads, lines)}

    return run_slice


def python(name, code, minutes=1.0, **settings):
    return Command(name, f'-c "{code}"', minutes, **{"expected": 0.0, **settings})


def count(path, *, to):
    """Code that appends a line of JSON to a file of raw lines."""
    return f"import json; open('{path}', 'a').write(json.dumps({to}) + chr(10))"


def test_commands_run_in_order_and_what_is_done_is_not_run_again(call, tmp_path, capsys):
    commands = [
        python("first", count("{rows}/one.jsonl", to=1)),
        python("second", count("{rows}/one.jsonl", to=2) + "; print('the end')"),
        python("third", "raise SystemExit(3)"),
    ]
    states = call(commands)
    assert states == {"setup": "done", "first": "done", "second": "done", "third": "failed"}
    printed = capsys.readouterr().out
    assert "| second | 0 | 0 | done | the end |" in printed
    assert "| third | 0 | 3 | failed |" in printed
    assert printed.endswith("still to run: nothing\n")
    call(commands)
    assert (tmp_path / "work" / "rows" / "one.jsonl").read_text() == "1\n2\n"


def test_a_command_that_exceeds_its_time_is_stopped_and_the_next_one_runs(call):
    states = call(
        [
            python("slow", "import time; time.sleep(60)", 0.02),
            python("slow and whole", "import time; time.sleep(60)", 0.02, has_rest=False),
            python("says so", "print('3 not tried')", unfinished=r"\b[1-9]\d* not tried"),
            python("says not", "print('0 not tried')", unfinished=r"\b[1-9]\d* not tried"),
        ]
    )
    assert (states["slow"], states["slow and whole"]) == ("unfinished", "failed")
    assert (states["says so"], states["says not"]) == ("unfinished", "done")


def test_what_does_not_fit_into_the_minutes_is_left_out(call, capsys):
    states = call([python("long", "pass", expected=2.0), python("short", "pass")])
    assert list(states) == ["setup", "short"]
    assert "still to run: long\n" in capsys.readouterr().out


def test_a_call_ends_with_its_minutes_and_ends_what_it_began(call, tmp_path):
    touch = "import time; time.sleep(3); open('{work}/late', 'w')"
    states = call([python("late", touch)], minutes=0.02)
    assert states["late"] == "unfinished"
    assert not (tmp_path / "work" / "late").exists()


def test_a_build_runs_beside_others_and_comes_before_what_needs_it(call, tmp_path):
    wait = "import time; time.sleep(0.5); open('{work}/made', 'w')"
    build = python("build", wait, is_background=True, keep=("made",))
    reads = python("reads", "open('{work}/made'); " + count("{rows}/a.jsonl", to="'reads'"))
    commands = [
        Command(reads.name, reads.words, 1.0, expected=0.0, needs=("build",)),
        python("alone", "open('{work}/made')", is_alone=True),
        python("other", count("{rows}/a.jsonl", to="'other'")),
    ]
    states = call(commands, builds=[build])
    assert set(states.values()) == {"done"}
    lines = (tmp_path / "work" / "rows" / "a.jsonl").read_text().splitlines()
    assert lines == ['"other"', '"reads"']


def test_nothing_runs_that_needs_what_failed(call, monkeypatch):
    build = python("build", "raise SystemExit(1)", is_background=True, keep=("made",))
    needs = Command("needs", "-c pass", 1.0, expected=0.0, needs=("build",))
    assert call([needs], builds=[build]) == {"setup": "done", "build": "failed"}
    monkeypatch.setattr(run, "SETUP", python("setup", "raise SystemExit(1)"))
    states = call([python("other", "pass")], work="again")
    assert states["setup"] == "failed"
    assert "other" not in states


def test_another_machine_goes_on_from_the_few_files_that_came_back(call, tmp_path):
    commands = [
        python("a b/c", count("{rows}/one.jsonl", to="{{'n': 1}}") + "; print('log')"),
        python("big", "open('{work}/made', 'w').write('binary')", keep=("made",)),
    ]
    call(commands)
    came_back = tmp_path / "out"
    assert len(list(came_back.iterdir())) <= 8
    assert "\n=== a-b-c\nlog\n" in (came_back / "logs.txt").read_text()
    came_back.rename(tmp_path / "carried")
    more = [*commands, python("new", count("{rows}/one.jsonl", to="{{'n': 2}}"))]
    states = call(more, "--earlier", str(tmp_path / "carried"), work="fresh")
    assert list(states)[-2:] == ["setup", "new"]
    assert (tmp_path / "fresh" / "rows" / "one.jsonl").read_text() == '{"n": 1}\n{"n": 2}\n'
    assert (tmp_path / "fresh" / "made").read_text() == "binary"
    assert (tmp_path / "out" / "kept-made.tar.gz").exists()
    assert "\n=== a-b-c\nlog\n" in (tmp_path / "out" / "logs.txt").read_text()


def test_archives_that_are_too_large_are_left_out(tmp_path, monkeypatch, capsys):
    kept = records.Records(tmp_path / "work", tmp_path / "out")
    (tmp_path / "work" / "large").write_bytes(b"1")
    monkeypatch.setattr(records, "ARCHIVE_BYTES", 10)
    kept.keep("any", ["large", "missing"])
    assert "any: " in capsys.readouterr().out
    assert list((tmp_path / "out").iterdir()) == []


def test_all_commands_have_names_of_their_own_and_words_that_can_be_filled():
    listed = [SETUP, *(command for commands in SLICES.values() for command in commands)]
    names = [command.name for command in listed]
    assert len(names) == len(set(names))
    assert {name for command in listed for name in command.needs} <= set(names)
    assert set(run.BUILT) == {build.name for build in BUILDS}
    keys = {"rows", "work", "inputs", "seconds", "minutes", "jobs"}
    for command in listed:
        for words in filter(None, (command.words, command.small)):
            assert "{" not in words.format(**dict.fromkeys(keys, "x"))
    kept = {path.partition("/")[0] for command in listed for path in command.keep}
    assert len(kept) + 4 <= 8  # with runs, rows, logs and the table


def test_what_has_failed_is_run_again_on_demand(call, tmp_path):
    fails = python("fails", count("{rows}/one.jsonl", to=1) + "; raise SystemExit(1)")
    for words in ([], [], ["--retry"]):
        assert call([fails], *words)["fails"] == "failed"
    assert (tmp_path / "work" / "rows" / "one.jsonl").read_text() == "1\n1\n"


def test_commands_can_be_chosen_by_how_their_names_begin(call):
    commands = [python(name, "pass") for name in ("one a", "one b", "two", "three")]
    build = python("build", "open('{work}/made', 'w')", is_background=True, keep=("made",))
    states = call([build, *commands], "--only", "one b,two", builds=[build])
    assert set(states) == {"setup", "build", "one b", "two"}


def test_a_dry_run_starts_nothing(call, capsys):
    run_code = "import pathlib; pathlib.Path('{work}/ran').touch()"
    with pytest.raises(FileNotFoundError):  # nothing was run, so there is no file of runs
        call([python("one", run_code)], "--dry-run")
    assert "one: 1 min" in capsys.readouterr().out


def test_the_setup_says_what_is_missing_and_knows_what_is_installed(capsys, tmp_path, monkeypatch):
    monkeypatch.setattr(setup, "PACKAGES", {"numpy": "all", "no_such_package": "nothing"})
    monkeypatch.setattr(setup, "PROGRAMS", {})
    setup.main(["--check"])
    assert "missing: no_such_package (nothing)\n" in capsys.readouterr().out
    stamp = tmp_path / "stamp"
    stamp.write_text(setup.digest_of_sources())
    monkeypatch.setattr(setup.subprocess, "run", None)
    setup.install_checkout(stamp)
    assert "installed already" in capsys.readouterr().out


def test_wheels_are_installed_where_their_module_is_missing(tmp_path, monkeypatch):
    ran = []
    monkeypatch.setattr(setup.subprocess, "run", lambda command, check: ran.append(command[-1]))
    (tmp_path / "numpy-1-py3-none-any.whl").touch()
    (tmp_path / "no_such_package-1-py3-none-any.whl").touch()
    setup.install_wheels(tmp_path)
    assert [path.rpartition("/")[2] for path in ran] == ["no_such_package-1-py3-none-any.whl"]
    assert "scikit-build-core" in WHEELS


def test_another_version_is_an_archive_of_what_a_build_needs(tmp_path):
    prepare = pytest.importorskip("benchmarks.gpu_runs.prepare")
    path = tmp_path / "other.tar.gz"
    if prepare.current_commit() == "unknown":
        pytest.skip("this checkout has no history")
    prepare.pack_other("HEAD", path)
    with tarfile.open(path) as archive:
        assert {name.partition("/")[0] for name in archive.getnames()} == set(OTHER_PARTS)
