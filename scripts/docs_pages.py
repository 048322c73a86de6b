"""What mkdocs adds to the pages of `docs/`: pages made from the repository and from the program.

The home page is the README; the changelog, the examples and the benchmarks' pages are those of the
repository; the list of commands is made from the Typer application itself. A link to any file of
the repository becomes a link to its page; a source file gets a page of its own.
"""

from __future__ import annotations

import ast
import os
import posixpath
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mkdocs.structure.files import File

if TYPE_CHECKING:
    from mkdocs.config.defaults import MkDocsConfig
    from mkdocs.structure.files import Files
    from mkdocs.structure.pages import Page

ROOT = Path(__file__).parent.parent
LINK = re.compile(r"(\]\()([^)#\s]+)(#[^)\s]*)?(\))")
COPIED = {"README.md": "index.md"} | {
    name: name
    for name in [
        *("CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md"),
        *sorted(
            str(path.relative_to(ROOT))
            for folder in ("benchmarks", "examples")
            for path in (ROOT / folder).rglob("*.md")
        ),
    ]
}
"""Pages of the site by the file of the repository that they copy, besides those of `docs/`."""
RULES = ROOT / "src" / "placewright" / "simulator" / "reference.py"
LANGUAGES = {".py": "python", ".toml": "toml", ".cpp": "cpp", ".hpp": "cpp", ".cff": "yaml"}


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages that are not in `docs/`."""
    for source, target in COPIED.items():
        files.append(File.generated(config, target, content=(ROOT / source).read_text()))
    files.append(File.generated(config, "commands.md", content=commands_page()))
    files.append(File.generated(config, "rules.md", content=rules_page()))
    texts = {f"docs/{file.src_uri}": file for file in files.documentation_pages()}
    linked = {
        path
        for origin in [*texts, *COPIED]
        if (ROOT / origin).exists()
        for path in _linked_files(origin)
    }
    for path in sorted(linked):
        if not path.startswith("docs/") and path not in COPIED:
            files.append(File.generated(config, _source_page(path), content=source_page(path)))
    return files


def on_page_markdown(markdown: str, page: Page, **_: Any) -> str:
    """Turn links between files of the repository into links between pages."""
    origins = {target: source for source, target in COPIED.items()}
    origin = origins.get(page.file.src_uri, f"docs/{page.file.src_uri}")
    here = posixpath.dirname(page.file.src_uri)

    def replace(match: re.Match[str]) -> str:
        path = _resolve(origin, match[2])
        if path is None:
            return match[0]
        target = _page_of(path)
        return f"{match[1]}{posixpath.relpath(target, here or '.')}{match[3] or ''}{match[4]}"

    return _outside_code(markdown, lambda text: LINK.sub(replace, text))


def commands_page() -> str:
    """Every command with its arguments and options, from the application itself."""
    import typer

    from placewright.cli.app import app

    group: Any = typer.main.get_command(app)
    lines = ["# Commands and options", ""]
    lines += ["Made from the program itself; `placewright COMMAND --help` prints the same.", ""]
    for name, command in group.commands.items():
        if command.hidden:
            continue
        words = [f"placewright {name}"]
        words += [_usage(each) for each in command.params if each.param_type_name == "argument"]
        lines += [f"## {name}", "", _paragraphs(command.help or ""), ""]
        lines += ["```text", " ".join([*words, "[OPTIONS]"]), "```", ""]
        rows = [_row(each) for each in command.params if not getattr(each, "hidden", False)]
        lines += ["| | |", "|---|---|", *rows, ""]
    return "\n".join(lines)


def rules_page() -> str:
    """The rules in words: the docstring of the simulator's specification."""
    text = ast.get_docstring(ast.parse(RULES.read_text())) or ""
    return f"# The simulator's rules\n\n{text}\n"


def source_page(path: str) -> str:
    """A file of the repository as a page."""
    language = LANGUAGES.get(Path(path).suffix, "text")
    text = (ROOT / path).read_text()
    return f"# {path}\n\n````{language}\n{text}\n````\n"


def _usage(argument: Any) -> str:
    name = (argument.metavar or argument.name).upper().strip("{}[].")
    return f"{name}..." if argument.nargs == -1 else name


def _row(parameter: Any) -> str:
    if parameter.param_type_name == "argument":
        names = f"`{_usage(parameter)}`"
    else:
        names = ", ".join(f"`{name}`" for name in [*parameter.opts, *parameter.secondary_opts])
        if not parameter.is_flag and parameter.metavar:
            names += f" `{parameter.metavar}`"
    text = " ".join((getattr(parameter, "help", None) or "").split())
    default = parameter.default
    if isinstance(default, str | int | float) and not isinstance(default, bool) and default != "":
        text += f" (default: `{default}`)"
    return f"| {_cell(names)} | {_cell(text)} |"


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("<", "&lt;").replace("*", "\\*")


def _paragraphs(text: str) -> str:
    """Help text as Markdown: blocks that must not be wrapped become code."""
    parts = []
    for part in re.split(r"\n\s*\n", text.strip()):
        if part.lstrip().startswith("\b"):
            part = part.replace("\b", "").strip("\n")
            parts.append(f"```text\n{part}\n```")
        else:
            parts.append(part)
    return "\n\n".join(parts)


def _linked_files(origin: str) -> set[str]:
    """The files of the repository that a document links to, itself left out."""
    found: set[str] = set()
    _outside_code(
        (ROOT / origin).read_text(),
        lambda text: (
            found.update(
                filter(None, (_resolve(origin, match[2]) for match in LINK.finditer(text)))
            )
            or text
        ),
    )
    return {path for path in found if (ROOT / path).is_file() and not path.endswith(".png")}


def _resolve(origin: str, target: str) -> str | None:
    """The file of the repository that a link of a document names; None for anything else."""
    if "://" in target or target.startswith(("mailto:", "#")):
        return None
    path = posixpath.normpath(posixpath.join(posixpath.dirname(origin), target))
    return path if (ROOT / path).exists() else None


def _page_of(path: str) -> str:
    if path in COPIED:
        return COPIED[path]
    if path.startswith("docs" + os.sep):
        return path.removeprefix("docs/")
    return _source_page(path)


def _source_page(path: str) -> str:
    return f"source/{path}.md"


def _outside_code(markdown: str, change: Any) -> str:
    """The text with everything but its code blocks changed."""
    parts = re.split(r"(^(`{3,}).*?^\2`*\s*$)", markdown, flags=re.M | re.S)
    # A match adds two parts: the block, and its fence.
    return "".join(
        part if index % 3 == 1 else "" if index % 3 == 2 else change(part)
        for index, part in enumerate(parts)
    )
