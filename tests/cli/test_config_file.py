"""placewright.toml: defaults of options, found upwards, below what is typed."""

from __future__ import annotations

import os

import pytest
import typer

from placewright.cli.app import app
from placewright.cli.config_file import FILE_NAME, find_config, plans_model

QUICK = '[place]\nmethod = "single"\nexplain = false\n'


def write(folder, text):
    folder.mkdir(parents=True, exist_ok=True)
    (folder / FILE_NAME).write_text(text)
    return folder


def test_the_file_sets_model_cluster_and_options_of_a_command(run, tmp_path):
    write(tmp_path, 'model = "diamond"\non = "2xP100+cpu"\nlimit = "gpu0=8GiB"\n' + QUICK)
    data = run("place", "--json").data
    assert (data["method"], data["cluster"]) == ("single", "2xP100+cpu")
    assert data["devices"][0]["limit"] <= 8 * 2**30


def test_what_is_typed_goes_first_then_the_section_then_the_top(run, tmp_path):
    write(tmp_path, 'model = "diamond"\non = "2xP100+cpu"\nseed = 1\n' + QUICK + "seed = 2\n")
    assert run("place", "--json", "--seed", "3").data["seed"] == 3
    assert run("place", "--json").data["seed"] == 2
    assert run("place", "--json", "--method", "heft").data["method"] == "heft"
    assert run("place", "chain", "--json").data["model"].startswith("chain")


def test_the_file_is_found_in_folders_above_and_its_paths_are_relative_to_it(
    run, tmp_path, monkeypatch, workload
):
    write(tmp_path, f'model = "{workload.name}"\n' + QUICK)
    inner = tmp_path / "a" / "b"
    inner.mkdir(parents=True)
    monkeypatch.chdir(inner)
    assert run("place", "--json").data["ops"] == 3


def test_the_nearest_file_is_used_and_config_names_another(run, tmp_path, monkeypatch):
    write(tmp_path, 'model = "chain"\non = "cpu"\n' + QUICK)
    inner = write(tmp_path / "inner", 'model = "diamond"\non = "cpu"\n' + QUICK)
    monkeypatch.chdir(inner)
    assert run("place", "--json").data["model"].startswith("diamond")
    other = tmp_path / FILE_NAME
    assert run("place", "--json", "--config", other).data["model"].startswith("chain")
    assert run("--config", other, "place", "--json").data["model"].startswith("chain")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('modle = "chain"', "commands that plan have no option 'modle': did you mean 'model'?"),
        ("[plase]\nseed = 1", "no command is named 'plase': did you mean 'place'?"),
        ("[place]\nsede = 1", "[place] has no option 'sede': did you mean 'seed'?"),
        ("[place]\nexplain = 1", "explain is 1: expected true or false"),
        ("[place]\nmethod = true", "method is True: expected text or a number"),
        ("[place]\nconfig = 'x'", "[place] has no option 'config'"),
        ("model = ", "is not TOML"),
    ],
)
def test_what_is_wrong_in_the_file_is_said_with_its_name(run, tmp_path, text, message):
    write(tmp_path, text)
    ran = run("place", "diamond", "--on", "cpu")
    assert (ran.status, ran.out) == (1, "")
    assert ran.err.startswith(f"placewright: {tmp_path / FILE_NAME}: ")
    assert message in ran.err


def test_a_bad_value_is_said_to_come_from_the_file(run, tmp_path):
    write(tmp_path, 'objective = "speed"')
    ran = run("place", "diamond", "--on", "cpu")
    assert ran.status == 2
    assert "'speed' is not one of" in ran.err
    assert f"It is set in {tmp_path / FILE_NAME}." in " ".join(ran.err.split())


def test_a_missing_file_is_called_missing(run, tmp_path):
    ran = run("place", "diamond", "--on", "cpu", "--config", "none.toml")
    assert (ran.status, ran.err) == (1, "placewright: none.toml: No such file or directory\n")


def test_help_works_with_a_broken_file(run, tmp_path):
    write(tmp_path, "model = ")
    assert run("place", "--help").status == 0


def test_verbose_says_what_the_file_sets(run, tmp_path):
    write(tmp_path, 'model = "diamond"\non = "cpu"\n' + QUICK)
    ran = run("place", "-v", "--on", "2xP100")
    assert f"placewright: {tmp_path / FILE_NAME} sets explain, method, model\n" in ran.err
    assert str(tmp_path) not in run("place").err


def test_a_result_keeps_its_own_options_below_no_file(run, tmp_path):
    write(tmp_path, 'model = "diamond"\non = "2xP100"\n' + QUICK)
    assert run("place", "chain", "--on", "P100+cpu", "-o", "plan.json").status == 0
    data = run("explain", "plan.json", "--json").data
    assert (data["model"].partition(":")[0], data["cluster"]) == ("chain", "P100+cpu")


def test_every_command_that_takes_a_model_and_constraints_reads_the_top():
    commands = typer.main.get_command(app).commands
    assert {name for name, each in commands.items() if plans_model(each)} >= {
        *("place", "compare", "simulate", "train")
    }
    assert not any(plans_model(commands[name]) for name in ("explain", "report", "profile"))


@pytest.mark.skipif(os.name != "posix", reason="files have owners on POSIX")
def test_a_file_of_another_user_is_used_only_if_named(tmp_path, monkeypatch):
    write(tmp_path, "")
    owner = (tmp_path / FILE_NAME).stat().st_uid
    assert find_config(tmp_path) == tmp_path / FILE_NAME
    if owner == 0:
        try:
            os.chown(tmp_path / FILE_NAME, 12345, 12345)
        except OSError:
            pytest.skip("may not give a file away")
    else:
        monkeypatch.setattr(os, "getuid", lambda: owner + 1)
    with pytest.raises(Exception, match="belongs to another user: add --config"):
        find_config(tmp_path)
