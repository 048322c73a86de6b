"""A few sizes in, a built-in network out, written op by op, so that no other library is needed."""

from __future__ import annotations

from placewright.errors import ConfigError
from placewright.graph import INPUT, STATE, VIEW, Graph, Tensor
from placewright.zoo.arguments import MOST, check_counts, title
from placewright.zoo.builder import Draft

# Floating-point operations an element, for ops that are no products.
NORM = 8  # mean, variance, difference, root, quotient, scale, shift
SOFTMAX = 5  # maximum, difference, exponential, sum, quotient
GELU = 8  # the tanh form


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
    draft = Draft("bfloat16")
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
    draft = Draft("bfloat16")
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
    draft = Draft("float32")
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
    draft: Draft, name: str, x: Tensor, tokens: int, width: int, heads: int, context: int
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


def _perceptron(draft: Draft, name: str, x: Tensor, tokens: int, width: int, hidden: int) -> Tensor:
    """Norm, two products with an activation between them, and the sum with what came in."""
    elements, inner = tokens * width, tokens * hidden
    y = draft.add(f"{name}.norm", "norm", [x], elements, NORM * elements, 2 * width)
    y = draft.linear(f"{name}.up", y, tokens, width, hidden)
    y = draft.add(f"{name}.activation", "gelu", [y], inner, GELU * inner)
    y = draft.linear(f"{name}.down", y, tokens, hidden, width)
    return draft.add(f"{name}.residual", "add", [x, y], elements, elements)
