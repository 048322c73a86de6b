"""The documents' commands: all of them parse, and those that are quick run and show what they say.

What the README says is followed as it stands by `tests/newcomer`.
"""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest
import typer
from console_blocks import console_commands

from placewright import zoo
from placewright.cli import main
from placewright.cli.app import app

ROOT = Path(__file__).parent.parent.parent
DOCUMENTS = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
COMMANDS = [
    command
    for path in DOCUMENTS
    for command in console_commands(path)
    if command.text.startswith("placewright ")
]
GENERATED = ("transformer", "branches", "layered", "chain")  # these need no PyTorch
WRITES = re.compile(r"(?:-o|--report|--trace|--output) (\S+)")


@pytest.mark.parametrize("command", COMMANDS, ids=str)
def test_a_documents_command_has_options_that_exist(command):
    """The values are not looked at: files and names may be anything."""
    words = shlex.split(command.text)[1:]
    group = typer.main.get_command(app)
    if words == ["COMMAND", "--help"]:
        return
    found = group.commands[words[0]]
    context = found.make_context(words[0], [], resilient_parsing=True)
    found.make_parser(context).parse_args(words[1:])


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: path.name)
def test_a_document_names_commands_that_exist(path):
    named = set(re.findall(r"`placewright ([a-z]+)\b", path.read_text()))
    assert sorted(named - set(typer.main.get_command(app).commands)) == []


def is_quick(text: str, written: set[str]) -> bool:
    """Whether a command needs nothing but a generated model, or a file that one of them wrote."""
    words = shlex.split(text)
    if len(words) < 3 or words[1] in ("execute", "train", "profile"):
        return False
    model = words[2].partition(":")[0]
    return model in (*GENERATED, *written) and "here" not in words and "edited.json" not in words


QUICK_DOCUMENTS = [
    path
    for path in DOCUMENTS[1:]
    if any(is_quick(command.text, set()) for command in console_commands(path))
]


@pytest.mark.parametrize("path", QUICK_DOCUMENTS, ids=lambda path: path.name)
def test_quick_commands_of_a_document_run_in_order(path, tmp_path, monkeypatch, capsys):
    """A search gets a moment, where the document does not name a method, and no explanation.

    Commands run in this process: `tests/cli/test_process.py` has real ones.
    """
    assert set(GENERATED) <= {name for name, _ in zoo.names()}
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("NO_COLOR", "1")
    monkeypatch.setenv("COLUMNS", "80")
    written: set[str] = set()
    for command in console_commands(path):
        if not is_quick(command.text, written):
            continue
        words = shlex.split(command.text)[1:]
        if words[0] in ("place", "compare") and not {"--budget", "--method"} & set(words):
            words += ["--budget", "0.2s"]
            if words[0] == "place" and "--explain" not in words:
                words += ["--no-explain"]
        if words[0] == "compare" and "--methods" not in words:
            words += ["--methods", "single,heft"]
        with pytest.raises(SystemExit) as ended:
            main(words)
        done = capsys.readouterr()
        assert not ended.value.code, f"{command.text}: {done.err}"
        written.update(WRITES.findall(command.text))
        for name in WRITES.findall(command.text):
            assert (tmp_path / name).exists()
        shown = " ".join((done.out + done.err).split())
        if "--method" in words or words[0] in ("export", "simulate"):
            for line in command.output.splitlines():
                assert line == "…" or " ".join(line.split()) in shown, line
