"""Models of libraries on the command line: `hf:PATH` and `timm:NAME`, and their calls."""

from __future__ import annotations

import json
import sys
from types import ModuleType

import pytest

torch = pytest.importorskip("torch")


@pytest.fixture
def folder(tmp_path):
    """A folder of transformers with a tiny configuration and no weights."""
    transformers = pytest.importorskip("transformers")
    config = transformers.LlamaConfig(
        vocab_size=64, hidden_size=32, intermediate_size=48, num_hidden_layers=1,
        num_attention_heads=4, num_key_value_heads=2,
    )  # fmt: skip
    config.architectures = ["LlamaForCausalLM"]
    config.save_pretrained(tmp_path / "llama")
    return tmp_path / "llama"


def test_a_folder_of_transformers_is_planned_for_prompt_and_tokens(run, folder, tmp_path):
    calls = (f"hf:{folder}", "--on", "A100+cpu", "--workload", "generate:prompt=8+16,new=4")
    effort = ("--evaluations", "40")
    plan = tmp_path / "plan.json"
    answer = run("place", *calls, *effort, "-o", str(plan), "--json").data
    names = [call["name"] for call in answer["calls"]]
    assert names == ["prefill-8", "decode-8", "prefill-16", "decode-16"]
    assert [call["count"] for call in answer["calls"]] == [0.5, 1.5, 0.5, 1.5]
    again = run("simulate", *calls, "--plan", str(plan), "--json").data
    assert again["objective_value"] == answer["objective_value"]


def test_a_folder_without_a_configuration_is_an_error(run, tmp_path):
    error = run("place", f"hf:{tmp_path}", "--on", "A100+cpu").err
    assert "there is no config.json: expected a local folder of transformers" in error


@pytest.mark.parametrize("name", ["Evil", "AutoConfig", "os"])
def test_code_of_a_folder_is_not_run(run, folder, name):
    data = json.loads((folder / "config.json").read_text())
    data |= {"architectures": [name], "auto_map": {"AutoModelForCausalLM": "evil.Evil"}}
    (folder / "config.json").write_text(json.dumps(data))
    (folder / "evil.py").write_text("raise SystemExit('run')")
    error = run("place", f"hf:{folder}", "--on", "A100+cpu").err
    assert f"names the architecture {name}: expected a model class" in error


def test_a_configuration_that_cannot_be_read_is_an_error(run, folder):
    (folder / "config.json").write_text("{")
    error = run("place", f"hf:{folder}", "--on", "A100+cpu").err
    assert "transformers cannot build it" in error


@pytest.mark.parametrize(
    ("workload", "message"),
    [
        ("training", "workload 'training' is unknown: expected generate:prompt=512,new=128"),
        ("generate:prompts=3", "'prompts' is unknown: prompt, new, batch"),
        ("generate:prompt=x", "prompt is 'x': expected"),
        ("generate:new=1+2", "new is '1+2': expected"),
        ("generate:prompt=0", "a prompt of 0 tokens"),
        ("call:batch=0", "batch is 0: expected 1 or more"),
    ],
)
def test_calls_that_cannot_be_read_are_an_error(run, folder, workload, message):
    arguments = (f"hf:{folder}", "--on", "A100+cpu", "--workload", workload)
    assert message in run("place", *arguments).err


def test_options_that_calls_do_not_take_are_an_error(run, folder):
    arguments = (f"hf:{folder}", "--on", "A100+cpu", "--pin", "*=cpu")
    assert "--pin with calls of a model: expected --on" in run("place", *arguments).err


class Net(torch.nn.Module):
    default_cfg = {"input_size": (3, 8, 8)}  # noqa: RUF012

    def __init__(self):
        super().__init__()
        self.conv = torch.nn.Conv2d(3, 4, 3)

    def forward(self, x):
        return self.conv(x)


def test_a_model_of_timm_is_planned_for_its_own_size(run, monkeypatch):
    timm = ModuleType("timm")
    timm.create_model = lambda name, pretrained: {("net", False): Net}[name, pretrained]()
    monkeypatch.setitem(sys.modules, "timm", timm)
    arguments = ("--on", "A100+cpu", "--evaluations", "10", "--json")
    answer = run("place", "timm:net", "--workload", "call:batch=2", *arguments).data
    assert [call["name"] for call in answer["calls"]] == ["call"]
    assert "timm cannot build it" in run("place", "timm:other", *arguments).err


def test_a_library_that_cannot_be_imported_is_an_error_that_says_why(run, monkeypatch, tmp_path):
    (tmp_path / "timm.py").write_text("raise RuntimeError('operator nms does not exist')")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "timm", raising=False)
    error = run("place", "timm:resnet50", "--on", "A100+cpu").err
    assert "timm is installed but cannot be imported: operator nms does not exist" in error


def test_a_library_that_is_missing_is_named(run, monkeypatch):
    monkeypatch.setitem(sys.modules, "timm", None)
    assert "timm" in run("place", "timm:resnet50", "--on", "A100+cpu").err
