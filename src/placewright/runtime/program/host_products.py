"""Host products: ops that multiply a few rows by a weight, with PyTorch's kernel or our own.

Which of the two runs is measured once for each shape, dtype and number of threads, in the thread
that runs the op, with cold weights. Profiles run ops in the same way, so their costs are those of
the same choice. Our kernel rounds otherwise than PyTorch's. In float32, where a placed model should
give the model's own bits, it runs on request alone, and only if it is much faster; in 16 bits it
need only not be slower.
"""

from __future__ import annotations

import math
import threading
import time
from functools import cache
from statistics import median
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TypeAlias

import torch
from torch.autograd import forward_ad

from placewright.errors import ConfigError
from placewright.runtime.huge_pages import use_huge_pages
from placewright.runtime.machine import last_cache_bytes
from placewright.runtime.skinny_gemm import DTYPES, can_use_threads, multiply

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

HostKernels: TypeAlias = bool | Literal["float32"]
"""Whether our kernel may run: in 16 bits, never, or in float32 too."""
MAX_ROWS = 16
"""Rows up to which our kernel is tried; with so many, PyTorch's is as fast on one core."""
MIN_WEIGHT_BYTES = 2 << 20
"""Smaller weights are left to PyTorch: they may stay in a cache, and gain least."""
MAX_SECONDS: Mapping[torch.dtype, float] = {
    torch.bfloat16: 1.05,
    torch.float16: 1.05,
    torch.float32: 0.8,
}
"""How long our kernel may take, as a multiple of PyTorch's time."""
_MAX_COPIES, _MAX_COPY_BYTES = 16, 256 << 20  # of a weight, which calls cycle through
_SAMPLES, _LONG_SECONDS = 5, 0.1
_TENSOR_TYPES = (torch.Tensor, torch.nn.Parameter)


class ProductKey(NamedTuple):
    """What the choice of a kernel depends on; sizes are M x K and K x N, or batches of them."""

    x: tuple[int, ...]
    weight: tuple[int, ...]
    strides: tuple[int, ...]
    dtype: torch.dtype
    has_bias: bool
    threads: int


class _Operands(NamedTuple):
    """A product x @ weight + bias of matrices, or of a batch of them, and its result's shape."""

    x: torch.Tensor
    weight: torch.Tensor
    bias: torch.Tensor | None
    shape: tuple[int, ...]


class _ArgumentOrder(NamedTuple):
    """Where an op has the operands of its product."""

    x: int
    weight: int
    bias: int | None = None
    dims: int = 2


_ARGUMENT_ORDERS: Mapping[str, _ArgumentOrder] = {
    "linear": _ArgumentOrder(0, 1, 2),
    "mm": _ArgumentOrder(0, 1),
    "matmul": _ArgumentOrder(0, 1),
    "addmm": _ArgumentOrder(1, 2, 0),
    "bmm": _ArgumentOrder(0, 1, dims=3),
}

_choices: dict[ProductKey, bool] = {}
_choice_lock = threading.Lock()  # one measurement at a time


def weight_argument(name: str) -> int | None:
    """Which argument of an op is the weight of a product; None if the op is no product."""
    order = _ARGUMENT_ORDERS.get(name)
    return None if order is None else order.weight


def check_host_kernels(value: object) -> None:
    """Raise ConfigError unless it is a value of `HostKernels`."""
    if not (isinstance(value, bool) or value == "float32"):
        raise ConfigError(
            f"host_kernels is {value!r}: expected True (16-bit products), False (none) or "
            "'float32' (float32 products too)"
        )


def host_product(
    target: Callable[..., Any], name: str, with_float32: bool = False
) -> Callable[..., Any]:
    """The function of a product with a choice of kernels.

    Args:
        target: The op, e.g. `aten.linear`, which runs whatever is no plain product of few rows.
        name: Its name, e.g. `linear`.
        with_float32: Whether there is a choice in float32.
    """
    order = _ARGUMENT_ORDERS[name]

    def run(*args: Any, **kwargs: Any) -> Any:
        operands = None if kwargs else _read_operands(name, order, args)
        if operands is None or (operands.x.dtype is torch.float32 and not with_float32):
            return target(*args, **kwargs)
        key = _product_key(operands)
        is_own = _choices.get(key)
        if is_own is None:
            is_own = _choose(key, name, order, target, args)
        return _multiply(operands) if is_own else target(*args)

    return run


def chosen_kernels() -> Mapping[ProductKey, bool]:
    """Whether our kernel runs, for each product that was measured in this process."""
    return dict(_choices)


def forget_choices() -> None:
    """Measure every product again, e.g. because the load of the machine has changed."""
    with _choice_lock:
        _choices.clear()


# -- operands --------------------------------------------------------------------------------------


def _read_operands(name: str, order: _ArgumentOrder, args: tuple[Any, ...]) -> _Operands | None:
    """The operands of a plain product of few rows; None if PyTorch must run the op.

    Nothing here calls an op before all tensors are known to be plain: a mode would see it.
    """
    x, weight = args[order.x], args[order.weight]
    bias = args[order.bias] if order.bias is not None and order.bias < len(args) else None
    if weight.dim() != order.dims or weight.nbytes < MIN_WEIGHT_BYTES or x.dim() < order.dims - 1:
        return None
    tensors = (x, weight) if bias is None else (x, weight, bias)
    if not _is_plain_call(tensors):
        return None
    if name == "linear":
        weight = weight.t()
    depth, columns = weight.shape[-2:]
    if x.shape[-1] != depth or not _is_readable(weight):
        return None
    if bias is not None and (bias.numel() != columns or bias.shape[-1:] != (columns,)):
        return None
    shape = (*x.shape[:-1], columns)
    if order.dims == 3:
        is_few = 0 < x.shape[1] <= MAX_ROWS and x.shape[0] == weight.shape[0]
        is_large = weight.nbytes >= MIN_WEIGHT_BYTES * weight.shape[0]
        return _Operands(x, weight, None, shape) if is_few and is_large else None
    if not 0 < x.numel() <= MAX_ROWS * depth:
        return None
    return _Operands(x.reshape(-1, depth), weight, bias, shape)


