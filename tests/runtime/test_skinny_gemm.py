"""Products of few rows by the compiled kernel, compared with float64 on every instruction set."""

from __future__ import annotations

import math
import threading
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

from placewright.runtime._skinny_gemm import instruction_sets  # noqa: E402
from placewright.runtime.openmp import team_launcher  # noqa: E402
from placewright.runtime.skinny_gemm import DTYPES, multiply, read_tensor  # noqa: E402

ROUNDING = {torch.bfloat16: 2**-8, torch.float16: 2**-11, torch.float32: 2**-24}
"""Half a unit in the last place, for numbers of size one."""

every_set = pytest.mark.parametrize("instructions", instruction_sets())
every_dtype = pytest.mark.parametrize("dtype", DTYPES, ids=str)
both_layouts = pytest.mark.parametrize("by_columns", [False, True], ids=["n x k", "k x n"])


def operands(rows, depth, columns, dtype, by_columns, seed=0):
    """Random x and weight; the weight is K x N, stored by columns or by rows."""
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(rows, depth, generator=generator).to(dtype)
    weight = torch.randn(columns, depth, generator=generator).to(dtype).t()
    return x, weight.contiguous() if by_columns else weight


def assert_close(result, x, weight, bias=None):
    """Each output is within one rounding of its dtype, and of float32 sums of so many products."""
    exact, sizes = x.double() @ weight.double(), x.double().abs() @ weight.double().abs()
    if bias is not None:
        exact, sizes = exact + bias.double(), sizes + bias.double().abs()
    summing = (x.shape[1] + 1) * ROUNDING[torch.float32]
    limit = ROUNDING[result.dtype] * exact.abs() * 1.01 + summing * sizes + 1e-7
    assert result.shape == exact.shape
    assert bool(((result.double() - exact).abs() <= limit).all())


@every_set
@every_dtype
@both_layouts
@pytest.mark.parametrize(
    ("rows", "depth", "columns"),
    [(1, 1, 1), (1, 31, 65), (2, 64, 33), (3, 257, 7), (4, 100, 130), (7, 12, 4), (16, 33, 300)],
)
def test_a_product_is_right_whatever_its_sizes(
    instructions, dtype, by_columns, rows, depth, columns
):
    x, weight = operands(rows, depth, columns, dtype, by_columns)
    bias = torch.randn(columns).to(dtype)
    assert_close(multiply(x, weight, None, 1, instructions), x, weight)
    assert_close(multiply(x, weight, bias, 1, instructions), x, weight, bias)


@every_set
@every_dtype
@both_layouts
def test_long_products_take_other_loops_and_are_right(instructions, dtype, by_columns):
    for rows, depth, columns in [(1, 12_000, 9), (2, 3_000, 40), (1, 70, 9_000), (5, 40, 5_000)]:
        x, weight = operands(rows, depth, columns, dtype, by_columns)
        assert_close(multiply(x, weight, None, 1, instructions), x, weight)


@every_set
@every_dtype
@both_layouts
@pytest.mark.parametrize("rows", [1, 2, 3, 4, 7])
def test_sums_of_several_chunks_are_right_at_their_borders(instructions, dtype, by_columns, rows):
    """Depths and columns around those at which loops begin another chunk, tile or prefetch."""
    for depth, columns in [(1023, 6), (1025, 9), (2081, 5), (23, 1025), (17, 513), (40, 2050)]:
        x, weight = operands(rows, depth, columns, dtype, by_columns)
        assert_close(multiply(x, weight, None, 1, instructions), x, weight)


@every_set
@every_dtype
@both_layouts
def test_a_row_does_not_depend_on_the_rows_beside_it(instructions, dtype, by_columns):
    """NaN in one row of x, or in the row of zeros that fills a group, stays in that row."""
    for rows in (2, 3, 4, 6, 7):
        x, weight = operands(rows, 600, 70, dtype, by_columns)
        expected = multiply(x, weight, None, 1, instructions)
        for row in range(rows):
            spoiled = x.clone()
            spoiled[row] = math.nan
            result = multiply(spoiled, weight, None, 1, instructions)
            assert bool(result[row].isnan().all())
            others = [at for at in range(rows) if at != row]
            assert torch.equal(result[others], expected[others])


