"""A few sizes in, a built-in network out, written op by op, so that no other library is needed."""

from __future__ import annotations

from dataclasses import dataclass, field

from placewright.errors import ConfigError
from placewright.graph import INPUT, STATE, VIEW, WEIGHT, Graph, Op, Tensor
from placewright.zoo.arguments import MOST, check_counts, title

BYTES = {"bfloat16": 2, "float32": 4}  # of one element
LARGEST = 2**50  # bytes of a tensor: sums over a graph stay within 64 bits

# Floating-point operations an element, for ops that are no products.
NORM = 8  # mean, variance, difference, root, quotient, scale, shift
SOFTMAX = 5  # maximum, difference, exponential, sum, quotient
GELU = 8  # the tanh form


@dataclass
class _Draft:
    """A network that is being written: sizes in elements go in, ops come out."""

    dtype: str
    ops: list[Op] = field(default_factory=list)

    def add(
        self,
        name: str,
        kind: str,
        reads: list[Tensor],
        elements: int,
        flops: int = 0,
        parameters: int = 0,
    ) -> Tensor:
        """Add an op, and before it the weight that it reads, if it has parameters.

        An op moves what it reads and what it makes once; a view moves nothing.
        """
        if parameters:
            reads = [*reads, self.add(f"{name}.weight", WEIGHT, [], parameters)]
        size = elements * BYTES[self.dtype]
        if size > LARGEST:
            raise ConfigError(f"op {name!r} would make {size:,} bytes: choose smaller sizes")
        still = kind in (WEIGHT, STATE, INPUT, VIEW)
        read = sum(self.ops[source].outputs[output] for source, output in reads)
        op = Op(
            name,
            kind,
            tuple(reads),
            (size,),
            flops=float(flops),
            moved=0 if still else read + size,
            dtype=self.dtype,
            module=name.removesuffix(".weight").rpartition(".")[0],
            aliases=((0, 0),) if kind == VIEW else (),
        )
        self.ops.append(op)
        return len(self.ops) - 1, 0

    def linear(self, name: str, read: Tensor, rows: int, width: int, out: int) -> Tensor:
        """Rows of `width` elements times a weight of width x out."""
        return self.add(name, "linear", [read], rows * out, 2 * rows * width * out, width * out)

    def convolution(
        self, name: str, read: Tensor, batch: int, side: int, channels: int, out: int, kernel: int
    ) -> Tensor:
        """A convolution that keeps the side, and the activation after it."""
        pixels, taps = batch * side * side, kernel * kernel
        made = self.add(
            f"{name}.convolution",
            "convolution",
            [read],
            pixels * out,
            2 * pixels * out * channels * taps,
            channels * out * taps,
        )
        return self.add(f"{name}.relu", "relu", [made], pixels * out, pixels * out)


def transformer(
    blocks: int = 16,
    tokens: int = 1,
    width: int = 4096,
    hidden: int = 14336,
    heads: int = 32,
    context: int = 0,
) -> Graph:
    """A decoder: pre-norm transformer blocks in bfloat16, forward.

    By default the products' weights are 5.5 GiB, 16 blocks of 352 MiB.

    Args:
        tokens: How many are computed in one step; each looks at all of them and at the context.
        hidden: Width of the inner layer of the two-layer perceptron.
        context: Tokens whose keys and values are in the cache of each block.
    """
    sizes = {"blocks": blocks, "tokens": tokens, "width": width, "hidden": hidden, "heads": heads}
    check_counts("transformer", **sizes)
    if not 0 <= context <= MOST:
        raise ConfigError(f"transformer has context {context!r}: expected 0 to {MOST:,}")
    draft = _Draft("bfloat16")
    x = draft.add("tokens", INPUT, [], tokens * width)
    for block in range(blocks):
        x = _attention(draft, f"blocks.{block}.attention", x, tokens, width, heads, context)
        x = _perceptron(draft, f"blocks.{block}.mlp", x, tokens, width, hidden)
    name = title("transformer", **sizes, context=context)
    return Graph(name, tuple(draft.ops))


