"""Networks of the papers and of today, as PyTorch models with example arguments.

This table needs no torch; `Network.build` does. Weights are random. Under `torch.device("meta")` or
a `FakeTensorMode` nothing is allocated, whatever the size. In training a network returns its loss,
otherwise its predictions.

Batch and width of RNNLM, NMT and Inception-V3 are those of ColocRL; Transformer-XL has those of its
own paper for enwik8; other figures that the papers leave open (steps, vocabularies, WaveNet's
channels) are chosen here.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from placewright.zoo.networks import experts
from placewright.zoo.networks.network import Network

if TYPE_CHECKING:
    from collections.abc import Mapping

    from placewright.zoo.networks.network import ArgumentValue

__all__ = ["NETWORKS", "Network"]

RECURRENT_TEST: Mapping[str, ArgumentValue] = {"batch": 2, "steps": 3, "width": 8, "vocabulary": 11}
TEXT_TEST: Mapping[str, ArgumentValue] = {
    "batch": 2, "steps": 6, "layers": 2, "width": 16, "heads": 2, "vocabulary": 37,
}  # fmt: skip
DECODER_TEST: Mapping[str, ArgumentValue] = {
    "batch": 2, "context": 6, "layers": 2, "width": 16, "heads": 4, "groups": 2, "hidden": 24,
    "vocabulary": 37, "dtype": "float32",
}  # fmt: skip


# fmt: off
def _resnet(layers: int, cluster: str | None) -> Network:
    return Network(
        f"resnet-{layers}", f"residual network of {layers} layers", "resnet",
        {"batch": 32, "image": 224, "layers": layers, "channels": 64, "classes": 1000,
         "training": True},
        {"batch": 2, "image": 64, "layers": 14, "channels": 8, "classes": 10},
        experts.ONE_GPU, cluster,
    )


def _rnnlm(layers: int) -> Network:
    return Network(
        f"rnnlm-{layers}", f"language model of {layers} LSTM layers, unrolled", "rnnlm",
        {"batch": 64, "steps": 40, "layers": layers, "width": 2048, "vocabulary": 10_000,
         "training": True},
        RECURRENT_TEST, experts.LAYER_PER_GPU, f"{layers}xP100+cpu", tokens="steps",
    )


def _nmt(layers: int) -> Network:
    return Network(
        f"nmt-{layers}", f"translation with attention, 2 x {layers} LSTM layers, unrolled", "nmt",
        {"batch": 64, "steps": 40, "layers": layers, "width": 1024, "vocabulary": 32_000,
         "training": True},
        RECURRENT_TEST, experts.TRANSLATION, f"{layers}xP100+cpu",
    )


def _transformer_xl(layers: int) -> Network:
    return Network(
        f"transformer-xl-{layers}", f"Transformer-XL of {layers} layers", "transformer_xl",
        {"batch": 32, "steps": 512, "memory": 512, "layers": layers, "width": 512, "heads": 8,
         "hidden": 2048, "vocabulary": 204, "training": True},
        {"batch": 2, "steps": 4, "memory": 3, "width": 8, "heads": 2, "hidden": 16,
         "vocabulary": 11},
        experts.LAYER_PER_GPU, f"{layers}xP100+cpu", tokens="steps",
    )


def _wavenet(stacks: int, layers: int) -> Network:
    return Network(
        f"wavenet-{stacks}x{layers}", f"WaveNet of {layers} layers in {stacks} stacks", "wavenet",
        {"batch": 4, "steps": 8000, "stacks": stacks, "layers": layers, "width": 256,
         "levels": 256, "training": True},
        {"batch": 2, "steps": 20, "layers": 4, "width": 4, "levels": 8},
        experts.STACK_PER_GPU, f"{stacks}xP100+cpu",
    )


def _bert(name: str, layers: int, width: int, heads: int) -> Network:
    return Network(
        name, f"BERT of {layers} blocks", "bert",
        {"batch": 8, "steps": 512, "layers": layers, "width": width, "heads": heads,
         "vocabulary": 30_522, "training": True, "dtype": "float32"},
        TEXT_TEST, experts.BLOCKS, tokens="steps",
    )


def _gpt2(name: str, layers: int, width: int, heads: int) -> Network:
    return Network(
        name, f"GPT-2 of {layers} blocks", "gpt2",
        {"batch": 8, "steps": 1024, "layers": layers, "width": width, "heads": heads,
         "vocabulary": 50_257, "training": True, "dtype": "float32"},
        TEXT_TEST, experts.BLOCKS, tokens="steps",
    )


_NETWORKS = (
    Network(
        "inception-v3", "Inception-V3", "inception",
        {"batch": 32, "image": 299, "channels": 32, "classes": 1000, "training": True},
        {"batch": 2, "channels": 2, "classes": 10},
        experts.CELLS, "4xK80+cpu",
    ),
    _resnet(50, None),
    _resnet(152, "2xK40+cpu"),
    Network(
        "nasnet-a", "NASNet-A large, 6 @ 4032", "nasnet",
        {"batch": 32, "image": 331, "cells": 6, "channels": 168, "stem": 96, "classes": 1000,
         "training": True},
        {"batch": 2, "image": 67, "cells": 1, "channels": 8, "stem": 4, "classes": 10},
        experts.CELLS, "4xK80+cpu",
    ),
    Network(
        "amoebanet-d", "AmoebaNet-D (18, 208)", "amoebanet",
        {"batch": 32, "image": 224, "cells": 18, "filters": 208, "classes": 1000,
         "training": True},
        {"batch": 2, "image": 64, "cells": 3, "filters": 16, "classes": 10},
        experts.CELLS, "4xP100+cpu",
    ),
    *(_rnnlm(layers) for layers in (2, 4, 8)),
    *(_nmt(layers) for layers in (2, 4, 8)),
    *(_transformer_xl(layers) for layers in (2, 4, 8)),
    _wavenet(2, 18),
    _wavenet(4, 36),
    _bert("bert-base", 12, 768, 12),
    _bert("bert-large", 24, 1024, 16),
    _gpt2("gpt2", 12, 768, 12),
    _gpt2("gpt2-xl", 48, 1600, 25),
    Network(
        "t5", "T5-small", "t5",
        {"batch": 32, "source": 512, "target": 114, "layers": 6, "width": 512, "heads": 8,
         "head": 64, "hidden": 2048, "vocabulary": 32_128, "training": True, "dtype": "float32"},
        {"batch": 2, "source": 6, "target": 4, "layers": 2, "width": 16, "heads": 2, "head": 4,
         "hidden": 32, "vocabulary": 37},
        experts.TEXT_TO_TEXT,
    ),
    Network(
        "llama-8b", "a decoder like Llama 3 8B, prefill or one step of decode", "llama",
        {"batch": 1, "context": 2048, "mode": "prefill", "layers": 32, "width": 4096,
         "heads": 32, "groups": 8, "hidden": 14_336, "vocabulary": 128_256, "training": False,
         "dtype": "bfloat16"},
        DECODER_TEST, experts.BLOCKS, tokens="context",
    ),
    Network(
        "moe", "a mixture of experts like Mixtral 8x7B, prefill or one step of decode", "moe",
        {"batch": 1, "context": 2048, "mode": "prefill", "layers": 32, "width": 4096,
         "heads": 32, "groups": 8, "hidden": 14_336, "experts": 8, "chosen": 2, "capacity": 1.25,
         "vocabulary": 32_000, "training": False, "dtype": "bfloat16"},
        {**DECODER_TEST, "experts": 4}, experts.BLOCKS, tokens="context",
    ),
    Network(
        "unet", "the U-Net of Stable Diffusion 1.5", "unet",
        {"batch": 2, "image": 64, "latent": 4, "channels": 320, "heads": 8, "steps": 77,
         "text": 768, "training": False, "dtype": "float16"},
        {"batch": 2, "image": 16, "channels": 32, "heads": 2, "steps": 3, "text": 8,
         "dtype": "float32"},
        experts.U_SHAPE,
    ),
    Network(
        "dlrm", "a recommender with the tables of MLPerf's DLRM", "dlrm",
        {"batch": 2048, "rows": 40_000_000, "width": 128, "hidden": 1024, "training": False,
         "dtype": "float32"},
        {"batch": 4, "rows": 50, "width": 8, "hidden": 16},
        experts.TABLES,
    ),
)
# fmt: on

NETWORKS: Mapping[str, Network] = {each.name: each for each in _NETWORKS}
"""Every network by its name."""
