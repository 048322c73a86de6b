"""Built-in networks written op by op, so that no other library is needed."""

from __future__ import annotations

from placewright.errors import ConfigError
from placewright.frontends.op_costs import NORM_FLOPS, SOFTMAX_FLOPS
from placewright.graph import INPUT, STATE, VIEW, Graph, Tensor
from placewright.zoo.arguments import MAX_COUNT, check_counts, title
from placewright.zoo.builder import NetworkBuilder

# FLOPs per element.
GELU_FLOPS = 8  # the tanh form


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
        tokens: Tokens per step; each attends to all of them and to the context.
        hidden: Width of the inner layer of the two-layer perceptron.
        context: Tokens in the KV cache of each block.
    """
    sizes = {"blocks": blocks, "tokens": tokens, "width": width, "hidden": hidden, "heads": heads}
    check_counts("transformer", **sizes)
    if not 0 <= context <= MAX_COUNT:
        raise ConfigError(f"transformer has context {context!r}: expected 0 to {MAX_COUNT:,}")
    builder = NetworkBuilder("bfloat16")
    x = builder.add("tokens", INPUT, [], tokens * width)
    for block in range(blocks):
        x = _attention(builder, f"blocks.{block}.attention", x, tokens, width, heads, context)
        x = _mlp(builder, f"blocks.{block}.mlp", x, tokens, width, hidden)
    name = title("transformer", **sizes, context=context)
    return Graph(name, tuple(builder.ops))


def offload(blocks: int = 16, tokens: int = 1) -> Graph:
    """A chain of equal blocks with one op and one weight of 352 MiB each: 5.5 GiB for 16.

    The blocks are as large as those of `transformer`; 16 KiB per token go from one to the next.
    """
    check_counts("offload", blocks=blocks, tokens=tokens)
    weight = 352 * 2**20 // 2
    builder = NetworkBuilder("bfloat16")
    reads: list[Tensor] = []
    for block in range(blocks):
        flops = 2 * weight * tokens
        reads = [builder.add(f"blocks.{block}", "block", reads, 8192 * tokens, flops, weight)]
    return Graph(title("offload", blocks=blocks, tokens=tokens), tuple(builder.ops))


def branches(modules: int = 6, batch: int = 32, side: int = 28, channels: int = 256) -> Graph:
    """A convolutional network of modules with four branches each, in float32, forward.

    Three branches are a 1 x 1 convolution and none, one or two 3 x 3 convolutions; the fourth is
    pooling and a 1 x 1 convolution. Their outputs are concatenated.
    """
    check_counts("branches", modules=modules, batch=batch, side=side, channels=channels)
    if channels % 4:
        raise ConfigError(f"branches has channels {channels!r}: expected a multiple of 4")
    builder = NetworkBuilder("float32")
    image = builder.add("image", INPUT, [], batch * side * side * 3)
    x = builder.convolution("stem", image, batch, side, 3, channels, 3)
    quarter, pixels = channels // 4, batch * side * side
    for module in range(modules):
        branch_outputs = []
        for depth in range(3):
            name = f"modules.{module}.branch{depth}"
            y = builder.convolution(f"{name}.reduce", x, batch, side, channels, quarter, 1)
            for layer in range(depth):
                y = builder.convolution(f"{name}.{layer}", y, batch, side, quarter, quarter, 3)
            branch_outputs.append(y)
        name = f"modules.{module}.pool"
        pooled = builder.add(
            f"{name}.maximum", "pool", [x], pixels * channels, pixels * channels * 9
        )
        branch_outputs.append(
            builder.convolution(f"{name}.reduce", pooled, batch, side, channels, quarter, 1)
        )
        x = builder.add(f"modules.{module}.join", "concat", branch_outputs, pixels * channels)
    mean = builder.add("head.mean", "mean", [x], batch * channels, pixels * channels)
    builder.linear("head.classifier", mean, batch, channels, 1000)
    name = title("branches", modules=modules, batch=batch, side=side, channels=channels)
    return Graph(name, tuple(builder.ops))


def _attention(
    builder: NetworkBuilder, name: str, x: Tensor, tokens: int, width: int, heads: int, context: int
) -> Tensor:
    """Norm, attention and the residual sum; scores stay inside the attention op."""
    elements, keys = tokens * width, tokens + context
    y = builder.add(f"{name}.norm", "norm", [x], elements, NORM_FLOPS * elements, 2 * width)
    y = builder.linear(f"{name}.qkv", y, tokens, width, 3 * width)
    reads = [builder.add(f"{name}.heads", VIEW, [y], 3 * elements)]
    if context:
        reads.append(builder.add(f"{name}.cache", STATE, [], 2 * context * width))
    flops = 4 * tokens * keys * width + SOFTMAX_FLOPS * heads * tokens * keys
    y = builder.add(f"{name}.attend", "attention", reads, elements, flops)
    y = builder.add(f"{name}.merge", VIEW, [y], elements)
    y = builder.linear(f"{name}.projection", y, tokens, width, width)
    return builder.add(f"{name}.residual", "add", [x, y], elements, elements)


def _mlp(
    builder: NetworkBuilder, name: str, x: Tensor, tokens: int, width: int, hidden: int
) -> Tensor:
    """Norm, two products with an activation between them, and the residual sum."""
    elements, inner = tokens * width, tokens * hidden
    y = builder.add(f"{name}.norm", "norm", [x], elements, NORM_FLOPS * elements, 2 * width)
    y = builder.linear(f"{name}.up", y, tokens, width, hidden)
    y = builder.add(f"{name}.activation", "gelu", [y], inner, GELU_FLOPS * inner)
    y = builder.linear(f"{name}.down", y, tokens, hidden, width)
    return builder.add(f"{name}.residual", "add", [x, y], elements, elements)