def _is_plain_call(tensors: tuple[torch.Tensor, ...]) -> bool:
    """Whether an op of these tensors only computes: no gradients, casts, modes or transforms."""
    dtype = tensors[1].dtype
    if dtype not in DTYPES or any(tensor.dtype is not dtype for tensor in tensors):
        return False
    if torch.is_grad_enabled() and any(tensor.requires_grad for tensor in tensors):
        return False
    if torch.is_autocast_enabled("cpu") or torch._C._len_torch_dispatch_stack():
        return False
    if forward_ad._current_level >= 0 or not can_use_threads(torch.get_num_threads()):
        return False
    plain_keys = _plain_keys()
    return all(
        type(tensor) in _TENSOR_TYPES and torch._C._dispatch_keys(tensor).raw_repr() in plain_keys
        for tensor in tensors
    )


@cache
def _plain_keys() -> frozenset[int]:
    """How PyTorch dispatches ops of dense tensors on the CPU, in and out of inference mode.

    Lazily negated or conjugate tensors, batches of `vmap` and others dispatch otherwise.
    """
    keys = []
    for is_inference in (False, True):
        with torch.inference_mode(is_inference):
            keys.append(torch._C._dispatch_keys(torch.empty(0)).raw_repr())
    return frozenset(keys)


def _is_readable(weight: torch.Tensor) -> bool:
    """Whether rows or columns of a weight are contiguous, and do not overlap."""
    (depth, columns), (down, across) = weight.shape[-2:], weight.stride()[-2:]
    return (across == 1 and down >= columns) or (down == 1 and across >= depth)


def _product_key(operands: _Operands) -> ProductKey:
    x, weight, bias, _ = operands
    return ProductKey(
        tuple(x.shape),
        tuple(weight.shape),
        weight.stride(),
        weight.dtype,
        bias is not None,
        torch.get_num_threads(),
    )


def _multiply(operands: _Operands) -> torch.Tensor:
    x, weight, bias, shape = operands
    if weight.dim() == 2:
        return multiply(x, weight, None if bias is None else bias.reshape(-1)).view(shape)
    out = torch.empty(shape, dtype=x.dtype)
    for rows, matrix, result in zip(x, weight, out, strict=True):
        multiply(rows, matrix, out=result)
    return out


# -- the choice ------------------------------------------------------------------------------------


def _choose(
    key: ProductKey,
    name: str,
    order: _ArgumentOrder,
    target: Callable[..., Any],
    args: tuple[Any, ...],
) -> bool:
    """Measure both kernels; whether ours is to run from now on."""
    with _choice_lock:
        if key in _choices:
            return _choices[key]
        weights = _cold_copies(args[order.weight])

        def call_target(at: int) -> None:
            target(*_with_weight(args, order, weights[at % len(weights)]))

        def call_own(at: int) -> None:
            operands = _read_operands(
                name, order, _with_weight(args, order, weights[at % len(weights)])
            )
            assert operands is not None
            _multiply(operands)

        seconds = _time_alternately((call_target, call_own))
        _choices[key] = seconds[1] <= MAX_SECONDS[key.dtype] * seconds[0]
        return _choices[key]


def _with_weight(
    args: tuple[Any, ...], order: _ArgumentOrder, weight: torch.Tensor
) -> tuple[Any, ...]:
    return (*args[: order.weight], weight, *args[order.weight + 1 :])


def _cold_copies(weight: torch.Tensor) -> list[torch.Tensor]:
    """The weight and copies of it, so many that none is cached when its turn comes again."""
    count = min(
        _MAX_COPIES,
        math.ceil(2 * last_cache_bytes() / weight.nbytes),
        _MAX_COPY_BYTES // weight.nbytes,
    )
    copies = [weight]
    try:
        while len(copies) < count:
            copies.append(torch.empty_strided(weight.shape, weight.stride(), dtype=weight.dtype))
            copies[-1].copy_(weight)
            use_huge_pages(copies[-1])  # as the runtime stores weights
    except RuntimeError:  # no memory: PyTorch has no narrower class for that on the CPU
        return copies[:1]
    return copies


def _time_alternately(calls: tuple[Callable[[int], None], ...]) -> list[float]:
    """Median seconds of each call, after one that is not timed."""
    samples: list[list[float]] = [[] for _ in calls]
    at = 0
    for sample in range(_SAMPLES + 1):
        for call, seconds in zip(calls, samples, strict=True):
            start = time.perf_counter()
            call(at)
            elapsed = time.perf_counter() - start
            at += 1
            if sample or elapsed > _LONG_SECONDS:
                seconds.append(elapsed)
        if all(seconds and seconds[-1] > _LONG_SECONDS for seconds in samples):
            break
    return [median(seconds) for seconds in samples]