@every_set
@every_dtype
@both_layouts
def test_memory_outside_of_the_operands_is_not_read(instructions, dtype, by_columns):
    """Numbers around each operand are NaN: reading one of them would show."""
    x, weight = operands(3, 37, 41, dtype, by_columns)

    def surrounded(tensor):
        flat = torch.full((tensor.shape[0] + 2, tensor.shape[1] + 5), math.nan, dtype=dtype)
        part = flat[1:-1, 1 : 1 + tensor.shape[1]]  # rows begin at odd addresses
        part.copy_(tensor)
        return part

    apart = surrounded(weight) if by_columns else surrounded(weight.t()).t()
    result = multiply(surrounded(x), apart, None, 1, instructions)
    assert torch.equal(result, multiply(x, weight, None, 1, instructions))


@every_set
@every_dtype
def test_strided_rows_give_the_same_bits_as_dense_ones(instructions, dtype):
    x, weight = operands(4, 96, 50, dtype, False)
    strided = torch.zeros(96, 8, dtype=dtype)[:, ::2].t()
    strided.copy_(x)
    assert strided.stride() == (2, 8)
    dense_result = multiply(x, weight, None, 1, instructions)
    assert torch.equal(multiply(strided, weight, None, 1, instructions), dense_result)


@every_set
@every_dtype
@both_layouts
def test_infinities_and_nans_reach_their_own_outputs_only(instructions, dtype, by_columns):
    x, weight = operands(2, 40, 50, dtype, by_columns)
    x, weight = x.abs() + 1, weight.abs() + 1
    weight[3, 7], weight[39, 49], weight[5, 20] = math.inf, -math.inf, math.nan
    result = multiply(x, weight, None, 1, instructions)
    assert result[:, 7].tolist() == [math.inf] * 2
    assert result[:, 49].tolist() == [-math.inf] * 2
    assert bool(result[:, 20].isnan().all())
    others = [column for column in range(50) if column not in (7, 20, 49)]
    assert bool(result[:, others].isfinite().all())


@every_set
def test_sums_beyond_float16_are_infinite_and_halves_round_to_even(instructions):
    def product(*pairs, dtype=torch.float16):
        x = torch.tensor([[first for first, _ in pairs]], dtype=dtype)
        weight = torch.tensor([[second] for _, second in pairs], dtype=dtype)
        return multiply(x, weight, None, 1, instructions).item()

    assert product((60000.0, 1.0), (60000.0, 1.0)) == math.inf
    assert product((65504.0, 1.0), (15.0, 1.0)) == 65504.0  # nearer than 65536
    assert product((2048.0, 1.0), (1.0, 1.0)) == 2048.0  # a tie, to the even neighbour
    assert product((2048.0, 1.0), (3.0, 1.0)) == 2052.0
    bfloat16 = torch.bfloat16
    assert product((256.0, 1.0), (1.0, 1.0), dtype=bfloat16) == 256.0
    assert product((256.0, 1.0), (3.0, 1.0), dtype=bfloat16) == 260.0


@every_set
def test_subnormal_float16_numbers_are_numbers(instructions):
    """The least of them is 2**-24: a sum of 64 of them is exact."""
    least = 2.0**-24
    x, weight = torch.ones(1, 64).half(), torch.full((64, 3), least).half()
    result = multiply(x, weight, None, 1, instructions)
    assert result.tolist() == [[64 * least] * 3]
    x = torch.full((1, 1), least).half()
    assert multiply(x, torch.ones(1, 1).half(), None, 1, instructions).item() == least