def offload(blocks: int = 16, tokens: int = 1) -> Graph:
    """A chain of equal blocks, one op and one weight of 352 MiB each: 5.5 GiB when there are 16.

    The blocks are as large as those of `transformer`; 16 KiB a token go from one to the next.
    """
    check_counts("offload", blocks=blocks, tokens=tokens)
    weight = 352 * 2**20 // 2
    draft = _Draft("bfloat16")
    reads: list[Tensor] = []
    for block in range(blocks):
        flops = 2 * weight * tokens
        reads = [draft.add(f"blocks.{block}", "block", reads, 8192 * tokens, flops, weight)]
    return Graph(title("offload", blocks=blocks, tokens=tokens), tuple(draft.ops))


def branches(modules: int = 6, batch: int = 32, side: int = 28, channels: int = 256) -> Graph:
    """A convolutional network of modules with four branches each, in float32, forward.

    Three branches begin with a convolution of 1 x 1, which none, one and two of 3 x 3 follow; the
    fourth is a pooling and a convolution of 1 x 1. Their outputs are joined into one.
    """
    check_counts("branches", modules=modules, batch=batch, side=side, channels=channels)
    if channels % 4:
        raise ConfigError(f"branches has channels {channels!r}: expected a multiple of 4")
    draft = _Draft("float32")
    image = draft.add("image", INPUT, [], batch * side * side * 3)
    x = draft.convolution("stem", image, batch, side, 3, channels, 3)
    quarter, pixels = channels // 4, batch * side * side
    for module in range(modules):
        ends = []
        for depth in range(3):
            name = f"modules.{module}.branch{depth}"
            y = draft.convolution(f"{name}.reduce", x, batch, side, channels, quarter, 1)
            for layer in range(depth):
                y = draft.convolution(f"{name}.{layer}", y, batch, side, quarter, quarter, 3)
            ends.append(y)
        name = f"modules.{module}.pool"
        pooled = draft.add(f"{name}.maximum", "pool", [x], pixels * channels, pixels * channels * 9)
        ends.append(draft.convolution(f"{name}.reduce", pooled, batch, side, channels, quarter, 1))
        x = draft.add(f"modules.{module}.join", "concat", ends, pixels * channels)
    mean = draft.add("head.mean", "mean", [x], batch * channels, pixels * channels)
    draft.linear("head.classifier", mean, batch, channels, 1000)
    name = title("branches", modules=modules, batch=batch, side=side, channels=channels)
    return Graph(name, tuple(draft.ops))


def _attention(
    draft: _Draft, name: str, x: Tensor, tokens: int, width: int, heads: int, context: int
) -> Tensor:
    """Norm, attention and the sum with what came in; scores stay inside the attention op."""
    elements, keys = tokens * width, tokens + context
    y = draft.add(f"{name}.norm", "norm", [x], elements, NORM * elements, 2 * width)
    y = draft.linear(f"{name}.qkv", y, tokens, width, 3 * width)
    reads = [draft.add(f"{name}.heads", VIEW, [y], 3 * elements)]
    if context:
        reads.append(draft.add(f"{name}.cache", STATE, [], 2 * context * width))
    flops = 4 * tokens * keys * width + SOFTMAX * heads * tokens * keys
    y = draft.add(f"{name}.attend", "attention", reads, elements, flops)
    y = draft.add(f"{name}.merge", VIEW, [y], elements)
    y = draft.linear(f"{name}.projection", y, tokens, width, width)
    return draft.add(f"{name}.residual", "add", [x, y], elements, elements)


def _perceptron(
    draft: _Draft, name: str, x: Tensor, tokens: int, width: int, hidden: int
) -> Tensor:
    """Norm, two products with an activation between them, and the sum with what came in."""
    elements, inner = tokens * width, tokens * hidden
    y = draft.add(f"{name}.norm", "norm", [x], elements, NORM * elements, 2 * width)
    y = draft.linear(f"{name}.up", y, tokens, width, hidden)
    y = draft.add(f"{name}.activation", "gelu", [y], inner, GELU * inner)
    y = draft.linear(f"{name}.down", y, tokens, hidden, width)
    return draft.add(f"{name}.residual", "add", [x, y], elements, elements)
