"""The networks of the papers and of today: sizes as published, and they run, train and export."""

from __future__ import annotations

import subprocess
import sys
import time

import pytest

from placewright.cluster import Cluster
from placewright.errors import ConfigError, MissingDependency
from placewright.zoo.networks import NETWORKS
from placewright.zoo.networks.experts import ExpertRule

NAMES = [
    *("inception-v3", "resnet-50", "resnet-152", "nasnet-a", "amoebanet-d"),
    *("rnnlm-2", "rnnlm-4", "rnnlm-8", "nmt-2", "nmt-4", "nmt-8"),
    *("transformer-xl-2", "transformer-xl-4", "transformer-xl-8", "wavenet-2x18", "wavenet-4x36"),
    *("bert-base", "bert-large", "gpt2", "gpt2-xl", "t5", "llama-8b", "moe", "unet", "dlrm"),
]

# Of the published models, without what only training adds.
PARAMETERS = {
    "inception-v3": 23_834_568,
    "resnet-50": 25_557_032,
    "resnet-152": 60_192_808,
    "nasnet-a": 88_753_150,
    "bert-base": 109_482_240,
    "bert-large": 335_141_888,
    "gpt2": 124_439_808,
    "gpt2-xl": 1_557_611_200,
    "t5": 60_506_624,
    "llama-8b": 8_030_261_248,
    "moe": 46_702_792_704,
    "unet": 859_520_964,
}
# The smallest network of each kind; the others of a kind only have more of the same.
FAMILIES = {network.module: name for name, network in reversed(NETWORKS.items())}
QUICK = ("rnnlm-2-training", "gpt2-training")
"""Exports that are no slow tests."""


@pytest.fixture
def torch():
    """PyTorch on one thread, with random numbers that are always the same."""
    torch = pytest.importorskip("torch")
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    yield torch
    torch.set_num_threads(threads)


def count(model):
    return sum(weight.numel() for weight in model.parameters())


def on_meta(torch, name, **arguments):
    with torch.device("meta"):
        return NETWORKS[name].build(**arguments)


def macs(torch, name, **arguments):
    """Multiply-adds of one forward pass, as torch counts them."""
    from torch.utils.flop_counter import FlopCounterMode

    model, args, kwargs = on_meta(torch, name, training=False, **arguments)
    with torch.device("meta"), FlopCounterMode(display=False) as counter:
        model(*args, **kwargs)
    return counter.get_total_flops() / 2


def test_the_table_has_the_names_of_the_benchmark():
    assert list(NETWORKS) == NAMES


def test_the_table_needs_no_torch():
    code = "import placewright.zoo.networks, sys; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_without_torch_a_network_says_how_to_install_it(monkeypatch):
    for name in list(sys.modules):
        if name.startswith("placewright.zoo.networks.") or name == "torch":
            monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "torch", None)
    with pytest.raises(MissingDependency, match=r"torch is not installed: pip install"):
        NETWORKS["gpt2"].build("test")


@pytest.mark.parametrize("name", NAMES)
def test_a_test_size_changes_known_arguments_to_values_of_the_same_type(name):
    network = NETWORKS[name]
    for key, value in network.test.items():
        assert type(value) is type(network.full[key])
    assert network.arguments("test") == {**network.full, **network.test}


@pytest.mark.parametrize("name", [name for name in NAMES if NETWORKS[name].cluster])
def test_a_paper_s_cluster_is_known(name):
    assert Cluster.parse(NETWORKS[name].cluster).devices


@pytest.mark.parametrize(("name", "published"), PARAMETERS.items())
def test_a_network_has_as_many_parameters_as_published(torch, name, published):
    assert count(on_meta(torch, name, training=False)[0]) == published


@pytest.mark.parametrize(
    ("name", "published"),
    [
        ("inception-v3", 27_161_264),  # with the auxiliary head
        # masked words: 768 x 768 + 768, a norm of 2 x 768, 30,522; next sentence: 2 x 768 + 2
        ("bert-base", 109_482_240 + 590_592 + 1_536 + 30_522 + 1_538),
    ],
)
def test_a_network_in_training_has_the_heads_it_is_trained_with(torch, name, published):
    assert count(on_meta(torch, name, training=True)[0]) == published