@every_set
@every_dtype
def test_subnormal_products_are_lost_or_right_but_never_large(instructions, dtype):
    """Instructions for pairs of bfloat16 take subnormal numbers for zero, as PyTorch's do."""
    tiny = torch.finfo(dtype).tiny / 4
    x, weight = torch.ones(1, 32, dtype=dtype), torch.full((32, 4), tiny, dtype=dtype)
    result = multiply(x, weight, None, 1, instructions)
    assert bool((result >= 0).all())
    assert bool((result <= 32 * tiny).all())


@every_set
@every_dtype
@both_layouts
def test_sums_of_negative_zeros_are_zero(instructions, dtype, by_columns):
    x, weight = operands(1, 20, 8, dtype, by_columns)
    result = multiply(-torch.zeros_like(x), weight.abs(), None, 1, instructions)
    assert bool((result == 0).all())


@every_dtype
def test_empty_products_are_empty_or_zero(dtype):
    for rows, depth, columns in [(0, 8, 4), (2, 8, 0), (2, 0, 4)]:
        x, weight = torch.ones(rows, depth, dtype=dtype), torch.ones(depth, columns, dtype=dtype)
        assert torch.equal(multiply(x, weight, None, 1), torch.zeros(rows, columns, dtype=dtype))
    bias = torch.arange(4).to(dtype)
    empty = torch.ones(2, 0, dtype=dtype), torch.ones(0, 4, dtype=dtype)
    assert torch.equal(multiply(*empty, bias, 1), bias.expand(2, 4))


@every_dtype
@both_layouts
def test_the_same_product_has_the_same_bits_every_time(dtype, by_columns):
    x, weight = operands(3, 700, 900, dtype, by_columns)
    for threads in (1, 2, 3):
        first = multiply(x, weight, None, threads)
        assert_close(first, x, weight)
        for _ in range(5):
            assert torch.equal(multiply(x, weight, None, threads), first)


@every_dtype
def test_dot_products_do_not_depend_on_the_number_of_threads(dtype):
    x, weight = operands(2, 700, 900, dtype, False)
    alone = multiply(x, weight, None, 1)
    assert all(torch.equal(multiply(x, weight, None, threads), alone) for threads in (2, 5))


def test_threads_multiply_at_the_same_time():
    """Each calling thread has memory and a team of its own."""
    cases = [operands(2, 300, 500, torch.bfloat16, at % 2 == 0, at) for at in range(4)]
    expected = [multiply(x, weight, None, 1) for x, weight in cases]
    wrong = []

    def work(at):
        x, weight = cases[at]
        for _ in range(50):
            result = multiply(x, weight, None, 1)
            if not torch.equal(result, expected[at]):
                wrong.append(at)

    threads = [threading.Thread(target=work, args=(at,)) for at in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


@pytest.mark.skipif(team_launcher() == 0, reason="PyTorch has no OpenMP here")
def test_work_runs_on_the_team_that_pytorch_has():
    """After PyTorch has started its team, a product on as many threads starts no other."""
    counts = []

    def work():
        torch.set_num_threads(2)
        x, weight = operands(1, 512, 512, torch.bfloat16, False)
        torch.add(torch.ones(1 << 20), 1.0)  # large enough for two threads
        counts.append(_thread_count())
        multiply(x, weight)
        counts.append(_thread_count())

    previous = torch.get_num_threads()
    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    torch.set_num_threads(previous)
    assert counts[1] <= counts[0]


def _thread_count():
    status = Path("/proc/self/status").read_text()
    return int(status.partition("Threads:")[2].split()[0])


def test_an_unknown_instruction_set_is_an_error():
    x, weight = operands(1, 8, 8, torch.float32, False)
    with pytest.raises(ValueError, match="no instruction set mmx"):
        multiply(x, weight, None, 1, "mmx")


def test_a_weight_without_a_contiguous_dimension_is_an_error():
    weight = torch.ones(16, 16)[::2, ::2]
    with pytest.raises(ValueError, match="make it contiguous"):
        multiply(torch.ones(1, 8), weight)


def test_a_tensor_of_any_size_can_be_read():
    for size in (0, 1, 4096, 100_001):
        read_tensor(torch.zeros(size, dtype=torch.uint8), 2)
