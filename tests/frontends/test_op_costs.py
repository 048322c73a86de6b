"""The shared table of costs: each kind's FLOPs and bytes, with the arithmetic written out."""

from __future__ import annotations

import logging

import pytest

from placewright.errors import GraphError
from placewright.frontends.op_costs import (
    DTYPE_BITS,
    KNOWN_KINDS,
    TensorSpec,
    bits,
    cost,
    warn_unknown_ops,
)


def test_a_tensor_takes_its_elements_times_the_bits_of_its_dtype() -> None:
    assert TensorSpec((2, 3), "float32").bytes == 2 * 3 * 4
    assert TensorSpec((2, 3), "bfloat16").bytes == 2 * 3 * 2
    assert TensorSpec((), "int64").bytes == 8
    assert TensorSpec((0, 5)).bytes == 0


def test_half_a_byte_left_over_takes_a_whole_one() -> None:
    assert TensorSpec((3,), "int4").bytes == 2


def test_a_tensor_that_shows_memory_repeatedly_takes_it_once() -> None:
    broadcast = TensorSpec((64, 5), "float32", stored_elements=5)
    assert broadcast.elements == 320
    assert broadcast.bytes == 20


def test_an_unknown_dtype_names_the_nearest() -> None:
    with pytest.raises(GraphError, match="dtype 'flaot32' is unknown: did you mean 'float32'"):
        bits("flaot32")
    assert min(DTYPE_BITS.values()) == 2


def test_a_matmul_is_two_flops_a_product_and_one_a_bias() -> None:
    x, weight, bias, y = (TensorSpec(shape) for shape in [(8, 32), (32, 16), (16,), (8, 16)])
    assert cost("matmul", [x, weight], [y], contracted=32) == (
        2 * 8 * 16 * 32,
        4 * (8 * 32 + 32 * 16 + 8 * 16),
    )
    flops, moved = cost("matmul", [x, weight, bias], [y], contracted=32, bias=True)
    assert flops == 2 * 8 * 16 * 32 + 8 * 16
    assert moved == 4 * (8 * 32 + 32 * 16 + 16 + 8 * 16)


def test_a_convolution_makes_a_product_for_each_output_and_kernel_element() -> None:
    x, weight, y = TensorSpec((2, 3, 16, 16)), TensorSpec((8, 3, 3, 3)), TensorSpec((2, 8, 16, 16))
    flops, _ = cost("convolution", [x, weight], [y], kernel_elements=3 * 3 * 3)
    assert flops == 2 * (2 * 8 * 16 * 16) * 27


def test_the_gradients_of_a_convolution_cost_one_forward_each() -> None:
    x, weight, y = TensorSpec((2, 3, 16, 16)), TensorSpec((8, 3, 3, 3)), TensorSpec((2, 8, 16, 16))
    forward, _ = cost("convolution", [x, weight], [y], kernel_elements=27)
    backward, _ = cost(
        "convolution", [y, x, weight], [x, weight], kernel_elements=27, made=y.elements, products=2
    )
    assert backward == 2 * forward


def test_attention_is_two_products_and_a_softmax_for_each_score() -> None:
    shape = {"batch": 2, "heads": 4, "queries": 10, "keys": 20, "width": 16}
    read = [TensorSpec((2, 4, 10, 16)), TensorSpec((2, 4, 20, 16)), TensorSpec((2, 4, 20, 16))]
    made = TensorSpec((2, 4, 10, 16))
    scores = 2 * 4 * 10 * 20
    flops, moved = cost("attention", read, [made], **shape)
    assert flops == scores * (2 * 16 + 2 * 16 + 5)
    assert moved == 4 * 2 * 4 * 16 * (10 + 20 + 20 + 10)
    flops, _ = cost("attention", read, [made], **shape, value_width=8)
    assert flops == scores * (2 * 16 + 2 * 8 + 5)


def test_attention_backward_is_five_products_where_forward_is_two() -> None:
    shape = {"batch": 1, "heads": 1, "queries": 8, "keys": 8, "width": 64}
    x = TensorSpec((1, 1, 8, 64))
    flops, _ = cost("attention", [x] * 5, [x] * 3, **shape, backward=True)
    assert flops == 64 * (5 * 2 * 64 + 2 * 5)


@pytest.mark.parametrize(
    ("kind", "each"),
    [("elementwise", 1), ("norm", 8), ("softmax", 5), ("random", 1), ("cast", 0), ("concat", 0)],
)
def test_other_kinds_cost_so_much_an_element_made(kind: str, each: int) -> None:
    x, y = TensorSpec((4, 6)), TensorSpec((4, 6))
    assert cost(kind, [x], [y]) == (each * 24, 4 * 48)


