"""llama.cpp and vLLM: flags for layers of decoders, held against how these place layers."""

from __future__ import annotations

import itertools
import re

import numpy as np
import pytest

import placewright as pw
from placewright.errors import PlanError


def exported(case, target, rule, **more):
    return pw.export(case.problem, case.plan(rule, **more), target)


def as_placed(flags, layers):
    """Where llama.cpp puts each layer, from its flags: `load_tensors` as of 2026, in Python."""
    pairs = list(itertools.pairwise(flags))
    value = dict(pairs)
    ngl = int(value["-ngl"])
    devices = value["-dev"].split(",") if "-dev" in value else []
    shares = [float(part) for part in value.get("-ts", "1").split(",")]
    split = [sum(shares[: at + 1]) / sum(shares) for at in range(len(shares))]
    start = max(layers + 1 - ngl, 0)
    active = min(ngl, layers + 1) if devices else 0
    places = []
    for layer in range(layers + 1):
        if layer < start or layer - start >= active:
            places.append("CPU")
        else:
            places.append(devices[sum(part <= (layer - start) / active for part in split)])
    overrides = [word.rsplit("=", 1) for flag, word in pairs if flag == "-ot"]

    def tensor(name, layer):
        return next((place for pattern, place in overrides if re.search(pattern, name)), layer)

    names = [tensor(f"blk.{at}.ffn_up.weight", places[at]) for at in range(layers)]
    return names, tensor("output.weight", places[-1])


@pytest.mark.parametrize("seed", range(30))
def test_llama_cpp_puts_layers_where_the_flags_were_to_put_them(six, block_of, seed):
    rng = np.random.default_rng(seed)
    places = [*rng.choice(["gpu0", "gpu1", "cpu"], 6), "cpu"]
    if seed % 2:
        places[:6] = sorted(places[:6])
    made = exported(six, "llama.cpp", lambda op: places[block_of(op)])
    words = {"gpu0": "CUDA0", "gpu1": "CUDA1", "cpu": "CPU"}
    assert as_placed(made.data, 6)[0] == [words[place] for place in places[:6]]
    assert made.cost.moved_time == 0


def test_llama_cpp_flags_of_a_plan_by_layers(six, block_of):
    made = exported(six, "llama.cpp", lambda op: "gpu1" if block_of(op) < 4 else "gpu0")
    assert made.text == "-ngl 7 -dev CUDA1,CUDA0 -ts 4,3\n"
    assert made.notes == ()
    places = ["cpu", "cpu", "gpu0", "gpu1", "gpu0", "gpu1", "cpu"]
    made = exported(six, "llama.cpp", lambda op: places[block_of(op)])
    assert made.data == [
        "-ngl",
        "5",
        "-dev",
        "CUDA0,CUDA1",
        "-ts",
        "1,4",
        "-ot",
        r"blk\.(4)\.=CUDA0",
    ]
    assert made.notes[0].startswith("cache: -ot moves the weights of layers 4 and not their KV")
    assert exported(six, "llama.cpp", lambda op: "cpu").text == "-ngl 0\n"


def test_llama_cpp_moves_single_tensors(six, block_of):
    def rule(op):
        return "cpu" if re.search(r"blocks\.[12]\.attention\.(qkv|projection)", op.name) else "gpu0"

    made = exported(six, "llama.cpp", rule)
    assert made.data == [
        "-ngl",
        "7",
        "-dev",
        "CUDA0",
        "-ot",
        r"blk\.(1|2)\.(attn_output|attn_qkv)\.=CPU",
    ]
    assert made.cost.moved_time == 0
    assert made.notes == ()


def test_llama_cpp_computes_at_home_what_the_plan_streams(six, block_of):
    def rule(op):
        return "cpu" if op.kind == "weight" and op.name == "blocks.1.mlp.up.weight" else "gpu0"

    made = exported(six, "llama.cpp", rule, staging={"gpu0": 1 << 30})
    assert made.data[-1] == r"blk\.(1)\.(ffn_up)\.=CPU"
    assert six.device(made.plan, "blocks.1.mlp.up") == "cpu"
    assert made.notes[-1].startswith("streaming: llama.cpp computes on the host")
    assert made.cost.moved_time > 0


