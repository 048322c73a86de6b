"""The command in a process of its own: time, exit status, streams."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest


def command(*arguments, **options):
    return subprocess.run(
        [sys.executable, "-m", "placewright", *arguments],
        capture_output=True,
        text=True,
        timeout=60,
        **options,
    )


def test_help_and_version_load_neither_numpy_nor_rich(tmp_path):
    code = (
        "import sys\n"
        "from placewright.cli import main\n"
        "try:\n    main(sys.argv[1:])\nexcept SystemExit:\n    pass\n"
        "found = [name for name in ('numpy', 'rich', 'scipy') if name in sys.modules]\n"
        "print(found, file=sys.stderr)"
    )
    for arguments in (["--help"], ["place", "--help"], ["--version"]):
        ran = subprocess.run(
            [sys.executable, "-c", code, *arguments], capture_output=True, text=True
        )
        assert ran.stderr == "[]\n"
        assert ran.stdout


def test_help_names_the_commands():
    ran = command("--help")
    assert ran.returncode == 0
    for name in ("place", "compare", "simulate", "diff", "models", "clusters"):
        assert f"  {name} " in ran.stdout


def test_json_is_alone_on_stdout_and_stderr_is_empty():
    ran = command("compare", "diamond", "--on", "2xP100+cpu", "--json", "-q")
    assert (ran.returncode, ran.stderr) == (0, "")
    assert json.loads(ran.stdout)["best"]


def test_bad_input_is_one_line_and_no_traceback(tmp_path):
    ran = command("place", "missing.json", "--on", "cpu", cwd=tmp_path)
    assert (ran.returncode, ran.stdout) == (1, "")
    assert ran.stderr == "placewright: missing.json: there is no such file\n"


def test_tables_have_no_colours_outside_a_terminal():
    ran = command("compare", "diamond", "--on", "2xP100+cpu")
    assert "\x1b" not in ran.stdout


def test_a_stream_that_knows_no_greek_stops_nothing():
    environment = {**os.environ, "PYTHONIOENCODING": "ascii"}
    ran = command("-q", "place", "diamond", "--on", "2xP100+cpu", env=environment)
    assert (ran.returncode, ran.stderr) == (0, "")
    assert "\\xb5s" in ran.stdout


@pytest.mark.skipif(os.name != "posix", reason="pipes that break are a matter of POSIX")
def test_a_reader_that_goes_away_is_met_with_silence():
    writer = subprocess.Popen(
        [sys.executable, "-m", "placewright", "clusters", "--json"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    assert writer.stdout is not None
    writer.stdout.close()  # before anything is written: it takes longer to start
    assert writer.stderr is not None
    assert writer.stderr.read() == b""
    writer.stderr.close()
    assert writer.wait(timeout=60) == 1


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="needs a disk that is always full")
def test_a_full_disk_is_told_in_a_line():
    with open("/dev/full", "w") as full:
        ran = subprocess.run(
            [sys.executable, "-m", "placewright", "clusters", "--json"],
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
        )
    assert ran.returncode == 1
    assert ran.stderr == "placewright: the output: No space left on device\n"


@pytest.mark.skipif(os.name != "posix", reason="closes a stream as a POSIX shell does")
@pytest.mark.parametrize("stream", [1, 2])
def test_a_closed_stream_stops_nothing(stream):
    words = f"{sys.executable} -m placewright -q place diamond --on 2xP100 {stream}>&-"
    ran = subprocess.run(["sh", "-c", words], capture_output=True, text=True)
    assert (ran.returncode, ran.stderr) == (0, "")
    assert bool(ran.stdout) == (stream == 2)


@pytest.mark.skipif(os.name != "posix", reason="needs a signal that a terminal sends")
def test_control_c_while_modules_are_loaded_exits_with_130():
    code = (
        "import builtins, os, signal\n"
        "signal.signal(signal.SIGINT, signal.default_int_handler)\n"
        "real = builtins.__import__\n"
        "def stopped(name, *rest):\n"
        "    if name == 'typer':\n"
        "        os.kill(os.getpid(), signal.SIGINT)\n"
        "    return real(name, *rest)\n"
        "builtins.__import__ = stopped\n"
        "from placewright.cli import main\n"
        "main(['clusters'])\n"
    )
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert (ran.returncode, ran.stdout, ran.stderr) == (130, "", "")


@pytest.mark.skipif(os.name != "posix", reason="needs a signal that a terminal sends")
def test_control_c_keeps_the_best_plan_and_exits_with_130(tmp_path):
    code = (
        "import os, signal, placewright as pw\n"
        "signal.signal(signal.SIGINT, signal.default_int_handler)\n"  # in the background it is not
        "class Slow(pw.solvers.RandomSearch):\n"
        "    def run(self, search):\n"
        "        super().run(search)\n"
        "        os.kill(os.getpid(), signal.SIGINT)\n"
        "        while True:\n"
        "            pass\n"
        "pw.solvers.METHODS['random'] = Slow\n"
        "from placewright.cli import main\n"
        "words = '-q place layered --on 2xP100 --method random -o plan.json'\n"
        "main(words.split())\n"
    )
    ran = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, cwd=tmp_path, timeout=60
    )
    assert (ran.returncode, ran.stderr) == (130, "")
    assert "interrupted: " in ran.stdout
    assert json.loads((tmp_path / "plan.json").read_text())["evaluations"] == 100