@pytest.mark.parametrize(
    ("cells", "filters", "published"),
    [(18, 208, 82e6), (18, 416, 318e6), (18, 544, 542e6), (36, 544, 1.05e9), (72, 512, 1.8e9)],
)
def test_amoebanets_are_as_large_as_gpipe_says(torch, cells, filters, published):
    model, _, _ = on_meta(torch, "amoebanet-d", cells=cells, filters=filters)
    assert count(model) == pytest.approx(published, rel=0.03)


def test_dlrm_has_a_row_for_each_value_and_three_towers(torch):
    towers = 13 * 512 + 512 + 512 * 256 + 256 + 256 * 128 + 128
    pairs = 27 * 26 // 2 + 128
    towers += pairs * 1024 + 1024 + 1024 * 1024 + 1024 + 1024 * 512 + 512 + 512 * 256 + 256 + 257
    assert count(on_meta(torch, "dlrm")[0]) == 187_767_399 * 128 + towers


@pytest.mark.parametrize(
    ("name", "published"),
    [
        ("resnet-50", 4.09e9),
        ("resnet-152", 11.51e9),
        ("inception-v3", 5.71e9),
        ("nasnet-a", 23.8e9),
    ],
)
def test_a_network_does_as_many_multiply_adds_as_published(torch, name, published):
    assert macs(torch, name, batch=1) == pytest.approx(published, rel=0.002)


def test_a_step_of_decode_multiplies_each_weight_once_and_looks_at_each_key(torch):
    products = 8_030_261_248 - 128_256 * 4096 - 65 * 4096  # without embedding and norms
    scores = 2 * 32 * 32 * 1000 * 128  # scores and values; layers, heads, keys, width of a head
    assert macs(torch, "llama-8b", mode="decode", context=1000) == products + scores


@pytest.mark.parametrize("name", NAMES)
def test_a_full_size_network_is_built_in_seconds_without_memory(torch, name):
    start = time.process_time()
    model, args, kwargs = on_meta(torch, name)
    assert time.process_time() - start < 20  # 1 at most; memory for all weights takes minutes
    tensors = [*model.parameters(), *model.buffers(), *args, *kwargs.values()]
    assert all(tensor.is_meta for tensor in tensors)


@pytest.mark.parametrize("name", ["resnet-50", "t5", "llama-8b", "moe", "dlrm"])
def test_a_full_size_network_is_built_of_fake_tensors(torch, name):
    from torch._subclasses import FakeTensor, FakeTensorMode

    with FakeTensorMode(), torch.device("cpu"):
        model, args, _ = NETWORKS[name].build()
    assert all(isinstance(tensor, FakeTensor) for tensor in [*model.parameters(), *args])
    assert torch.get_default_dtype() is torch.float32


@pytest.mark.parametrize("name", NAMES)
def test_a_network_trains_at_test_size_in_a_moment(torch, name):
    model, args, kwargs = NETWORKS[name].build("test", training=True)
    start = time.process_time()
    loss = model(*args, **kwargs)
    loss.backward()
    assert time.process_time() - start < 5  # 0.2 at most; at full size it takes minutes
    assert loss.shape == ()
    assert torch.isfinite(loss)
    for path, weight in model.named_parameters():
        assert weight.grad is not None, path
        assert torch.isfinite(weight.grad).all(), path


@pytest.mark.parametrize(
    ("name", "shape"),
    [
        *((name, (2, 10)) for name in NAMES[:5]),
        *((name, (2, 3, 11)) for name in NAMES[5:11]),
        *((name, (2, 4, 11)) for name in NAMES[11:14]),
        *((name, (2, 20, 8)) for name in NAMES[14:16]),
        *((name, (2, 6, 37)) for name in ("gpt2", "gpt2-xl")),
        ("t5", (2, 4, 37)),
        *((name, (2, 37)) for name in ("llama-8b", "moe")),
        ("unet", (2, 4, 16, 16)),
        ("dlrm", (4,)),
    ],
)
def test_a_network_predicts_at_test_size(torch, name, shape):
    model, args, kwargs = NETWORKS[name].build("test", training=False)
    made = model(*args, **kwargs)
    assert made.shape == shape
    assert torch.isfinite(made).all()


