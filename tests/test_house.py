"""House rules as tests: public names, file length, documents that run, import time."""

from __future__ import annotations

import json
import re
import resource
import subprocess
import sys
from pathlib import Path

import pytest

import placewright
from placewright import solvers

ROOT = Path(__file__).parent.parent
SOURCES = sorted((ROOT / "src").rglob("*.py")) + sorted((ROOT / "cpp").rglob("*.?pp"))
BROWSER = sorted((ROOT / "src" / "placewright" / "reporting" / "browser").glob("*"))
DOCUMENTS = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
CODE = {  # a document is read from top to bottom, so its blocks share names
    path.name: "\n".join(re.findall(r"```python\n(.*?)```", path.read_text(), re.S))
    for path in DOCUMENTS
}


def test_every_public_name_is_there():
    for name in placewright.__all__:
        assert getattr(placewright, name) is not None
    with pytest.raises(AttributeError, match="has no attribute 'plaice'"):
        _ = placewright.plaice
    assert set(placewright.__all__) < set(dir(placewright))


def test_public_names_of_a_type_checker_are_those_of_the_interpreter():
    text = Path(placewright.__file__).read_text()
    seen = set(re.findall(r"import (\w+) as \1\b", text))
    assert seen == set(placewright.__all__) | {"__version__"}


@pytest.mark.parametrize("path", SOURCES + BROWSER, ids=lambda path: path.name)
def test_a_file_has_one_idea_and_under_400_lines(path):
    most = 480 if path.name == "reference.py" else 420  # the specification is a text of its own
    assert len(path.read_text().splitlines()) <= most


@pytest.mark.parametrize(
    "path", [p for p in SOURCES if p.suffix == ".py"], ids=lambda path: path.name
)
def test_a_module_begins_by_saying_what_it_is(path):
    assert path.read_text().startswith('"""')


def test_the_page_never_reads_text_as_html_and_fetches_nothing():
    assert len(BROWSER) > 10
    for path in BROWSER:
        text = path.read_text()
        for word in (
            "innerHTML",
            "outerHTML",
            "insertAdjacent",
            "document.write",
            "eval(",
            "fetch(",
        ):
            assert word not in text, f"{path.name} has {word}"
        addresses = re.findall(r"https?://[^\s\"']+", text)
        assert set(addresses) <= {"http://www.w3.org/2000/svg"}, path.name


@pytest.mark.parametrize("name", [name for name, code in CODE.items() if code])
def test_the_documents_python_runs(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    exec(compile(CODE[name], name, "exec"), {"__name__": "document"})


def test_every_method_is_in_the_contract_tests():
    contract = (ROOT / "tests" / "solvers" / "test_contract.py").read_text()
    assert "METHODS" in contract
    assert len(solvers.METHODS) >= 10


def work_of(*command):
    """Seconds of the processor for a command: the least of three."""

    def spent():
        found = resource.getrusage(resource.RUSAGE_CHILDREN)
        return found.ru_utime + found.ru_stime

    seconds = []
    for _ in range(3):
        before = spent()
        subprocess.run([sys.executable, *command], check=True, capture_output=True)
        seconds.append(spent() - before)
    return min(seconds)


def test_import_and_help_are_quick():
    """Beside the one package that reads the command line, on any machine."""
    typer = work_of("-c", "import typer")
    assert work_of("-c", "import placewright") < typer
    assert work_of("-m", "placewright", "--help") < 3 * typer


def test_the_core_does_not_load_heavy_packages():
    code = (
        "import sys, json, placewright as pw, placewright.solvers, placewright.files;"
        "print(json.dumps([m for m in ('scipy', 'torch', 'rich', 'typer') if m in sys.modules]))"
    )
    run = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert json.loads(run.stdout) == []
