"""`placewright fits`: the verdict first, then what takes the memory."""

from __future__ import annotations

import pytest


def test_the_verdict_is_the_first_line(run):
    ran = run("fits", "transformer", "--on", "A100")
    assert ran.status == 0
    assert ran.out.startswith("fits: everything on gpu0, 5.501 GiB of 39 GiB\n")
    tight = run("fits", "transformer", "--on", "A100", "--limit", "4G")
    assert tight.status == 0
    assert tight.out.startswith("does not fit: everything takes 5.501 GiB, 1.501 GiB more than")
    parts = run("fits", "transformer", "--on", "A100+cpu", "--limit", "4G")
    assert parts.out.startswith("fits in parts, ")


def test_json_has_the_parts_in_bytes(run):
    data = run("fits", "offload", "--on", "P100", "--limit", "2GiB", "--json").data
    assert data["fits"] is False
    (row,) = data["rows"]
    assert row["whole"]["weights"] == 16 * 352 * 2**20
    assert (row["devices"], row["layers"], row["seconds"]) == ([], [], None)
    assert row["with_host"]["cluster"] == "P100+cpu"
    fitting = run("fits", "offload", "--on", "P100", "--json").data["rows"][0]
    assert fitting["with_host"] is None
    assert fitting["devices"][0]["peak"] == fitting["whole"]["peak"]


def test_sizes_are_tried_one_by_one(run):
    options = ("transformer", "--on", "A100", "--limit", "8GiB")
    sizes = ("--tokens", "1,512", "--context", "0,65536")
    ran = run("fits", *options, *sizes)
    assert ran.out.startswith("2 of 4 sizes fit on one device, 2 do not\n")
    rows = run("fits", *options, *sizes, "--json").data["rows"]
    tried = [(row["sizes"]["tokens"], row["sizes"]["context"], row["fits"]) for row in rows]
    assert tried == [(1, 0, True), (1, 65536, False), (512, 0, True), (512, 65536, False)]


def test_a_python_file_takes_the_sizes_that_its_function_has(run, tmp_path):
    pytest.importorskip("torch")
    (tmp_path / "model.py").write_text(
        "import torch\n"
        "def build(batch=1):\n"
        "    return torch.nn.Linear(64, 64), (torch.zeros(batch, 64),)\n"
    )
    rows = run("fits", "model.py", "--on", "P100", "--batch", "1,10", "--json").data["rows"]
    small, large = (row["whole"] for row in rows)
    assert small["weights"] == large["weights"] == (64 * 64 + 64) * 4
    assert large["activations"] == 10 * small["activations"]
    refused = run("fits", "model.py", "--on", "P100", "--tokens", "8")
    assert refused.status == 1
    assert "build() has no parameter 'tokens': write def build(tokens=1)" in refused.err


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("chain", "--batch", "2"), "--batch: chain has no such size: it has ops, seed, weights"),
        (("transformer", "--tokens", "1,x"), "--tokens '1,x': expected whole numbers with commas"),
        (("g.json", "--batch", "2"), "--batch: 'g.json' is a file whose sizes are fixed"),
    ],
)
def test_sizes_that_a_model_does_not_have_are_refused(run, options, message):
    ran = run("fits", *options, "--on", "P100")
    assert ran.status == 1
    assert message in ran.err


def test_tokens_of_a_language_model_are_its_context(run):
    pytest.importorskip("torch")
    options = ("fits", "llama-8b:size=test", "--on", "P100", "--batch", "1,2", "--tokens", "3,6")
    rows = run(*options, "--json").data["rows"]
    assert len(rows) == 4
    assert rows[0]["whole"]["activations"] < rows[-1]["whole"]["activations"]