def test_bert_makes_states_and_a_summary(torch):
    model, args, _ = NETWORKS["bert-base"].build("test", training=False)
    states, summary = model(*args)
    assert states.shape == (2, 6, 16)
    assert summary.shape == (2, 16)


def exports():
    """Each kind in training and not, decoders in both modes."""
    for name in FAMILIES.values():
        modes = ["prefill", "decode"] if "mode" in NETWORKS[name].full else [None]
        for mode in ["training", *modes]:
            arguments = {"training": mode == "training"}
            arguments |= {"mode": mode} if mode in ("prefill", "decode") else {}
            label = f"{name}-{mode or 'inference'}"
            marks = [] if label in QUICK else [pytest.mark.slow]
            yield pytest.param(name, arguments, marks=marks, id=label)


@pytest.mark.parametrize(("name", "arguments"), [*exports()])
def test_a_network_is_exported_strictly(torch, name, arguments):
    model, args, kwargs = NETWORKS[name].build("test", **arguments)
    exported = torch.export.export(model, args, kwargs, strict=True)
    assert any(node.op == "call_function" for node in exported.graph.nodes)


@pytest.mark.parametrize("name", ["llama-8b", "moe"])
def test_a_step_of_decode_goes_on_where_prefill_ended(torch, name):
    roomy = {"capacity": 2.0} if name == "moe" else {}  # 4 experts, 2 chosen: room for all
    prefill, (tokens,), _ = NETWORKS[name].build("test", training=False, **roomy)
    last = prefill(tokens)
    decode, (token,), kwargs = NETWORKS[name].build("test", training=False, mode="decode", **roomy)
    decode.load_state_dict(prefill.state_dict())
    for block in decode.blocks:
        block.attention.keys[:, :, -1] = 0  # what decode must compute itself
        block.attention.values[:, :, -1] = 0
    assert token.shape == (2, 1)
    assert kwargs["position"].tolist() == [5]
    torch.testing.assert_close(decode(tokens[:, -1:], **kwargs), last)


def test_a_cache_is_a_buffer_that_decode_changes_in_one_row(torch):
    model, args, kwargs = NETWORKS["llama-8b"].build("test", training=False, mode="decode")
    model(*args, **kwargs)
    for path, buffer in model.named_buffers():
        if path.endswith((".keys", ".values")):
            assert buffer.shape == (2, 2, 6, 4)  # batch, groups, context, width of a head
            assert buffer[:, :, :5].eq(0).all()
            assert buffer[:, :, 5].ne(0).all()


def mixture(torch, capacity):
    """A small mixture, 6 tokens, and what each expert would make of each of them."""
    from placewright.zoo.networks.moe import MixtureOfExperts

    layer = MixtureOfExperts(width=4, hidden=8, experts=3, top_k=2, capacity=capacity)
    x_ND = torch.randn(6, 4)
    shares_NX = layer.router(x_ND).softmax(-1)
    made_XND = torch.stack([expert(x_ND) for expert in layer.experts])
    return layer, x_ND, shares_NX, made_XND


def test_a_mixture_with_room_adds_what_the_chosen_experts_make(torch):
    layer, x_ND, shares_NX, made_XND = mixture(torch, capacity=6)
    expected = torch.zeros(6, 4)
    for token in range(6):
        share, chosen = shares_NX[token].topk(2)
        for part, expert in zip(share / share.sum(), chosen, strict=True):
            expected[token] += part * made_XND[expert, token]
    torch.testing.assert_close(layer(x_ND[None])[0], expected)


def test_a_mixture_leaves_out_what_has_no_room(torch):
    layer, x_ND, shares_NX, made_XND = mixture(torch, capacity=1)
    expected = torch.zeros(6, 4)
    full = set()
    for token in range(6):
        share, chosen = shares_NX[token].topk(2)
        for part, expert in zip(share / share.sum(), chosen.tolist(), strict=True):
            if expert not in full:  # the first token that asks has it
                expected[token] += part * made_XND[expert, token]
                full.add(expert)
    torch.testing.assert_close(layer(x_ND[None])[0], expected)


