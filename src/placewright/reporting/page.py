"""Renders a comparison as one self-contained HTML file.

Whatever the data hold, nothing but our own script runs and nothing is fetched: the page's content
security policy allows one style and one script, by their digests. Names get into the page as JSON,
in which no `<` is left, and from there as text.
"""

from __future__ import annotations

import base64
import hashlib
import html
import json
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from placewright.errors import FileError
from placewright.files.storage import write_bytes
from placewright.logs import log_duration
from placewright.reporting.content import PageContent, comparison_of
from placewright.reporting.payload import Data, page_data
from placewright.reporting.workload_content import call_contents
from placewright.version import __version__
from placewright.workload_result import WorkloadResult

if TYPE_CHECKING:
    import os
    from collections.abc import Sequence

    from placewright.explanations import Explanation
    from placewright.problem import Problem
    from placewright.reporting.learning_curve import LearningCurve
    from placewright.result import Result
    from placewright.solvers import Comparison

SCRIPTS = (
    *("units", "data", "shared", "words", "lanes", "timeline", "memory", "painting", "graph"),
    *("answer", "methods", "ops", "search", "learning", "plans", "main"),
)
"""In the order in which they are read."""


def report(
    results: Comparison | Result | Sequence[Result] | WorkloadResult,
    path: str | os.PathLike[str] | None = None,
    *,
    problem: Problem | None = None,
    explanation: Explanation | None = None,
    notes: Sequence[str] = (),
    learning_curve: LearningCurve | None = None,
) -> Page:
    """Write results as one self-contained HTML page; a notebook shows it inline.

    The best single device and Accelerate's plan are added where they are missing.

    Args:
        results: A comparison, or results of one problem; or the result of a workload, whose page
            shows one of its calls at a time.
        path: The file to write, if any.
        problem: The problem, if the results come from files.
        explanation: What `explain` says of the best result: the page then also shows what would
            help.
        notes: What a reader should know before trusting the page.
        learning_curve: How the policy behind one of the results was trained.

    Raises:
        FileError: The page cannot be written.
        PlanError: The problem is not known, or a plan is not one of this problem's.
    """
    if isinstance(results, WorkloadResult):
        contents = call_contents(results, notes)
        page = Page(render_page({"calls": [page_data(content) for content in contents]}))
    else:
        comparison = comparison_of(results, problem)
        page = Page(html_page(PageContent.of(comparison, explanation, notes, learning_curve)))
    if path is not None:
        page.save(path)
    return page


@dataclass(frozen=True, repr=False)
class Page:
    """A report: one self-contained HTML page, which a notebook shows inline and offline.

    Args:
        html: The page.
        height: Pixels of its frame in a notebook.
    """

    html: str
    height: int = 720

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the page to a file.

        Raises:
            FileError: It cannot be written.
        """
        try:
            with log_duration(f"writing {path}"):
                write_bytes(self.html.encode(), Path(path))
        except FileError as error:
            raise FileError(f"{path}: {error}") from None

    def _repr_html_(self) -> str:
        """A frame with the page in it, apart from the notebook's own styles and scripts."""
        return (
            f'<iframe srcdoc="{html.escape(self.html)}" title="placewright report" '
            'sandbox="allow-scripts allow-downloads" '
            f'style="width:100%;height:{self.height}px;border:1px solid rgba(128,128,128,.35)">'
            "</iframe>"
        )

    def __repr__(self) -> str:
        return f"Page({len(self.html):,} characters; save it with .save('report.html'))"


def html_page(content: PageContent) -> str:
    """The whole page."""
    return render_page(page_data(content))


def save_page(content: PageContent, path: str | os.PathLike[str]) -> None:
    """Write a page to a file.

    Raises:
        FileError: It cannot be written.
    """
    Page(html_page(content)).save(path)


def render_page(data: Data) -> str:
    """The page that shows this data."""
    style = _read_asset("page.css")
    script = (
        "(() => {\n'use strict';\n"
        + "\n".join(_read_asset(f"{name}.js") for name in SCRIPTS)
        + "})();"
    )
    policy = (
        f"default-src 'none'; style-src '{_digest(style)}'; script-src '{_digest(script)}'; "
        "img-src data:; base-uri 'none'; form-action 'none'"
    )
    values = {
        "policy": html.escape(policy, quote=False),
        "version": html.escape(__version__),
        "title": html.escape(_title(data)),
        "style": style,
        "data": _html_safe_json(data),
        "script": script,
    }
    page = _read_asset("page.html")
    fragments = []
    while "{{" in page:  # each once and in order, so that data with braces stays data
        before, _, after_brace = page.partition("{{")
        name, _, page = after_brace.partition("}}")
        fragments += [before, values[name]]
    return "".join([*fragments, page])


def _title(data: Data) -> str:
    calls = data.get("calls")
    names = data["model"] if calls is None else ", ".join(call["model"] for call in calls)
    text = f"{names} on {(data if calls is None else calls[0])['cluster']}"
    text = text if len(text) <= 120 else f"{text[:119]}…"
    return text.encode("utf-8", "replace").decode()  # half a surrogate pair cannot be written


def _html_safe_json(data: Data) -> str:
    """JSON that HTML cannot misread: no `<`, `>` or `&`, and ASCII alone."""
    text = json.dumps(data, separators=(",", ":"), allow_nan=False)
    for character in "<>&":
        text = text.replace(character, f"\\u{ord(character):04x}")
    return text


def _digest(text: str) -> str:
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()


def _read_asset(name: str) -> str:
    return (Path(__file__).parent / "browser" / name).read_text("utf-8")
