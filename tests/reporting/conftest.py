"""Pages of three sizes, and a real browser to open them in."""

from __future__ import annotations

import os
import shutil
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pytest

from placewright import Cluster, MaxEvaluations, Problem, solve, solvers, zoo
from placewright.problem import Constraints
from placewright.reporting import PageContent, save_page
from placewright.solvers import Comparison

if TYPE_CHECKING:
    from pathlib import Path


NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")
WIDE, HIGH = 1366, 850  # a laptop


@dataclass(frozen=True)
class Saved:
    """A page on disk and what it was made of."""

    path: Path
    content: PageContent

    @property
    def address(self) -> str:
        return self.path.as_uri()


@pytest.fixture(scope="session")
def browser():
    """The system's Chromium, driven by playwright."""
    library = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    program = next(filter(None, map(shutil.which, NAMES)), None)
    if program is None:
        pytest.skip("no Chromium is installed: on Debian run 'apt-get install chromium'")
    flags = ["--disable-gpu", "--disable-dev-shm-usage"]
    if hasattr(os, "geteuid") and os.geteuid() == 0:
        flags.append("--no-sandbox")  # Chromium refuses to sandbox root
    with library.sync_playwright() as driver:
        found = driver.chromium.launch(executable_path=program, args=flags)
        yield found
        found.close()


class Tab:
    """A page in the browser; it fails the test if it complains or asks for anything."""

    def __init__(self, browser, saved: Saved, theme: str = "light", **how: object) -> None:
        size = {"width": WIDE, "height": HIGH}
        self.context = browser.new_context(viewport=size, color_scheme=theme, **how)
        self.page = self.context.new_page()
        self.said: list[str] = []
        self.asked: list[str] = []
        self.page.on("console", lambda message: self.said.append(message.text))
        self.page.on("pageerror", lambda error: self.said.append(str(error)))
        self.page.on("dialog", lambda dialog: self.said.append(dialog.message))
        self.page.on("request", lambda request: self.asked.append(request.url))
        self.page.goto(saved.address)
        self.saved = saved

    def close(self) -> None:
        self.context.close()
        # Chromium's advice about the reading of pixels, which only tests do
        assert [each for each in self.said if "willReadFrequently" not in each] == []
        assert self.asked == [self.saved.address]

    def text(self, where: str) -> str:
        return self.page.locator(where).inner_text()

    def get(self, expression: str):
        return self.page.evaluate(expression)

    def until(self, condition: str) -> None:
        """Wait until a condition holds, since a busy browser draws when it can; else fail.

        Playwright's own way to wait would have the page evaluate text, which its policy forbids.
        """
        late = time.monotonic() + 20
        while not self.page.evaluate(condition):
            assert time.monotonic() < late, f"it never came about that {condition}"
            self.page.wait_for_timeout(20)

    def settle(self) -> None:
        """Wait until what was asked to be drawn is drawn."""
        frame = "new Promise(r => requestAnimationFrame(() => setTimeout(r, 0)))"
        self.page.evaluate(f"async () => {{ await {frame}; await {frame}; }}")


@pytest.fixture
def open_tab(browser):
    """Open a saved page; at the end it must have been quiet and have asked for nothing."""
    tabs: list[Tab] = []

    def opened(saved: Saved, theme: str = "light", **how: object) -> Tab:
        tabs.append(Tab(browser, saved, theme, **how))
        return tabs[-1]

    yield opened
    for tab in tabs:
        tab.close()


@pytest.fixture(
    scope="module", params=["small", "medium", pytest.param("large", marks=pytest.mark.slow)]
)
def shown(request, browser):
    """A page that is looked at and left as it is: opened once for all who do no more."""
    tab = Tab(browser, request.getfixturevalue(request.param))
    yield tab
    tab.close()


@pytest.fixture
def save_tab(open_tab, tmp_path):
    """Save a page and open it."""
    return lambda content: open_tab(saved(tmp_path, "page", content))


@pytest.fixture(scope="session")
def folder(tmp_path_factory) -> Path:
    return tmp_path_factory.mktemp("pages")


def page_content(name, problem, results, skipped=(), labels=(), **more) -> PageContent:
    """The content of a page about some results."""
    comparison = Comparison(problem, tuple(results), tuple(labels), tuple(skipped), name=name)
    return PageContent.of(comparison, **more)


@pytest.fixture
def build_content():
    return page_content


def saved(folder: Path, name: str, content: PageContent) -> Saved:
    path = folder / f"{name}.html"
    save_page(content, path)
    return Saved(path, content)


@pytest.fixture(scope="session")
def small(folder) -> Saved:
    """289 ops whose weights do not fit the GPU, by several methods; some stream."""
    limits = Constraints(limits={"gpu0": 4 * 2**30})
    problem = Problem(
        zoo.load("transformer:tokens=512"), Cluster.parse("V100+cpu"), constraints=limits
    )
    names = ("single", "accelerate", "round-robin", "balanced", "heft", "streamed")
    results = [solve(problem, solvers.METHODS[name]()) for name in names]
    skipped = [("expert", "no expert is known for <this>")]
    return saved(folder, "small", page_content("transformer:tokens=512", problem, results, skipped))


@pytest.fixture(scope="session")
def medium(folder) -> Saved:
    """2,000 ops, shared out over five devices."""
    problem = Problem(zoo.load("layered:ops=2000"), Cluster.parse("4xP100+cpu"))
    result = solve(problem, solvers.METF(), MaxEvaluations(4))
    return saved(folder, "medium", page_content("layered:ops=2000", problem, [result]))


@pytest.fixture(scope="session")
def large(folder) -> Saved:
    """20,000 ops in turn on five devices: nearly every tensor is sent, so no page is larger."""
    problem = Problem(zoo.load("layered:ops=20000"), Cluster.parse("4xV100+cpu"))
    result = solve(problem, solvers.RoundRobin())
    return saved(folder, "large", page_content("layered:ops=20000", problem, [result]))
