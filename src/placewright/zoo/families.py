"""A family's name in, 32 training graphs that are alike but not the same out, for learning.

Placeto (Addanki et al. 2019) was trained on three such families, whose graphs were never published
whole: `cifar10` and `ptb`, architectures from the search spaces of ENAS (Pham et al. 2018), and
`nmt`, one model with unroll length and batch varied. These are drawn anew from the same spaces, so
they are not the paper's graphs. A quarter of each family is for testing, always the same quarter.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

import numpy as np

from placewright.errors import ConfigError, nearest
from placewright.graph import INPUT
from placewright.zoo.arguments import title
from placewright.zoo.builder import Draft

if TYPE_CHECKING:
    from placewright.graph import Graph, Tensor

GRAPHS = 32
TEST = tuple(
    sorted(int(at) for at in np.random.default_rng(2019).permutation(GRAPHS)[: GRAPHS // 4])
)
"""The graphs of every family that are for testing."""

Part = Literal["train", "test", "all"]


def family(name: str, part: Part = "all") -> list[Graph]:
    """The graphs of a family, or of its training or test part.

    Raises:
        ConfigError: There is no such family or part.
    """
    builders = {"cifar10": cifar10, "ptb": ptb, "nmt": nmt}
    if name not in builders:
        raise ConfigError(f"no family is named {name!r}: {nearest(name, builders)}")
    if part not in ("train", "test", "all"):
        raise ConfigError(f"part is {part!r}: expected train, test or all")
    chosen = [at for at in range(GRAPHS) if part == "all" or (at in TEST) == (part == "test")]
    return [builders[name](graph=at) for at in chosen]


def cifar10(graph: int = 0, batch: int = 128) -> Graph:
    """A convolutional network of ENAS's micro search space, one training step.

    A cell has five nodes; each adds two ops (convolutions of two sizes, two kinds of pooling,
    identity) on two earlier outputs; what nothing reads is concatenated. Every other stack of
    cells begins with half the side and twice the channels.
    """
    rng = _rng("cifar10", graph)
    draft, side, channels = Draft("float32"), 32, 36
    x = draft.add("image", INPUT, [], batch * side * side * 3)
    x = draft.convolution("stem", x, batch, side, 3, channels, 3)
    nodes = [_enas_node(rng, at) for at in range(5)]
    before = x
    for cell in range(6):
        if cell in (2, 4):
            pixels = batch * side * side // 4
            side, channels = side // 2, 2 * channels
            x, before = (
                draft.add(
                    f"cells.{cell}.reduce{at}",
                    "convolution",
                    [read],
                    pixels * channels,
                    2 * pixels * channels * channels // 2,
                    channels * channels // 2,
                )
                for at, read in enumerate((x, before))
            )
        x, before = _cell(draft, f"cells.{cell}", nodes, (before, x), batch, side, channels), x
    return _classified(draft, x, batch, side, channels, title("cifar10", graph=graph, batch=batch))


def ptb(graph: int = 0, batch: int = 64, steps: int = 20) -> Graph:
    """A recurrent network whose cell is drawn from ENAS's space, unrolled, one training step.

    A cell has eight nodes; each takes one earlier node through a product and an activation.
    """
    rng = _rng("ptb", graph)
    width, vocabulary = 1000, 10_000
    draft = Draft("float32")
    earlier = [int(rng.integers(0, at)) for at in range(1, 8)]
    kinds = [str(rng.choice(["tanh", "relu", "sigmoid", "identity"])) for _ in range(8)]
    state = draft.add("state", INPUT, [], batch * width)
    outputs: list[Tensor] = []
    weights: dict[str, Tensor] = {}
    for step in range(steps):
        word = draft.add(f"words.{step}", INPUT, [], batch * width)
        path = f"steps.{step}"
        first = [word, state]
        nodes = [
            _recurrent(draft, weights, "node0", f"{path}.node0", first, kinds[0], batch, width)
        ]
        for at, source in enumerate(earlier, start=1):
            read = [nodes[source]]
            node = f"node{at}"
            nodes.append(
                _recurrent(draft, weights, node, f"{path}.{node}", read, kinds[at], batch, width)
            )
        loose = [nodes[at] for at in range(8) if at not in earlier]
        state = draft.add(f"{path}.mean", "elementwise", loose, batch * width, 8 * batch * width)
        outputs.append(state)
    joined = draft.add("join", "concat", outputs, steps * batch * width)
    logits = draft.linear("softmax", joined, steps * batch, width, vocabulary)
    rows = steps * batch * vocabulary
    draft.add("loss", "loss", [logits], 1, 5 * rows)
    return draft.training(title("ptb", graph=graph, batch=batch, steps=steps))


def nmt(graph: int = 0) -> Graph:
    """Translation with attention, two layers each way, unrolled, one training step."""
    _rng("nmt", graph)
    steps, batch = 8 + graph // 2, (64, 128)[graph % 2]
    width, vocabulary = 1024, 32_000
    draft = Draft("float32")
    weights: dict[str, Tensor] = {}
    tops: dict[str, list[Tensor]] = {}
    for side in ("encoder", "decoder"):
        below = [
            draft.add(f"{side}.words.{step}", INPUT, [], batch * width) for step in range(steps)
        ]
        for layer in range(2):
            state = draft.add(f"{side}.layers.{layer}.state", INPUT, [], batch * width)
            for step in range(steps):
                shared = f"{side}.layers.{layer}"
                reads, path = [below[step], state], f"{shared}.{step}"
                state = _recurrent(draft, weights, shared, path, reads, "lstm", batch, width)
                below[step] = state
        tops[side] = below
    memory = draft.add("memory", "concat", tops["encoder"], steps * batch * width)
    mixed = []
    for step, top in enumerate(tops["decoder"]):
        path = f"attention.{step}"
        flops = 4 * steps * batch * width
        read = draft.add(path, "attention", [top, memory], batch * width, flops)
        reads, mix = [read, top], f"{path}.mix"
        mixed.append(_recurrent(draft, weights, "attention", mix, reads, "tanh", batch, width))
    joined = draft.add("join", "concat", mixed, steps * batch * width)
    logits = draft.linear("softmax", joined, steps * batch, width, vocabulary)
    draft.add("loss", "loss", [logits], 1, 5 * steps * batch * vocabulary)
    return draft.training(title("nmt", graph=graph))


def _rng(name: str, graph: int) -> np.random.Generator:
    if not 0 <= graph < GRAPHS:
        raise ConfigError(f"{name} has graph {graph!r}: expected 0 to {GRAPHS - 1}")
    return np.random.default_rng([2018, len(name), graph])


def _enas_node(rng: np.random.Generator, at: int) -> list[tuple[int, str]]:
    """Two (earlier output, op) pairs; outputs 0 and 1 are those of the two cells before.

    The first node reads the cell before, or cells could be left out altogether.
    """
    kinds = ["convolution3", "convolution5", "maximum", "mean", "identity"]
    pairs = [(int(rng.integers(0, at + 2)), str(rng.choice(kinds))) for _ in range(2)]
    return [(1, pairs[0][1]), pairs[1]] if at == 0 else pairs


def _cell(
    draft: Draft,
    path: str,
    nodes: list[list[tuple[int, str]]],
    before: tuple[Tensor, Tensor],
    batch: int,
    side: int,
    channels: int,
) -> Tensor:
    elements = batch * side * side * channels
    outputs, read = list(before), set()
    for at, pairs in enumerate(nodes):
        parts = []
        for arm, (source, kind) in enumerate(pairs):
            name = f"{path}.node{at}.{arm}"
            read.add(source)
            if kind.startswith("convolution"):
                size = int(kind[-1])
                given = outputs[source]
                parts.append(draft.convolution(name, given, batch, side, channels, channels, size))
            elif kind == "identity":
                parts.append(outputs[source])
            else:
                parts.append(draft.add(name, "pool", [outputs[source]], elements, 9 * elements))
        outputs.append(draft.add(f"{path}.node{at}.add", "add", parts, elements, elements))
    loose = [tensor for at, tensor in enumerate(outputs) if at not in read and at > 1]
    joined = draft.add(f"{path}.join", "concat", loose, len(loose) * elements)
    flops = 2 * elements * channels * len(loose)
    return draft.add(
        f"{path}.fit", "convolution", [joined], elements, flops, channels * channels * len(loose)
    )


def _classified(draft: Draft, x: Tensor, batch: int, side: int, channels: int, name: str) -> Graph:
    pooled = draft.add("head.pool", "mean", [x], batch * channels, batch * side * side * channels)
    logits = draft.linear("head.linear", pooled, batch, channels, 10)
    draft.add("head.loss", "loss", [logits], 1, 5 * batch * 10)
    return draft.training(name)


def _recurrent(
    draft: Draft,
    weights: dict[str, Tensor],
    shared: str,
    path: str,
    reads: list[Tensor],
    kind: str,
    batch: int,
    width: int,
) -> Tensor:
    """A product with the weight `shared`, which all steps read, and the activation after it."""
    gates = 4 if kind == "lstm" else 1
    if shared not in weights:
        elements = len(reads) * width * gates * width
        weights[shared] = draft.add(f"{shared}.weight", "weight", [], elements)
    flops = 2 * batch * len(reads) * width * gates * width
    made = draft.add(
        f"{path}.product", "linear", [*reads, weights[shared]], batch * gates * width, flops
    )
    return draft.add(f"{path}.{kind}", "elementwise", [made], batch * width, 8 * batch * width)