def test_llama_cpp_takes_all_experts_of_a_layer_as_one_tensor(make_case):
    ops = [pw.Op("tokens", "input", outputs=(8,)), pw.Op("embed", "embedding", ((0, 0),), (64,))]
    for layer in range(3):
        path = f"model.layers.{layer}"
        x = (len(ops) - 1, 0)
        ops.append(pw.Op(f"{path}.self_attn.q_proj.weight", "weight", outputs=(512,), module=path))
        ops.append(pw.Op(f"{path}.q", "matmul", (x, (len(ops) - 1, 0)), (64,), 1e9, module=path))
        for expert in range(2):
            name = f"{path}.mlp.experts.{expert}.up_proj.weight"
            ops.append(pw.Op(name, "weight", outputs=(512,), module=path))
            read = ((len(ops) - 2, 0), (len(ops) - 1, 0))
            ops.append(pw.Op(f"{path}.e{expert}", "matmul", read, (64,), 1e6, module=path))
    case = make_case(pw.Graph("experts", tuple(ops)))
    made = exported(
        case, "llama.cpp", lambda op: "cpu" if re.search(r"\.e\d|experts", op.name) else "gpu0"
    )
    assert made.data == ["-ngl", "4", "-dev", "CUDA0", "-ot", r"blk\.(0|1|2)\.(ffn_up_exps)\.=CPU"]
    assert made.notes == ("embedding: llama.cpp keeps the token embedding on the host",)


def test_llama_cpp_takes_a_layer_to_be_where_its_cache_is(make_case):
    ops = []
    for layer in range(2):
        path = f"layers.{layer}"
        ops.append(pw.Op(f"{path}.cache", "state", outputs=(64,), module=path))
        ops.append(pw.Op(f"{path}.attend", inputs=((len(ops) - 1, 0),), module=path, flops=1))
        ops.append(pw.Op(f"{path}.mlp.up.weight", "weight", outputs=(64,), module=path))
        read = ((len(ops) - 2, 0), (len(ops) - 1, 0))
        ops.append(pw.Op(f"{path}.mlp", "matmul", read, module=path, flops=1e9))
    case = make_case(pw.Graph("cached", tuple(ops)))
    made = exported(case, "llama.cpp", lambda op: "cpu" if "mlp" in op.name else "gpu0")
    assert made.data == ["-ngl", "3", "-dev", "CUDA0", "-ot", r"blk\.(0|1)\.(ffn_up)\.=CPU"]
    assert made.cost.moved_time == 0


def test_vllm_gets_the_layers_of_each_stage(six, block_of):
    made = exported(six, "vllm", lambda op: "gpu1" if block_of(op) < 4 else "gpu0")
    assert made.data == {
        "VLLM_PP_LAYER_PARTITION": "4,2",
        "CUDA_VISIBLE_DEVICES": "1,0",
        "pipeline_parallel_size": 2,
    }
    assert made.text == "export CUDA_VISIBLE_DEVICES=1,0\nexport VLLM_PP_LAYER_PARTITION=4,2\n"
    assert (made.cost.moved_time, made.notes) == (0, ())


def test_vllm_has_no_stage_on_the_host(six, block_of):
    made = exported(six, "vllm", lambda op: "cpu" if block_of(op) == 0 else "gpu0")
    assert made.data["VLLM_PP_LAYER_PARTITION"] == "6"
    assert "12 of 72 ops are on another device than planned" in made.notes[0]
    with pytest.raises(PlanError, match="the plan computes on the host only"):
        exported(six, "vllm", lambda op: "cpu")


@pytest.mark.parametrize("target", ["vllm", "llama.cpp"])
def test_what_is_no_decoder_is_refused(make_case, target):
    weight = pw.Op("body.weight", "weight", outputs=(64,), module="body")
    plain = make_case(pw.Graph("plain", (weight, pw.Op("end", inputs=((0, 0),)))))
    with pytest.raises(PlanError, match=r"has no numbered layers: .* takes decoder models"):
        exported(plain, target, lambda op: "gpu0")
    ops = [
        pw.Op(f"{part}.block.{at}.weight", "weight", outputs=(64,), module=f"{part}.block.{at}")
        for part in ("encoder", "decoder")
        for at in range(2)
    ]
    both = make_case(pw.Graph("both", (*ops, pw.Op("end", inputs=((0, 0),)))))
    with pytest.raises(PlanError, match=r"has layers in 'decoder.block' and in 'encoder.block'"):
        exported(both, target, lambda op: "gpu0")
