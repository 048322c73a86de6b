"""House rules as tests: public names, file length, documents that run, import time."""

from __future__ import annotations

import ast
import json
import re
import resource
import subprocess
import sys
from collections import defaultdict
from pathlib import Path

import pytest

import placewright
from placewright import solvers

ROOT = Path(__file__).parent.parent
SOURCES = sorted((ROOT / "src").rglob("*.py")) + sorted((ROOT / "cpp").rglob("*.?pp"))
PACKAGE = ROOT / "src" / "placewright"
TREES = {path: ast.parse(path.read_text()) for path in sorted(PACKAGE.rglob("*.py"))}
BROWSER = sorted((ROOT / "src" / "placewright" / "reporting" / "browser").glob("*"))
DOCUMENTS = [
    ROOT / "README.md",
    ROOT / "examples" / "README.md",
    *sorted((ROOT / "docs").rglob("*.md")),
]
CODE = {  # a document is read from top to bottom, so its blocks share names
    str(path.relative_to(ROOT)): "\n".join(
        re.findall(r"```python\n(.*?)```", path.read_text(), re.S)
    )
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


def test_a_file_has_one_idea_and_a_docstring():
    """A file of more than 500 lines has two; most have under 150."""
    long, silent = [], []
    for path in SOURCES + BROWSER:
        text = path.read_text()
        if len(text.splitlines()) > 500:
            long.append(path.name)
        if path.suffix == ".py" and not text.startswith('"""'):
            silent.append(path.name)
    assert (long, silent) == ([], [])


def test_a_class_name_exists_once():
    where = defaultdict(list)
    for path, tree in TREES.items():
        for node in tree.body:
            if isinstance(node, ast.ClassDef):
                where[node.name].append(str(path.relative_to(PACKAGE)))
    assert {name: paths for name, paths in where.items() if len(paths) > 1} == {}


def test_no_function_hides_a_module():
    """Neither its own module, nor one beside it in a package that exports the function."""
    hidden = []
    for path, tree in TREES.items():
        functions = {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}
        if path.name == "__init__.py":
            stems = {item.stem for item in path.parent.iterdir()} - {"__init__", "__pycache__"}
            exported = functions | {
                alias.asname or alias.name
                for statement in tree.body
                for node in (statement.body if isinstance(statement, ast.If) else [statement])
                if isinstance(node, ast.ImportFrom)
                for alias in node.names
                if not (
                    PACKAGE.parent / (node.module or "").replace(".", "/") / alias.name
                ).is_dir()
                and not (
                    PACKAGE.parent / (node.module or "").replace(".", "/") / f"{alias.name}.py"
                ).exists()
            }
            hidden += [f"{path.parent.name}: {name}" for name in exported & stems]
        elif path.stem in functions:
            hidden.append(str(path.relative_to(PACKAGE)))
    assert hidden == []


def test_module_names_are_words_of_the_field():
    """A word of a module's name is in vocabulary.txt or has an entry in the glossary."""
    lines = (ROOT / "tests" / "vocabulary.txt").read_text().splitlines()
    known = {word for line in lines if not line.startswith("#") for word in line.split()}
    known |= {
        word.lower()
        for line in (ROOT / "docs" / "glossary.md").read_text().splitlines()
        if line.startswith("| ")
        for word in re.findall(r"\w+", line.split("|")[1])
    }
    words = {word for path in TREES for word in path.stem.strip("_").split("_")}
    assert sorted(words - known) == []


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


@pytest.mark.parametrize(
    "path",
    [*DOCUMENTS, ROOT / "CHANGELOG.md", ROOT / "CONTRIBUTING.md"],
    ids=lambda path: path.name,
)
def test_the_documents_have_100_columns(path):
    prose = re.sub(r"```.*?```", "", path.read_text(), flags=re.S)  # output is as it is
    lines = prose.splitlines()
    wide = [line for line in lines if len(line) > 100 and not line.startswith("|")]
    assert wide == []


def test_the_documents_links_lead_somewhere():
    for path in [*DOCUMENTS, *sorted((ROOT / "benchmarks").rglob("*.md")), ROOT / "CHANGELOG.md"]:
        for target in re.findall(r"\]\(([^)#\s]+)[^)]*\)", path.read_text()):
            if "://" not in target:
                assert (path.parent / target).exists(), f"{path.name} links to {target}"


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
