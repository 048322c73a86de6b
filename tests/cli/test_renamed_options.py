"""Options under their names of release 0.1 still work, with a warning in a line."""

from __future__ import annotations

import pytest

from placewright.cli.renamed_options import replace_old_options


@pytest.mark.parametrize(
    ("words", "replaced"),
    [
        (["place", "m", "--use", "gpu0"], ["place", "m", "--devices", "gpu0"]),
        (["place", "m", "--verify=3"], ["place", "m", "--measure=3"]),
        (["execute", "p", "--verify"], ["execute", "p", "--verify"]),
        (["execute", "p", "--where", "a=b"], ["execute", "p", "--device-map", "a=b"]),
        (["profile", "--again"], ["profile", "--refresh"]),
        (
            ["place", "m", "--start", "p", "--no-why"],
            ["place", "m", "--warm-start", "p", "--no-explain"],
        ),
        (["compare", "m", "--spread", "0.1"], ["compare", "m", "--cost-noise", "0.1"]),
        (["--version"], ["--version"]),
    ],
)
def test_old_names_are_replaced(words, replaced, capsys):
    assert replace_old_options(words) == replaced
    warnings = capsys.readouterr().err.splitlines()
    changed = [old for old, new in zip(words, replaced, strict=True) if old != new]
    assert len(warnings) == len(changed)
    for warning, old in zip(warnings, changed, strict=True):
        assert warning.startswith(f"placewright: {old.partition('=')[0]} is now --")


def test_a_command_takes_an_old_name(run):
    ran = run("place", "diamond", "--on", "2xP100+cpu", "--use", "gpu0", "--no-why", "--json")
    assert ran.status == 0
    assert [device["name"] for device in ran.data["devices"]] == ["gpu0"]
    warnings = [line.partition(":")[2].partition(":")[0] for line in ran.err.splitlines()]
    assert warnings == [" --use is now --devices", " --no-why is now --no-explain"]
