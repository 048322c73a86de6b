"""FLOPs of PyTorch ops that have no kind of their own: transforms, factorisations, distances."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

from placewright.frontends.op_costs import box_suppression_flops, fft_flops
from placewright.frontends.pytorch.shapes import Node, op_name, shape

Arguments = Mapping[str, Any]
FlopsRule = Callable[[Node, Arguments], float]


def _fourier_transform(node: Node, a: Arguments) -> float:
    """Real input or output is the longer of the two."""
    sizes = shape(node) if op_name(node) == "_fft_c2r" else shape(a["self"])
    points = math.prod(sizes[axis] for axis in a["dim"])
    return fft_flops(math.prod(sizes) // max(points, 1), points)


def _factorisation(coefficient: float) -> FlopsRule:
    """`coefficient` × m n² for each matrix of m × n (Golub and Van Loan, Matrix Computations)."""

    def flops(node: Node, a: Arguments) -> float:
        sizes = shape(next(iter(a.values())))
        return coefficient * math.prod(sizes) * min(sizes[-2:])

    return flops


def _triangular_solve(node: Node, a: Arguments) -> float:
    """One product for each element on or below the diagonal, for each column."""
    columns = a["B"] if "B" in a else a["self"]
    return float(math.prod(shape(columns)) * shape(columns)[-2])


def _solve(node: Node, a: Arguments) -> float:
    """A factorisation and two triangular solutions."""
    sizes, result = shape(a["A"]), shape(a["B"])
    return 2 / 3 * math.prod(sizes) * sizes[-1] + 2.0 * math.prod(result) * sizes[-1]


def _distances(node: Node, a: Arguments) -> float:
    """A difference, a power and a sum for each pair of rows and each column."""
    pairs = shape(a.get("grad", node))
    return 3.0 * math.prod(pairs) * shape(a["x1"])[-1]


def _trilinear(node: Node, a: Arguments) -> float:
    """Two products and a sum for each element of the three factors, broadcast."""
    sizes: list[list[int]] = []
    for at in ("1", "2", "3"):
        factor = list(shape(a[f"i{at}"]))
        for axis in sorted(a[f"expand{at}"]):
            factor.insert(axis, 1)
        sizes.append(factor)
    broadcast = (max(axis_sizes) for axis_sizes in zip(*sizes, strict=True))
    return 3.0 * float(math.prod(broadcast))


def _binary_search(node: Node, a: Arguments) -> float:
    boundaries = a["boundaries"] if "boundaries" in a else a["sorted_sequence"]
    comparisons = math.ceil(math.log2(max(shape(boundaries)[-1], 2)))
    return float(math.prod(shape(node)) * comparisons)


def _box_suppression(node: Node, a: Arguments) -> float:
    return box_suppression_flops(shape(a["dets"])[0])


def _region_samples(node: Node, a: Arguments) -> float:
    """Each output element is a mean of samples, each of four neighbours."""
    samples = max(int(a["sampling_ratio"]), 2) ** 2
    return 8.0 * math.prod(shape(node)) * samples


OP_FLOPS: Mapping[str, FlopsRule] = {
    word: rule
    for words, rule in (
        ("_fft_r2c _fft_c2r _fft_c2c", _fourier_transform),
        ("cholesky linalg_cholesky_ex", _factorisation(1 / 3)),
        ("linalg_lu linalg_lu_factor_ex _linalg_det _linalg_slogdet", _factorisation(2 / 3)),
        ("linalg_inv_ex", _factorisation(2)),
        ("linalg_qr geqrf", _factorisation(2)),
        ("_linalg_eigh", _factorisation(9)),
        ("_linalg_svd", _factorisation(20)),
        ("linalg_solve_triangular triangular_solve", _triangular_solve),
        ("_linalg_solve_ex", _solve),
        ("_cdist_forward _cdist_backward _euclidean_dist", _distances),
        ("_trilinear", _trilinear),
        ("bucketize searchsorted", _binary_search),
        ("torchvision::nms", _box_suppression),
        ("torchvision::roi_align", _region_samples),
    )
    for word in words.split()
}
"""The FLOPs of each op, by its name without the overload."""
