"""Products of few rows on the host: which kernel runs, and that it gives the model's results."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from models import capture, nn, plans, torch, twin
from torch.autograd import forward_ad
from torch.utils.flop_counter import FlopCounterMode

import placewright as pw
from placewright.errors import ConfigError
from placewright.profiling.cache_model import CacheState
from placewright.profiling.isolated import measure_op
from placewright.runtime import Executor
from placewright.runtime.program import host_products
from placewright.runtime.program.host_products import host_product
from placewright.runtime.real_devices import RealDevice

WIDTH = 1024
"""A weight of 1024 x 1024 in 16 bits is as large as the least that the kernel is tried on."""
TOLERANCE = {torch.bfloat16: 2e-2, torch.float16: 3e-3, torch.float32: 1e-5}
aten = torch.ops.aten


class Decoder(nn.Module):
    """Linear layers, a layer as GPT-2 stores it, and a matrix of words that two ops read."""

    def __init__(self):
        super().__init__()
        self.up, self.down = nn.Linear(WIDTH, 1040), nn.Linear(1040, WIDTH, bias=False)
        self.conv1d = nn.Parameter(torch.randn(WIDTH, 1056) / 32)
        self.bias = nn.Parameter(torch.randn(1056))
        self.words = nn.Parameter(torch.randn(1056, WIDTH) / 32)
        self.experts = nn.Parameter(torch.randn(2, WIDTH, WIDTH) / 32)

    def forward(self, x):
        batch, tokens, width = x.shape
        x = x + self.down(torch.relu(self.up(x)))
        flat = torch.addmm(self.bias, x.view(-1, width), self.conv1d)
        x = flat @ self.words
        mixed = torch.bmm(x[None].expand(2, -1, -1), self.experts).sum(0)
        return mixed.view(batch, tokens, width) @ self.words.t()


@pytest.fixture
def own_calls(monkeypatch):
    """Let our kernel win every measurement; a list of the shapes that it multiplies."""
    calls, multiply = [], host_products.multiply

    def count(x, weight, *args, **kwargs):
        calls.append((tuple(x.shape), tuple(weight.shape)))
        return multiply(x, weight, *args, **kwargs)

    monkeypatch.setattr(host_products, "multiply", count)
    monkeypatch.setattr(host_products, "_time_alternately", lambda calls: [1.0, 0.1])
    monkeypatch.setattr(host_products, "_choices", {})
    return calls


def is_close(result, expected):
    difference = (result.double() - expected.double()).abs().max()
    return bool(difference <= TOLERANCE[expected.dtype] * expected.double().abs().max())


@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
def test_a_placed_model_with_our_kernel_gives_the_results_of_an_untouched_copy(own_calls, dtype):
    model = Decoder().to(dtype).eval()
    untouched, x = twin(model), torch.randn(1, 3, WIDTH).to(dtype)
    _, problem = capture(model, x)
    host_kernels = "float32" if dtype is torch.float32 else True
    placed = pw.apply(plans(problem, 1, seed=3)[0], model, host_kernels=host_kernels)
    with torch.no_grad():
        results, expected = [placed(x) for _ in range(2)], untouched(x)
    assert is_close(results[0], expected)
    assert torch.equal(results[0], results[1])
    assert len(own_calls) == 2 * 7  # five products, and two of the experts
    assert ((3, WIDTH), (WIDTH, 1056)) in own_calls


def test_a_model_without_host_kernels_has_its_own_bits(own_calls):
    model = Decoder().bfloat16().eval()
    untouched, x = twin(model), torch.randn(1, 2, WIDTH).bfloat16()
    _, problem = capture(model, x)
    placed = pw.apply(plans(problem, 1, seed=3)[0], model, host_kernels=False)
    with torch.no_grad():
        assert torch.equal(placed(x), untouched(x))
    assert own_calls == []


def test_weights_of_another_worker_are_multiplied(own_calls):
    model = nn.Sequential(*(nn.Linear(WIDTH, WIDTH) for _ in range(3))).bfloat16().eval()
    untouched, x = twin(model), torch.randn(1, WIDTH).bfloat16()
    program, problem = capture(model, x)
    placement = np.array([op.kind == "weight" for op in problem.graph.ops], dtype=np.int32)
    plan = replace(plans(problem, 1, seed=0)[0], placement=placement)
    with Executor(program, model, plan) as executor, torch.no_grad():
        assert is_close(executor(x), untouched(x))
    assert len(own_calls) == 3


def test_an_op_is_timed_with_the_kernel_that_runs_it(own_calls):
    model, x = nn.Linear(WIDTH, WIDTH).bfloat16().eval(), torch.randn(1, WIDTH).bfloat16()
    program, _ = capture(model, x)
    (position,) = program.builder.op_nodes
    device = RealDevice("cpu", cache=1 << 20)
    state = CacheState((False, True, False), False)
    timing = device.run(lambda: measure_op(program, position, device, 0.01, state))
    assert timing.samples >= 5
    assert len(own_calls) > timing.samples
    assert list(host_products.chosen_kernels().values()) == [True]


# -- the choice ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("dtype", "own_seconds", "is_own"),
    [
        (torch.bfloat16, 1.0, True),  # of 1.0 with PyTorch's kernel
        (torch.bfloat16, 1.1, False),
        (torch.float16, 0.5, True),
        (torch.float32, 0.9, False),  # not enough for other bits
        (torch.float32, 0.7, True),
    ],
)
def test_the_faster_kernel_runs_and_in_float32_only_if_much_faster(
    monkeypatch, own_calls, dtype, own_seconds, is_own
):
    monkeypatch.setattr(host_products, "_time_alternately", lambda calls: [1.0, own_seconds])
    x, weight = torch.randn(2, WIDTH).to(dtype), torch.randn(WIDTH, WIDTH).to(dtype)
    run = host_product(aten.mm.default, "mm", with_float32=True)
    assert is_close(run(x, weight), torch.mm(x, weight))
    assert len(own_calls) == is_own
    assert list(host_products.chosen_kernels().values()) == [is_own]


def test_float32_has_pytorchs_bits_unless_requested(monkeypatch, own_calls):
    monkeypatch.setattr(host_products, "_time_alternately", lambda calls: [1.0, 0.1])
    x, weight = torch.randn(2, WIDTH), torch.randn(WIDTH, WIDTH)
    assert torch.equal(host_product(aten.mm.default, "mm")(x, weight), torch.mm(x, weight))
    assert not own_calls
    assert not host_products.chosen_kernels()


@pytest.mark.parametrize("value", [None, "all", 1])
def test_another_value_of_host_kernels_is_refused(value):
    with pytest.raises(ConfigError, match=r"host_kernels is .*: expected True"):
        host_products.check_host_kernels(value)


def test_a_product_is_measured_once_for_each_shape_and_number_of_threads(monkeypatch, own_calls):
    measurements = []
    monkeypatch.setattr(
        host_products, "_time_alternately", lambda calls: measurements.append(1) or [1.0, 2.0]
    )
    run = host_product(aten.linear.default, "linear")
    weight = torch.randn(WIDTH, WIDTH).bfloat16()
    for rows in (1, 1, 2, 1, 2):
        run(torch.randn(1, rows, WIDTH).bfloat16(), weight)
    assert len(measurements) == 2
    previous = torch.get_num_threads()
    try:
        torch.set_num_threads(previous + 1)
        run(torch.randn(1, 1, WIDTH).bfloat16(), weight)
    finally:
        torch.set_num_threads(previous)
    assert len(measurements) == 3
    host_products.forget_choices()
    assert not host_products.chosen_kernels()


def test_both_kernels_are_measured_in_turn_on_weights_that_are_not_cached():
    calls = []
    seconds = host_products._time_alternately(
        (lambda at: calls.append(("torch", at)), lambda at: calls.append(("ours", at)))
    )
    assert [name for name, _ in calls[:4]] == ["torch", "ours", "torch", "ours"]
    assert [at for _, at in calls] == list(range(len(calls)))
    assert len(seconds) == 2
    weight = torch.randn(WIDTH, WIDTH).t()
    copies = host_products._cold_copies(weight)
    assert len({copy.data_ptr() for copy in copies}) == len(copies) > 1
    assert all(torch.equal(copy, weight) for copy in copies)
    assert all(copy.stride() == weight.stride() for copy in copies)


# -- what is left to PyTorch -----------------------------------------------------------------------


def operands(rows=1, dtype=torch.bfloat16):
    return torch.randn(rows, WIDTH).to(dtype), torch.randn(WIDTH, WIDTH).to(dtype)


run_mm = host_product(aten.mm.default, "mm")


@pytest.mark.parametrize(
    "change",
    [
        lambda x, weight: (x.repeat(17, 1), weight),  # too many rows
        lambda x, weight: (x[:0], weight),
        lambda x, weight: (x, weight[:, :100]),  # a small weight
        lambda x, weight: (x.double(), weight.double()),
        lambda x, weight: (x, weight[:, :1].expand(-1, WIDTH * 2)),  # columns overlap
        lambda x, weight: (x, torch.randn(WIDTH, 4 * WIDTH).bfloat16()[:, ::2]),
        lambda x, weight: (x, torch._neg_view(weight)),  # negated lazily
        lambda x, weight: (x.as_subclass(type("Own", (torch.Tensor,), {})), weight),
    ],
)
def test_other_products_are_left_to_pytorch(own_calls, change):
    x, weight = change(*operands())
    assert torch.equal(run_mm(x, weight), torch.mm(x, weight))
    assert own_calls == []


def test_gradients_are_recorded(own_calls):
    x, weight = operands()
    x.requires_grad_()
    run_mm(x, weight).float().sum().backward()
    assert is_close(x.grad, weight.float().sum(1).bfloat16()[None])
    assert own_calls == []
    with torch.no_grad():
        run_mm(x, weight)
    assert len(own_calls) == 1


@pytest.mark.filterwarnings("ignore:`torch.jit.script` is deprecated")
def test_transforms_modes_and_autocast_are_left_to_pytorch(own_calls):
    x, weight = operands()
    batched = torch.vmap(lambda row: run_mm(row, weight))(x[None])
    assert torch.equal(batched[0], torch.mm(x, weight))
    with forward_ad.dual_level():
        dual = forward_ad.make_dual(x, torch.ones_like(x))
        tangent = forward_ad.unpack_dual(run_mm(dual, weight)).tangent
        assert torch.equal(tangent, torch.mm(torch.ones_like(x), weight))
    with FlopCounterMode(display=False) as counter:
        run_mm(x, weight)
    assert counter.get_total_flops() == 2 * WIDTH * WIDTH
    with torch.autocast("cpu", torch.bfloat16):
        assert run_mm(*operands(dtype=torch.float32)).dtype == torch.bfloat16
    assert own_calls == []


def test_factors_of_addmm_are_left_to_pytorch(own_calls):
    x, weight = operands()
    bias = torch.randn(WIDTH).bfloat16()
    run = host_product(aten.addmm.default, "addmm")
    assert torch.equal(run(bias, x, weight, beta=2), torch.addmm(bias, x, weight, beta=2))
    assert own_calls == []
    for shape in ((WIDTH,), (1, WIDTH)):
        result = run(bias.view(shape), x, weight)
        assert is_close(result, torch.addmm(bias, x, weight))
    assert len(own_calls) == 2
    column = torch.randn(1, 1).bfloat16()  # broadcast over columns
    assert torch.equal(run(column, x, weight), torch.addmm(column, x, weight))
    assert len(own_calls) == 2


def test_shapes_are_those_of_pytorch(own_calls):
    _, weight = operands()
    matmul = host_product(aten.matmul.default, "matmul")
    linear = host_product(aten.linear.default, "linear")
    for sizes in [(), (1,), (2, 3), (1, 4, 2)]:
        x = torch.randn(*sizes, WIDTH).bfloat16()
        assert matmul(x, weight).shape == (x @ weight).shape
        assert is_close(matmul(x, weight), x @ weight)
        assert is_close(linear(x, weight), nn.functional.linear(x, weight))
    assert len(own_calls) == 3 * 4
    with torch.inference_mode():
        assert linear(torch.randn(1, WIDTH).bfloat16(), weight).is_inference()
