"""The profile of steps: clocks around calls, graphs and ops of the host, and taken off again."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

from fake_cuda import fake_gpus  # noqa: E402
from models import machine  # noqa: E402

import placewright as pw  # noqa: E402
from benchmarks.generate import step_profile  # noqa: E402

SIZES = {
    "vocab_size": 64,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 1,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "bos_token_id": 1,
    "eos_token_id": None,
    "pad_token_id": 0,
}


def slow_host():
    """A GPU whose host computes slowly, so that weights are streamed from it."""
    cluster = machine(1)
    host, gpu = cluster.devices
    host = replace(host, rates={"float32": 1e9}, memory_bandwidth=1.5e9)
    gpu = replace(gpu, rates={"float32": 1e12}, memory_bandwidth=1e12)
    return replace(cluster, devices=(host, gpu))


def test_a_profile_says_what_the_graphs_and_the_host_did(capsys, tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    torch.manual_seed(0)
    model = transformers.LlamaForCausalLM(transformers.LlamaConfig(**SIZES)).eval()
    size = sum(weight.nbytes for weight in model.parameters())
    prompt = torch.randint(2, 60, (1, 12))
    own = step_profile.run_generate(model, prompt, 4)
    with fake_gpus():
        mix = pw.Generate(prompt=12, new_tokens=8)
        options = {"store": "none", "budget": 1.0, "notify": lambda line: None}
        model = pw.place(model, {"gpu0": size // 2}, mix, cluster=slow_host(), **options)
        generate = partial(step_profile.run_generate, model, prompt)
        generate(4)
        forward = model.forward
        with step_profile.clocks(model) as clock:
            assert torch.equal(generate(4), own)
        assert model.forward is forward
        assert torch.equal(generate(4), own)
        assert len(clock.calls) == 4
        counts = sorted(len(seconds) for seconds in clock.graphs.values())
        assert counts == [1, 3]  # of the prompt, and of each token after the first
        for graph, seconds in clock.graphs.items():
            on_host = sum(map(sum, clock.ops[graph].values()))
            assert clock.ops[graph]
            assert 0 < on_host < sum(seconds)
        clock.report(1.0)
        step_profile.report_graphs(model)
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("a generation: 1000.0 ms without clocks; with them calls")
    assert any("op of the host" in line for line in lines)
    assert len([line for line in lines if line.startswith("| 0 |")]) == 2


def test_weights_are_counted_through_views():
    graph = pw.zoo.load("chain:ops=3,weights=yes")
    reading = [step_profile.read_bytes(graph, at) for at in range(len(graph))]
    weights = sum(sum(op.outputs) for op in graph.ops if op.kind == "weight")
    assert sum(reading) == weights
