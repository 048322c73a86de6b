"""The first hour: what a review by a newcomer found, item by item.

Each test is one item of that review, or one line of it. Those of hardware, of the options of the
command line and of the README are tested where they were mended.
"""

from __future__ import annotations

import json
import re

import numpy as np
import pytest

import placewright as pw
from placewright import files

OFFLOAD = ("offload", "--on", "P100", "--limit", "2GiB")


def one_line(text: str) -> str:
    return " ".join(text.split())


# -- The first ten minutes ---------------------------------------------------------------------


def test_every_model_is_listed_with_its_mode_and_figures(run, monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))  # nothing was captured
    models = {model["name"]: model for model in run("models", "--json").data["models"]}
    assert models["gpt2"]["mode"] == "training"
    assert models["llama-8b"]["mode"] == "prefill"
    assert [name for name, model in models.items() if model["ops"] is None] == []
    assert "–" not in run("models").out.partition("\n\n")[0]


def test_a_comparison_is_sorted_and_what_does_not_fit_shows_no_gap(run):
    options = ("transformer", "--on", "A100+cpu", "--limit", "4GiB", "--evaluations", "50")
    rows = run("compare", *options, "--json").data["methods"]
    keys = [(row["overflow"], row["step_time"]) for row in rows]
    assert keys == sorted(keys)
    assert {row["gap"] is None for row in rows if not row["fits"]} <= {True}
    names = {row["method"] for row in rows}
    assert not names & {"round-robin", "metis", "kahip", "mincut"}  # which do nothing with one GPU


def test_notes_of_a_comparison_are_one_line_at_its_end(run):
    out = run("compare", "chain", "--on", "P100+cpu", "--evaluations", "20").out
    assert out.count("skipped") == 1
    last = out[out.index("skipped: ") :]
    assert "expert (no expert's placement is known for 'chain')" in one_line(last)
    assert "known for inception-v3" not in one_line(last)


# -- A model that is too large for its GPU -----------------------------------------------------


def test_what_does_not_fit_says_so_first_and_what_a_host_would_give(run):
    ran = run("place", *OFFLOAD)
    assert ran.out.startswith("does not fit: out of memory on gpu0 by 3.5 GiB\n")
    said = one_line(ran.out)
    assert "what would help: adding a host of 256 GiB (P100+cpu): it fits, " in said
    assert "lower bound" not in said
    data = run("place", *OFFLOAD, "--json").data
    assert (data["fits"], data["gap"], data["throughput"]) == (False, None, {})
    host = data["why"]["helps"][0]
    assert host["kind"] == "host"
    again = run("place", "offload", "--on", "P100+cpu", "--limit", "2GiB", "--json").data
    assert again["fits"]
    assert again["step_time"] <= host["after"] * 1.01


def test_a_limit_is_usable_to_the_last_byte(run):
    data = run("place", "offload", "--on", "P100", "--limit", "5.6GiB", "--json").data
    assert data["fits"]
    assert data["devices"][0]["limit"] == round(5.6 * 2**30)


@pytest.mark.parametrize("limit", ["4", "gpu0=4", "4096"])
def test_a_limit_without_a_unit_is_refused_with_the_remedy(run, limit):
    ran = run("place", "offload", "--on", "P100", "--limit", limit)
    number = limit.rpartition("=")[2]
    assert ran.status == 1
    assert f"has no unit: expected such as '{number} GiB'" in ran.err


def test_a_limit_in_g_is_in_gib(run):
    assert run("place", *OFFLOAD[:-1], "2G", "--no-explain").out == (
        run("place", *OFFLOAD, "--no-explain").out
    )


def test_what_would_help_is_in_sizes_that_are_sold(run):
    options = ("offload", "--on", "P100+cpu", "--limit", "3GiB", "--method", "streamed")
    helps = run("place", *options, "--json").data["why"]["helps"]
    memory = [each["change"] for each in helps if each["kind"] == "memory"]
    assert memory == ["1 GiB more on gpu0"]


