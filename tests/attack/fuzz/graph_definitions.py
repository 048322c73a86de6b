"""TensorFlow GraphDefs: fields changed deep inside small valid ones."""

from __future__ import annotations

import copy
import logging
from functools import cache
from pathlib import Path
from random import Random

from attack.fuzz import use
from attack.fuzz.batches import attack_of
from attack.fuzz.mutation import mutate_message, mutate_text
from google.protobuf import text_format
from graphdefs import (
    INT32,
    function,
    mlp,
    node,
    placeholder,
    saved_model,
    training,
    while_loop,
)
from tensorboard.compat.proto import graph_pb2

from placewright.errors import PlacewrightError
from placewright.frontends.graphdef.frontend import from_tensorflow

attack = attack_of(__name__)
logging.getLogger("placewright").setLevel(logging.ERROR)


@cache
def graphs():
    """A graph for each part of the reader."""
    calls = graph_pb2.GraphDef()
    placeholder(calls, "x", (8,))
    placeholder(calls, "i", (), INT32)
    node(calls, "PartitionedCall", "a", "x", calls={"f": "f"})
    node(calls, "If", "b", "i", "a", calls={"then_branch": "f", "else_branch": "g"})
    node(calls, "Neg", "c", "b", "^a")
    node(function(calls, "f", ["a"], {"r": "n:y:0"}), "Relu", "n", "a")
    node(function(calls, "g", ["a"], {"r": "n:y:0"}), "PartitionedCall", "n", "a", calls={"f": "f"})
    return mlp(), training(), while_loop("end"), while_loop("n"), calls


def attempt(seed: int) -> str:
    """Read a mutated graph as a binary, a text or a SavedModel, and place it."""
    rng = Random(seed)
    content = copy.deepcopy(rng.choice(graphs()))
    mutate_message(content, rng, rng.choice((0, 1, 1, 2, 3)))
    path = Path("graph.pb")
    match rng.randrange(6):
        case 0:
            path.write_bytes(saved_model(content, {"serving_default": "y:0"}))
        case 1:
            path = Path("graph.pbtxt")
            text = text_format.MessageToString(content)
            text = mutate_text(text, rng) if rng.random() < 0.2 else text
            path.write_bytes(text.encode(errors="surrogatepass"))
        case _:
            path.write_bytes(content.SerializeToString())
    try:
        return use.use_graph(from_tensorflow(path), seed)
    except PlacewrightError as error:
        return use.refused(error)
