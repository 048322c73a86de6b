"""Limits torch's threads temporarily: small networks are fastest with one."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator


@contextmanager
def torch_threads(count: int = 1) -> Iterator[None]:
    """Torch computes with `count` threads inside, and as before afterwards."""
    import torch

    previous = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(previous)
