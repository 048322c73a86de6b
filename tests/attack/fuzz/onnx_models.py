"""ONNX models: fields changed deep inside small valid ones."""

from __future__ import annotations

import copy
import logging
from functools import cache
from pathlib import Path
from random import Random

import numpy as np
from attack.fuzz import use
from attack.fuzz.batches import attack_of
from attack.fuzz.mutation import mutate_message
from onnx import helper
from onnxmodels import INT64, conditional, constant, info, loop, mlp, model, node, zeros

from placewright.errors import PlacewrightError
from placewright.frontends.onnx_graph.frontend import from_onnx

attack = attack_of(__name__)
logging.getLogger("placewright").setLevel(logging.ERROR)


@cache
def models():
    """A model for each part of the reader."""
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("ours", 1)]
    call = helper.make_function("ours", "f", ["a"], ["b"], [node("Relu", ["a"], ["b"])], opsets)
    return (
        mlp(),
        conditional("c"),
        conditional("known"),
        loop(node("MatMul", ["before", "before"], ["after"])),
        loop(node("Concat", ["before", "before"], ["after"], axis=0), trips="n"),
        model(
            [node("f", ["x"], ["h"], domain="ours"), node("f", ["h"], ["y"], domain="ours")],
            [info("x", [4])],
            [info("y", [4])],
            functions=[call],
            opsets=opsets[1:],
        ),
        model(
            [
                node("Conv", ["x", "k"], ["c"], kernel_shape=[3, 3], pads=[1, 1, 1, 1]),
                node("MaxPool", ["c"], ["p"], kernel_shape=[2, 2], strides=[2, 2]),
                node("Shape", ["p"], ["s"]),
                node("Gather", ["s", "zero"], ["n"]),
                node("Concat", ["n", "rest"], ["t"], axis=0),
                node("Reshape", ["p", "t"], ["r"]),
                node("Einsum", ["r", "r"], ["y"], equation="ij,kj->ik"),
            ],
            [info("x", [2, 3, 8, 8])],
            [info("y", None)],
            [
                zeros("k", 4, 3, 3, 3),
                constant("zero", [0], np.int64),
                constant("rest", [-1], np.int64),
            ],
        ),
        model(
            [
                node("Gather", ["e", "i"], ["v"]),
                node("LayerNormalization", ["v", "g", "b"], ["m"]),
                node("Split", ["m"], ["q", "k"], axis=-1),
                node("Transpose", ["k"], ["kt"], perm=[0, 2, 1]),
                node("MatMul", ["q", "kt"], ["a"]),
                node("Softmax", ["a"], ["y"], axis=-1),
            ],
            [info("i", ["batch", 5], INT64)],
            [info("y", None)],
            [zeros("e", 10, 8), zeros("g", 8), zeros("b", 8)],
        ),
    )


def attempt(seed: int) -> str:
    """Read a mutated model, and place it."""
    rng = Random(seed)
    content = copy.deepcopy(rng.choice(models()))
    mutate_message(content, rng, rng.choice((0, 1, 1, 2, 3)))
    path = Path("model.onnx")
    path.write_bytes(content.SerializeToString())
    try:
        return use.use_graph(from_onnx(path, dims={"batch": 2} if rng.random() < 0.2 else {}), seed)
    except PlacewrightError as error:
        return use.refused(error)
