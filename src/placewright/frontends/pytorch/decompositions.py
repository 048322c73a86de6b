"""Hides decompositions of AOTAutograd that round otherwise than the kernels PyTorch runs.

Without a compiler PyTorch resizes images in one kernel. While AOTAutograd traces, these ops have
implementations in Python, of index arithmetic: results differ in the last bits, the backward pass
becomes scatters, and a graph has thirty ops in place of one. Where these implementations are
hidden, a graph has the op that PyTorch itself runs.
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from collections.abc import Iterator

_OPS = (
    *("upsample_nearest1d", "upsample_nearest2d", "upsample_nearest3d"),
    *("_upsample_nearest_exact1d", "_upsample_nearest_exact2d", "_upsample_nearest_exact3d"),
    *("upsample_linear1d", "upsample_bilinear2d", "upsample_trilinear3d", "upsample_bicubic2d"),
    *("_upsample_bilinear2d_aa", "_upsample_bicubic2d_aa", "_upsample_lanczos2d_aa"),
    *("multi_margin_loss", "multilabel_margin_loss_forward"),
)
_KEYS = ("CompositeImplicitAutograd", "Autograd")


@contextlib.contextmanager
def hide_decompositions() -> Iterator[None]:
    """Let AOTAutograd trace the kernels that PyTorch runs without a compiler."""
    hidden: list[tuple[Any, dict[Any, Any]]] = []
    keys = [getattr(torch._C.DispatchKey, name) for name in _KEYS]
    for op in _overloads():
        found = {key: op.py_kernels[key] for key in keys if key in op.py_kernels}
        if found:
            hidden.append((op, found))
    for op, found in hidden:
        for key in found:
            del op.py_kernels[key]
        op._dispatch_cache.clear()
    try:
        yield
    finally:
        for op, found in hidden:
            op.py_kernels.update(found)
            op._dispatch_cache.clear()


def _overloads() -> Iterator[Any]:
    for name in _OPS:
        packet = getattr(torch.ops.aten, name, None)  # a version may lack one
        if packet is not None:
            for overload in packet.overloads():
                yield getattr(packet, overload)