def test_an_op_may_say_what_an_element_costs() -> None:
    x = TensorSpec((4, 6))
    assert cost("elementwise", [x, x], [x], ops=3)[0] == 3 * 24
    assert cost("norm", [x], [TensorSpec((6,))], ops=16, made=24)[0] == 16 * 24


def test_a_reduction_costs_one_flop_an_element_read() -> None:
    assert cost("reduce", [TensorSpec((4, 6))], [TensorSpec((4,))]) == (24, 4 * (24 + 4))


def test_a_pool_looks_at_a_window_for_each_element_made() -> None:
    flops, _ = cost("pool", [TensorSpec((1, 8, 8, 8))], [TensorSpec((1, 8, 4, 4))], window=9)
    assert flops == 8 * 4 * 4 * 9


def test_an_embedding_reads_only_the_rows_it_picks() -> None:
    table, tokens, rows = (
        TensorSpec((50_000, 64)),
        TensorSpec((2, 10), "int64"),
        TensorSpec((2, 10, 64)),
    )
    flops, moved = cost("embedding", [table, tokens], [rows])
    assert flops == 0
    assert moved == 20 * 64 * 4 + 20 * 8 + 20 * 64 * 4


def test_a_bag_of_embeddings_reads_every_row_and_adds_it() -> None:
    table, tokens, sums = TensorSpec((1000, 64)), TensorSpec((3, 5), "int64"), TensorSpec((3, 64))
    flops, moved = cost("embedding", [table, tokens], [sums], ops=1, picked=15 * 64)
    assert flops == 15 * 64
    assert moved == 4 * 15 * 64 + 8 * 15 + 4 * 3 * 64


def test_a_scatter_in_place_moves_only_the_rows_it_writes() -> None:
    cache, at, row = TensorSpec((1, 4096, 128)), TensorSpec((1,), "int64"), TensorSpec((1, 1, 128))
    assert cost("scatter", [cache, at, row], [cache], in_place=True) == (0, 8 + 2 * 4 * 128)
    _, copied = cost("scatter", [cache, at, row], [cache])
    assert copied == 2 * 4 * 4096 * 128 + 8 + 4 * 128


def test_a_recurrent_layer_multiplies_its_input_and_its_state_for_each_gate() -> None:
    rows, width, hidden = 4 * 10, 16, 32
    x = TensorSpec((4, 10, 16))
    flops, _ = cost(
        "recurrent", [x], [x], rows=rows, gates=4, hidden=hidden, widths=[width, hidden]
    )
    first = 2 * 4 * hidden * (width + hidden) + hidden * (4 * 4 + 5)
    second = 2 * 4 * hidden * (hidden + hidden) + hidden * (4 * 4 + 5)
    assert flops == rows * (first + second)


def test_sorting_compares_each_element_a_logarithm_of_times() -> None:
    x = TensorSpec((3, 1000))
    assert cost("sort", [x], [x], width=1000)[0] == 3 * 1000 * 10


def test_a_loss_may_read_one_element_a_row() -> None:
    scores, targets, one = TensorSpec((8, 1000)), TensorSpec((8,), "int64"), TensorSpec(())
    assert cost("loss", [scores, targets], [one], picked=8) == (8, 8 * 4 + 8 * 8 + 4)
    assert cost("loss", [scores, scores], [one], ops=3) == (24_000, 2 * 32_000 + 4)


def test_an_optimizer_costs_so_much_a_parameter() -> None:
    weight = TensorSpec((10, 10))
    assert cost("optimizer", [weight] * 4, [weight] * 3, ops=12) == (1200, 7 * 400)


def test_an_opaque_op_costs_what_its_parts_do() -> None:
    x = TensorSpec((4,))
    assert cost("opaque", [x], [x], flops=7, moved=100) == (7, 100)
    assert cost("opaque", [x], [x], flops=7) == (7, 32)


@pytest.mark.parametrize("kind", ["weight", "state", "input", "view"])
def test_what_exists_already_costs_nothing(kind: str) -> None:
    assert cost(kind, [TensorSpec((8,))], [TensorSpec((8,))]) == (0, 0)


def test_an_unknown_kind_costs_its_bytes_and_no_flops() -> None:
    assert "aten::fft" not in KNOWN_KINDS
    assert cost("aten::fft", [TensorSpec((8,))], [TensorSpec((8,), "complex64")]) == (0, 32 + 64)


def test_unknown_kinds_are_listed_in_one_line(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, "placewright"):
        warn_unknown_ops("torch", {})
        warn_unknown_ops("torch", {"aten::fft": 2, "aten::cdist": 1})
    assert caplog.messages == [
        "torch ops without a known cost, counted by their bytes only: "
        "aten::cdist (1), aten::fft (2)"
    ]