def test_a_function_that_returns_a_bare_model_is_refused_before_it_is_built(run, model):
    ran = run("place", "model.py:make", "--on", "P100")
    assert ran.status == 1
    first, *example = ran.err.splitlines()
    assert "make() returns a model of type Decoder without an example input" in first
    assert example == [
        "    def make(batch=1):",
        "        model = Decoder(...)",
        "        return model, (torch.zeros(batch, 128, dtype=torch.long),)",
    ]


def test_execute_times_the_steps_it_is_given_and_remarks_on_a_wrong_prediction(
    run, model, tmp_path
):
    run("place", model, "--on", "cpu", "--no-explain", "-o", "plan.json")
    saved = json.loads((tmp_path / "plan.json").read_text())
    (tmp_path / "plan.json").write_text(json.dumps(saved | {"step_time": 1e-9}))
    ran = run("execute", "plan.json", "--model", model, "--steps", "3")
    said = one_line(ran.out)
    assert "(median of 3 steps," in said
    assert "as long as predicted: was the machine busy" in said
    (tmp_path / "plan.json").write_text(json.dumps(saved | {"step_time": 1e9}))
    assert "of the time predicted" in one_line(run("execute", "plan.json", "--model", model).out)


def test_a_plan_that_uses_no_gpu_runs_without_one(run, model):
    run("place", model, "--on", "P100+cpu", "--method", "cpu-only", "-o", "plan.json")
    ran = run("execute", "plan.json", "--model", model, "--steps", "2", "--verify")
    assert ran.status == 0, ran.err
    assert "verified: " in ran.out


def test_the_answer_names_layers_and_throughput(run, model):
    options = ("--on", "P100+cpu", "--limit", "400KiB", "--method", "streamed")
    ran = run("place", model, *options)
    said = one_line(ran.out)
    assert "samples/s" in said
    assert "tokens/s" in said
    assert re.search(r"layers: .*layers \d.* weights streamed from cpu", said)
    data = run("place", model, *options, "--json").data
    modules = [name for group in data["layers"] for name in group["modules"]]
    assert {"layers.0", "layers.3", "head"} <= set(modules)
    assert data["throughput"]["tokens"] == pytest.approx(16 / data["step_time"])
    assert data["throughput"]["samples"] == pytest.approx(2 / data["step_time"])


# -- Files -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "remedy"),
    [
        ("model.onnx", ""),
        ("model.json", ""),
        ("model.pt", "returns (model, args), and name it: model.py:build"),
        ("model.PTH", "returns (model, args), and name it: model.py:build"),
        ("model.safetensors", "holds weights without the model's code"),
        ("model.gguf", "export the plan with --to llama.cpp"),
        ("model.keras", "save the model as ONNX"),
        (
            "meta-llama/Llama-3-8B",
            "a model of the Hugging Face hub, download it and name its folder, hf:FOLDER",
        ),
    ],
)
@pytest.mark.parametrize("options", [(), ("--dims", "batch=8")])
def test_a_missing_file_is_called_missing(run, name, remedy, options):
    ran = run("place", name, "--on", "P100", *options)
    assert ran.status == 1
    assert ran.err.startswith(f"placewright: {name}: there is no such file")
    assert remedy in ran.err


def test_weights_without_a_model_are_refused_with_the_remedy(run, tmp_path):
    (tmp_path / "model.pt").write_bytes(b"PK")
    ran = run("place", "model.pt", "--on", "P100")
    assert ran.err.startswith("placewright: model.pt: a checkpoint of PyTorch holds weights")


@pytest.mark.parametrize(
    ("target", "name"),
    [
        *((target, "m.onnx") for target in ("accelerate", "pipelining", "llama.cpp", "vllm")),
        ("onnx", "m.pb"),
        ("tensorflow", "m.onnx"),
    ],
)
def test_an_export_that_its_target_cannot_load_is_refused(target, name):
    problem = pw.Problem(pw.zoo.load("diamond"), pw.Cluster.parse("P100+cpu"))
    plan = pw.Plan.of(problem, problem.legalize(np.zeros(4)))
    with pytest.raises(pw.PlacewrightError, match=f"{target} loads no .* files"):
        pw.export(problem, plan, target, model=name)


# -- Learning ----------------------------------------------------------------------------------


