"""Costs of PyTorch ops, each by hand."""

from __future__ import annotations

import logging

import pytest

pytest.importorskip("torch")

import torch
from torch.nn import functional as F

from placewright.frontends.pytorch.frontend import from_torch

torch.set_num_threads(1)


class Call(torch.nn.Module):
    """A model that is one function of its arguments."""

    def __init__(self, function):
        super().__init__()
        self.function = function

    def forward(self, *args):
        return self.function(*args)


def matrix(*shape):
    return torch.rand(*shape)


CASES = {
    "hardswish": (F.hardswish, [matrix(4, 6)], 4 * 6),
    "floor_divide": (lambda x: x // 3, [torch.arange(24)], 24),
    "histc": (lambda x: torch.histc(x, 4, 0, 1), [matrix(24)], 24),
    "masked_scatter": (
        lambda x, mask, rows: x.masked_scatter(mask, rows),
        [matrix(4, 6), matrix(4, 6) > 0.5, matrix(4, 6)],
        0,
    ),
    "zero": (lambda x: x.clone().zero_(), [matrix(4, 6)], 0),
    # 20 transforms of 32 points: 5 n log2 n.
    "rfft": (torch.fft.rfft, [matrix(20, 32)], 20 * 5 * 32 * 5),
    "irfft": (lambda x: torch.fft.irfft(x, 32), [matrix(20, 17) + 0j], 20 * 5 * 32 * 5),
    "fft2": (torch.fft.fft2, [matrix(3, 8, 4) + 0j], 3 * 5 * 32 * 5),
    # Comparisons: elements times the logarithm of the sorted dimension, here the first.
    "sort": (lambda x: torch.sort(x, dim=0), [matrix(16, 2)], 32 * 4),
    "median": (torch.median, [matrix(16, 2)], 32 * 5),
    "topk": (lambda x: torch.topk(x, 3), [matrix(16, 8)], 16 * 8 * 3),
    "bucketize": (torch.bucketize, [matrix(10), torch.arange(8.0)], 10 * 3),
    "cholesky": (torch.linalg.cholesky, [torch.eye(6).expand(2, 6, 6)], 2 * 6**3 / 3),
    "triangular": (
        lambda a, b: torch.linalg.solve_triangular(a, b, upper=False),
        [torch.eye(6), matrix(6, 4)],
        6 * 4 * 6,
    ),
    "solve": (torch.linalg.solve, [torch.eye(6), matrix(6, 4)], 2 / 3 * 6**3 + 2 * 6 * 4 * 6),
    "cdist": (torch.cdist, [matrix(5, 8), matrix(7, 8)], 3 * 5 * 7 * 8),
    # Two products and a sum for each row, output and pair of inputs.
    "bilinear": (F.bilinear, [matrix(5, 3), matrix(5, 4), matrix(2, 3, 4)], 3 * 5 * 2 * 3 * 4),
}


@pytest.mark.parametrize("name", CASES)
def test_an_op_has_the_flops_of_its_formula(name, caplog):
    function, args, flops = CASES[name]
    with caplog.at_level(logging.WARNING, "placewright"):
        graph = from_torch(Call(function), tuple(args))
    assert not caplog.records
    assert sum(op.flops for op in graph.ops) == pytest.approx(flops)


def test_zeros_in_the_shape_of_a_tensor_do_not_read_it():
    graph = from_torch(Call(lambda x: x.clone().zero_()), (matrix(4, 6),))
    (zero,) = [op for op in graph.ops if op.kind == "copy"]
    assert zero.inputs == ()
    assert zero.bytes_moved == 4 * 4 * 6
