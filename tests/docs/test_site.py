"""The documentation's site: it builds without a warning, loads nothing, and has every command."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import typer

import placewright
from placewright.cli.app import app

ROOT = Path(__file__).parent.parent.parent


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    pytest.importorskip("mkdocs")
    folder = tmp_path_factory.mktemp("site")
    done = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(folder)],
        cwd=ROOT,
        env=os.environ | {"NO_MKDOCS_2_WARNING": "1"},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return folder


def test_no_page_loads_anything_from_the_network(site):
    pages = sorted(site.rglob("*.html"))
    assert len(pages) > 30
    for page in pages:
        text = page.read_text()
        loaded = re.findall(r"<(?:script|link|img|iframe)[^>]*(?:src|href)=\"([^\"]+)", text)
        assert [address for address in loaded if "//" in address] == []


def test_every_command_and_option_is_on_the_site(site):
    text = (site / "commands.html").read_text()
    group = typer.main.get_command(app)
    for name, command in group.commands.items():
        if command.hidden:
            continue
        assert f'id="{name}"' in text
        for parameter in command.params:
            if parameter.param_type_name == "option" and not parameter.hidden:
                assert all(f"<code>{each}</code>" in text for each in parameter.opts)


def test_every_public_class_and_function_is_in_the_api(site):
    text = (site / "api.html").read_text()
    packages = {name for name in placewright.__all__ if name.islower()} & set(
        placewright._SUBMODULES
    )
    missing = [
        name
        for name in placewright.__all__
        if name not in packages and not re.search(rf'id="placewright[\w.]*\.{name}"', text)
    ]
    assert missing == []


def test_the_rules_of_the_simulator_are_on_the_site(site):
    text = (site / "rules.html").read_text()
    assert "No plan can deadlock" in text
    assert text.count("<li>") >= 10