def test_a_cell_is_a_step_of_torch_s_lstm(torch):
    from placewright.zoo.networks.layers import LSTMCell

    theirs, ours = torch.nn.LSTMCell(3, 5), LSTMCell(3, 5)
    ours.gates.weight.data = torch.cat((theirs.weight_ih, theirs.weight_hh), 1)
    ours.gates.bias.data = theirs.bias_ih + theirs.bias_hh
    x, state = torch.randn(2, 3), (torch.randn(2, 5), torch.randn(2, 5))
    torch.testing.assert_close(ours(x, state), theirs(x, state))


def test_transformer_xl_scores_a_step_by_its_distance(torch):
    from placewright.zoo.networks.transformer_xl import relative_shift

    steps, memory = 3, 2
    distances = torch.arange(memory + steps - 1, -1, -1)  # farthest first
    shifted = relative_shift(distances.expand(1, 1, steps, memory + steps).contiguous())[0, 0]
    for step in range(steps):
        for source in range(memory + step + 1):
            assert shifted[step, source] == memory + step - source


def test_transformer_xl_remembers_what_its_layers_read_last(torch):
    model, args, _ = NETWORKS["transformer-xl-2"].build("test", training=False)
    first, second = model(*args), model(*args)
    assert not torch.equal(first, second)  # the second segment sees the first
    read = model.embedding(args[0])[:, -3:]
    torch.testing.assert_close(model.layers[0].memory, read)


def test_wavenet_does_not_hear_what_comes_later(torch):
    model, (samples,), _ = NETWORKS["wavenet-2x18"].build("test", training=False)
    changed = samples.clone()
    changed[:, 12] = (changed[:, 12] + 1) % 8
    before, after = model(samples), model(changed)
    torch.testing.assert_close(before[:, :12], after[:, :12])
    assert not torch.allclose(before[:, 12], after[:, 12])


def place(torch, name, devices, **arguments):
    """A full-size network, and where the expert puts each of its modules."""
    model, _, _ = on_meta(torch, name, **arguments)
    paths = [path for path, _ in model.named_modules()]
    return model, NETWORKS[name].expert.place(paths, devices)


@pytest.mark.parametrize("name", NAMES)
def test_the_expert_places_every_weight_on_one_of_the_gpus(torch, name):
    model, placed = place(torch, name, 2)
    for path, _ in model.named_parameters():
        assert path.rpartition(".")[0] in placed, path
    assert set(placed.values()) == ({0} if name.startswith("resnet") else {0, 1})


def test_an_expert_gives_each_layer_of_a_translation_a_gpu(torch):
    _, placed = place(torch, "nmt-4", 4)
    for layer in range(4):
        assert placed[f"encoder.layers.{layer}"] == placed[f"decoder.layers.{layer}.gates"] == layer
    assert placed["encoder.embedding"] == placed["decoder.embedding"] == 0
    assert placed["attention.score"] == placed["head"] == 3


def test_an_expert_leaves_gpus_empty_that_no_layer_needs(torch):
    _, placed = place(torch, "rnnlm-2", 4)
    assert placed["layers.0.gates"] == 0
    assert placed["layers.1.gates"] == placed["head"] == 1


def test_an_expert_knows_how_many_layers_there_are(torch):
    _, placed = place(torch, "rnnlm-2", 3, layers=6)
    assert [placed[f"layers.{layer}"] for layer in range(6)] == [0, 0, 1, 1, 2, 2]


def test_an_expert_cuts_inception_into_contiguous_parts_of_about_as_many_layers(torch):
    model, placed = place(torch, "inception-v3", 4, training=False)
    order = [placed[f"cells.{cell}"] for cell in range(11)]
    assert order == sorted(order)
    layers = [0, 0, 0, 0]
    for path, module in model.named_modules():
        if isinstance(module, torch.nn.Conv2d):
            layers[placed[path]] += 1
    assert sum(layers) == 94
    assert max(layers) - min(layers) <= 10  # a cell is the unit, and has up to 10


def test_an_expert_is_silent_on_modules_it_does_not_name():
    expert = ExpertRule(
        "a block a GPU", module_chains=(("blocks",),), on_first_gpu=("stem",), on_last_gpu=("head",)
    )
    paths = ["", "stem", "stems", "blocks", "blocks.0", "blocks.1.norm", "head.linear"]
    assert expert.place(paths, 2) == {
        "stem": 0,
        "blocks.0": 0,
        "blocks.1.norm": 1,
        "head.linear": 1,
    }