@pytest.mark.parametrize("recipe", ["placeto", "placeto-paper"])
def test_a_training_run_of_few_plans_shows_its_rows(run, recipe):
    pytest.importorskip("torch")
    options = ("diamond", "--on", "2xK80", "--evaluations", "4", "--groups", "4")
    ran = run("train", recipe, *options)
    assert ran.status == 0, ran.err
    assert "nan" not in ran.out


def test_a_finished_run_that_is_resumed_says_so(run):
    pytest.importorskip("torch")
    run("train", "colocrl", "diamond", "--on", "2xK80", "--evaluations", "8", "--run-dir", "runs")
    again = run("train", "--resume", "runs")
    assert re.search(r"runs is finished after \d plans: this is its result", again.err)
    assert "more than 8" in again.err
    longer = run("train", "--resume", "runs", "--evaluations", "16")
    assert "finished" not in longer.err


# -- Running, editing, comparing ---------------------------------------------------------------

STREAMED = ("offload", "--on", "P100+cpu", "--limit", "3GiB")


@pytest.fixture
def edited(run, tmp_path):
    """A saved plan, and the same with one weight more on the host and a buffer too small for it."""
    run("place", *STREAMED, "--method", "streamed", "--no-explain", "-o", "plan.json")
    data = json.loads((tmp_path / "plan.json").read_text())
    placement = data["plan"]["placement"]
    weight = next(op for op, at in placement.items() if at == "gpu0" and op.endswith(".weight"))
    placement[weight] = "cpu"
    data["plan"]["staging"] = {"gpu0": 2**20}
    (tmp_path / "edited.json").write_text(json.dumps(data))
    return "plan.json", "edited.json"


def test_a_difference_shows_no_figure_of_a_plan_that_was_edited(run, edited):
    ran = run("diff", *edited)
    assert ran.out.splitlines()[0].startswith("plan.json: step time ")
    second = "edited.json: edited since it was saved: placewright simulate shows its step time"
    assert second in one_line(ran.out)
    data = run("diff", *edited, "--json").data
    assert "step_time" not in data["second"]
    assert data["second"]["edited"] is True


def test_an_edited_plan_gets_the_staging_buffer_that_it_needs(run, edited, caplog):
    ran = run("simulate", *STREAMED, "--plan", edited[1])
    assert ran.status == 0, ran.err
    assert "an op streams 352 MiB of weights to it: it is now 352 MiB" in caplog.text
    assert files.load(edited[1]).edited
    assert not files.load(edited[0]).edited


def test_a_difference_of_plans_of_different_models_is_remarked_on(run):
    run("place", "diamond", "--on", "P100+cpu", "--no-explain", "-o", "a.json")
    run("place", "chain", "--on", "2xP100", "--no-explain", "-o", "b.json")
    said = one_line(run("diff", "a.json", "b.json").out)
    assert "the plans are for different models or sizes" in said
    assert "the plans are for different clusters" in said
    data = run("diff", "a.json", "b.json", "--json").data
    assert (data["other_graph"], data["other_cluster"]) == (True, True)
    assert "different" not in run("diff", "a.json", "a.json").out


def test_what_explaining_finds_better_is_taken(run):
    """The answer lists no plan of the same cluster that is better, and no move of a per mille."""
    options = ("transformer:blocks=4", "--on", "A100+cpu", "--limit", "600MiB")
    data = run("place", *options, "--evaluations", "20", "-o", "plan.json", "--json").data
    assert "plan" not in {each["kind"] for each in data["why"]["helps"]}
    moves = run("explain", "plan.json", "--json").data["moves"]
    assert all(move["change"] < -0.001 for move in moves if move["overflow"] == 0)


def test_ops_are_explained_by_a_pattern(run):
    run("place", "branches:modules=1", "--on", "2xP100", "--no-explain", "-o", "plan.json")
    moves = run("explain", "plan.json", "--op", "modules.0.branch*", "--json").data["moves"]
    assert len(moves) > 1
    assert all(move["op"].startswith("modules.0.branch") for move in moves)
    refused = run("explain", "plan.json", "--op", "nothing.*")
    assert refused.status == 1
    assert "has no op 'nothing.*'" in refused.err
