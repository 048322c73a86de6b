"""Families of similar training graphs, for learning across graphs.

Placeto (Addanki et al. 2019) was trained on three such families, whose graphs were never published
whole: `cifar10` and `ptb`, architectures from the search spaces of ENAS (Pham et al. 2018), and
`nmt`, one model with varied unroll length and batch. These are new samples of the same spaces, so
they are not the paper's graphs. A family has as many graphs as one draws.

The parts are fixed: 24 graphs for training, 8 for validation, 8 for testing. No test graph has the
wiring of another graph of its family, sizes left out (`transforms.wiring`): the test graphs of
`nmt` have other unroll lengths, while its validation graphs differ from training graphs in their
batch alone.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

import numpy as np

from placewright.errors import ConfigError, nearest
from placewright.graph import INPUT
from placewright.zoo.arguments import title
from placewright.zoo.builder import NetworkBuilder

if TYPE_CHECKING:
    from placewright.graph import Graph, Tensor

VALIDATION_GRAPHS = (0, 6, 9, 13, 19, 21, 27, 31)
"""The graphs of every family for choosing settings."""
TRAINING_GRAPHS = tuple(at for at in range(32) if at not in VALIDATION_GRAPHS)
"""The graphs of every family that policies are trained on."""
TEST_GRAPHS = (33, 34, 36, 39, 40, 43, 44, 47)
"""The test graphs of every family; of `nmt` these are eight unroll lengths, with either batch."""

_MAX_DRAWS = 2**31  # graphs of a family that are drawn at random
_MAX_UNROLLED = 1000  # graphs of `nmt`: at most 507 unrolled steps

FamilyPart = Literal["train", "validation", "test", "all"]
_PARTS = {
    "train": TRAINING_GRAPHS,
    "validation": VALIDATION_GRAPHS,
    "test": TEST_GRAPHS,
    "all": tuple(sorted((*TRAINING_GRAPHS, *VALIDATION_GRAPHS, *TEST_GRAPHS))),
}


def family(name: str, part: FamilyPart = "all") -> list[Graph]:
    """The graphs of a family that have a part, or of its training, validation or test part.

    Raises:
        ConfigError: There is no such family or part.
    """
    builders = {"cifar10": cifar10, "ptb": ptb, "nmt": nmt}
    if name not in builders:
        raise ConfigError(f"no family is named {name!r}: {nearest(name, builders)}")
    if part not in _PARTS:
        raise ConfigError(f"part is {part!r}: expected train, validation, test or all")
    return [builders[name](graph=at) for at in _PARTS[part]]


def cifar10(graph: int = 0, batch: int = 128) -> Graph:
    """A convolutional network of ENAS's micro search space, one training step.

    A cell has five nodes; each adds two ops (convolutions of two sizes, two kinds of pooling,
    identity) on two earlier outputs; unread outputs are concatenated. Every other stack of cells
    begins with half the side and twice the channels.
    """
    rng = _rng("cifar10", graph)
    builder, side, channels = NetworkBuilder("float32"), 32, 36
    x = builder.add("image", INPUT, [], batch * side * side * 3)
    x = builder.convolution("stem", x, batch, side, 3, channels, 3)
    nodes = [_enas_node(rng, at) for at in range(5)]
    previous = x
    for cell in range(6):
        if cell in (2, 4):
            pixels = batch * side * side // 4
            side, channels = side // 2, 2 * channels
            x, previous = (
                builder.add(
                    f"cells.{cell}.reduce{at}",
                    "convolution",
                    [source],
                    pixels * channels,
                    2 * pixels * channels * channels // 2,
                    channels * channels // 2,
                )
                for at, source in enumerate((x, previous))
            )
        x, previous = (
            _add_cell(builder, f"cells.{cell}", nodes, (previous, x), batch, side, channels),
            x,
        )
    return _with_classifier(
        builder, x, batch, side, channels, title("cifar10", graph=graph, batch=batch)
    )


def ptb(graph: int = 0, batch: int = 64, steps: int = 20) -> Graph:
    """A recurrent network with a cell sampled from ENAS's space, unrolled, one training step.

    A cell has eight nodes; each applies a product and an activation to one earlier node.
    """
    rng = _rng("ptb", graph)
    width, vocabulary = 1000, 10_000
    builder = NetworkBuilder("float32")
    earlier = [int(rng.integers(0, at)) for at in range(1, 8)]
    kinds = [str(rng.choice(["tanh", "relu", "sigmoid", "identity"])) for _ in range(8)]
    state = builder.add("state", INPUT, [], batch * width)
    outputs: list[Tensor] = []
    weights: dict[str, Tensor] = {}
    for step in range(steps):
        token = builder.add(f"words.{step}", INPUT, [], batch * width)
        path = f"steps.{step}"
        reads = [token, state]
        nodes = [
            _add_recurrent(
                builder, weights, "node0", f"{path}.node0", reads, kinds[0], batch, width
            )
        ]
        for at, source in enumerate(earlier, start=1):
            node_reads = [nodes[source]]
            node = f"node{at}"
            nodes.append(
                _add_recurrent(
                    builder, weights, node, f"{path}.{node}", node_reads, kinds[at], batch, width
                )
            )
        unread = [nodes[at] for at in range(8) if at not in earlier]
        state = builder.add(f"{path}.mean", "elementwise", unread, batch * width, 8 * batch * width)
        outputs.append(state)
    stacked = builder.add("join", "concat", outputs, steps * batch * width)
    logits = builder.linear("softmax", stacked, steps * batch, width, vocabulary)
    rows = steps * batch * vocabulary
    builder.add("loss", "loss", [logits], 1, 5 * rows)
    return builder.training_graph(title("ptb", graph=graph, batch=batch, steps=steps))


def nmt(graph: int = 0) -> Graph:
    """Translation with attention, two encoder and two decoder layers, one training step."""
    _rng("nmt", graph, _MAX_UNROLLED)
    steps, batch = 8 + graph // 2, (64, 128)[graph % 2]
    width, vocabulary = 1024, 32_000
    builder = NetworkBuilder("float32")
    weights: dict[str, Tensor] = {}
    tops: dict[str, list[Tensor]] = {}
    for side in ("encoder", "decoder"):
        layer_inputs = [
            builder.add(f"{side}.words.{step}", INPUT, [], batch * width) for step in range(steps)
        ]
        for layer in range(2):
            state = builder.add(f"{side}.layers.{layer}.state", INPUT, [], batch * width)
            for step in range(steps):
                shared = f"{side}.layers.{layer}"
                reads, path = [layer_inputs[step], state], f"{shared}.{step}"
                state = _add_recurrent(builder, weights, shared, path, reads, "lstm", batch, width)
                layer_inputs[step] = state
        tops[side] = layer_inputs
    memory = builder.add("memory", "concat", tops["encoder"], steps * batch * width)
    mixed_steps = []
    for step, top in enumerate(tops["decoder"]):
        path = f"attention.{step}"
        flops = 4 * steps * batch * width
        context = builder.add(path, "attention", [top, memory], batch * width, flops)
        reads, mix = [context, top], f"{path}.mix"
        mixed_steps.append(
            _add_recurrent(builder, weights, "attention", mix, reads, "tanh", batch, width)
        )
    stacked = builder.add("join", "concat", mixed_steps, steps * batch * width)
    logits = builder.linear("softmax", stacked, steps * batch, width, vocabulary)
    builder.add("loss", "loss", [logits], 1, 5 * steps * batch * vocabulary)
    return builder.training_graph(title("nmt", graph=graph))


def _rng(name: str, graph: int, count: int = _MAX_DRAWS) -> np.random.Generator:
    if not 0 <= graph < count:
        raise ConfigError(f"{name} has graph {graph!r}: expected 0 to {count - 1}")
    return np.random.default_rng([2018, len(name), graph])


def _enas_node(rng: np.random.Generator, at: int) -> list[tuple[int, str]]:
    """Two (earlier output, op) pairs; outputs 0 and 1 are those of the two cells before.

    The first node reads the cell before; otherwise cells could be unused.
    """
    kinds = ["convolution3", "convolution5", "maximum", "mean", "identity"]
    pairs = [(int(rng.integers(0, at + 2)), str(rng.choice(kinds))) for _ in range(2)]
    return [(1, pairs[0][1]), pairs[1]] if at == 0 else pairs


def _add_cell(
    builder: NetworkBuilder,
    path: str,
    nodes: list[list[tuple[int, str]]],
    previous: tuple[Tensor, Tensor],
    batch: int,
    side: int,
    channels: int,
) -> Tensor:
    elements = batch * side * side * channels
    outputs, read_outputs = list(previous), set()
    for at, pairs in enumerate(nodes):
        parts = []
        for arm, (source, kind) in enumerate(pairs):
            name = f"{path}.node{at}.{arm}"
            read_outputs.add(source)
            if kind.startswith("convolution"):
                size = int(kind[-1])
                source_tensor = outputs[source]
                parts.append(
                    builder.convolution(name, source_tensor, batch, side, channels, channels, size)
                )
            elif kind == "identity":
                parts.append(outputs[source])
            else:
                parts.append(builder.add(name, "pool", [outputs[source]], elements, 9 * elements))
        outputs.append(builder.add(f"{path}.node{at}.add", "add", parts, elements, elements))
    unread = [tensor for at, tensor in enumerate(outputs) if at not in read_outputs and at > 1]
    concat = builder.add(f"{path}.join", "concat", unread, len(unread) * elements)
    flops = 2 * elements * channels * len(unread)
    return builder.add(
        f"{path}.fit", "convolution", [concat], elements, flops, channels * channels * len(unread)
    )


def _with_classifier(
    builder: NetworkBuilder, x: Tensor, batch: int, side: int, channels: int, name: str
) -> Graph:
    pooled = builder.add("head.pool", "mean", [x], batch * channels, batch * side * side * channels)
    logits = builder.linear("head.linear", pooled, batch, channels, 10)
    builder.add("head.loss", "loss", [logits], 1, 5 * batch * 10)
    return builder.training_graph(name)


def _add_recurrent(
    builder: NetworkBuilder,
    weights: dict[str, Tensor],
    shared: str,
    path: str,
    reads: list[Tensor],
    kind: str,
    batch: int,
    width: int,
) -> Tensor:
    """A product with the weight `shared`, which all steps read, and an activation."""
    gates = 4 if kind == "lstm" else 1
    if shared not in weights:
        elements = len(reads) * width * gates * width
        weights[shared] = builder.add(f"{shared}.weight", "weight", [], elements)
    flops = 2 * batch * len(reads) * width * gates * width
    product = builder.add(
        f"{path}.product", "linear", [*reads, weights[shared]], batch * gates * width, flops
    )
    return builder.add(f"{path}.{kind}", "elementwise", [product], batch * width, 8 * batch * width)