@pytest.mark.parametrize(
    ("name", "arguments", "message"),
    [
        ("gpt2", {"depth": 3}, "gpt2 has no argument 'depth': it has batch, steps, layers"),
        ("gpt2", {"layers": "3"}, "gpt2 has layers '3': expected a whole number"),
        ("gpt2", {"layers": True}, "gpt2 has layers True: expected a whole number"),
        ("gpt2", {"training": 1}, "gpt2 has training 1: expected true or false"),
        ("gpt2", {"dtype": 16}, "gpt2 has dtype 16: expected a word"),
        ("gpt2", {"dtype": "float61"}, "gpt2 has dtype 'float61': did you mean 'float16'?"),
        ("gpt2", {"size": "tiny"}, "gpt2 has size 'tiny': known: full, test"),
        ("gpt2", {"batch": 0}, "gpt2 has batch 0: expected 1 to 100,000,000"),
        ("gpt2", {"layers": 10**6}, "gpt2 has layers 1000000: expected 1 to 1,000"),
        ("moe", {"capacity": 1}, "moe has capacity 1: expected a number"),
        ("moe", {"capacity": -1.0}, "moe has capacity -1.0: expected more than 0"),
        ("moe", {"capacity": float("nan")}, "moe has capacity nan: expected more than 0"),
        ("moe", {"mode": "encode"}, "moe has mode 'encode': did you mean 'decode'?"),
    ],
)
def test_an_argument_that_cannot_be_is_refused(name, arguments, message):
    with pytest.raises(ConfigError) as error:
        NETWORKS[name].arguments(**arguments)
    assert str(error.value).startswith(message)


@pytest.mark.parametrize(
    ("name", "arguments", "message"),
    [
        ("resnet-50", {"layers": 51}, "resnet has layers 51: expected one of 14, 50, 101, 152"),
        ("inception-v3", {"image": 224}, "inception-v3 has image 224: expected 299 pixels or more"),
        ("inception-v3", {"batch": 1}, "inception-v3 has batch 1: its norms train on 2 images"),
        ("inception-v3", {"channels": 31}, "inception-v3 has channels 31: expected an even number"),
        ("nasnet-a", {"channels": 6}, "nasnet-a has channels 6: expected a multiple of 4"),
        ("amoebanet-d", {"cells": 4}, "amoebanet-d has cells 4: expected a multiple of 3"),
        ("amoebanet-d", {"filters": 9}, "amoebanet-d has filters 9: expected a multiple of 8"),
        ("rnnlm-2", {"steps": 5001}, "rnnlm has 2 layers and steps 5001: expected 10,000 cells"),
        ("nmt-8", {"steps": 2000}, "nmt has 8 layers and steps 2000: expected 10,000 cells"),
        ("transformer-xl-2", {"width": 24}, "transformer-xl has width 24: expected a multiple of"),
        ("wavenet-2x18", {"layers": 17}, "wavenet has layers 17: expected a multiple of 2 stacks"),
        ("wavenet-2x18", {"layers": 60}, "wavenet has layers 60: expected 20 or less in a stack"),
        ("bert-base", {"steps": 513}, "bert has steps 513: expected 512 or less"),
        ("bert-base", {"width": 770}, "bert has width 770: expected a multiple of its 12 heads"),
        ("gpt2", {"steps": 1025}, "gpt2 has steps 1025: expected 1024 or less"),
        ("gpt2", {"width": 770}, "gpt2 has width 770: expected a multiple of its 12 heads"),
        ("llama-8b", {"width": 96}, "llama has width 96: expected a multiple of twice its 32"),
        ("llama-8b", {"groups": 5}, "llama has heads 32: expected a multiple of 5 groups"),
        ("moe", {"chosen": 9}, "moe has chosen 9: expected no more than its 8 experts"),
        ("unet", {"image": 60}, "unet has image 60: expected a multiple of 8"),
        ("unet", {"channels": 48}, "unet has channels 48: expected a multiple of 32"),
    ],
)
def test_arguments_that_do_not_go_together_are_refused(torch, name, arguments, message):
    with pytest.raises(ConfigError) as error:
        on_meta(torch, name, **arguments)
    assert str(error.value).startswith(message)
