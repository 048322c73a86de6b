"""Memory that libraries take of a GPU: part of a limit, in calls of every kind."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

torch = pytest.importorskip("torch")

from fake_cuda import FakeCuda, fake_gpus  # noqa: E402

from placewright.runtime.cuda.backend import use_backend  # noqa: E402
from placewright.runtime.cuda.library_memory import (  # noqa: E402
    MAX_LIBRARY_BYTES,
    library_bytes,
    note_context,
)
from placewright.runtime.eager_fallback import memory_caps  # noqa: E402


class Gpu(FakeCuda):
    """A GPU of 10 GiB."""

    def properties(self, index):
        return SimpleNamespace(total_memory=10 << 30)


def test_what_was_used_with_a_bare_context_is_not_of_libraries():
    gpu = Gpu(free=9 << 30)
    with use_backend(gpu):
        note_context(0)
        gpu.free -= 300 << 20  # kernels and handles
        gpu.free -= 1 << 30  # tensors
        gpu.reserved = 1 << 30
        assert library_bytes(0) == 300 << 20
        with memory_caps({0: 4 << 30}):
            assert gpu.caps == [(4 << 30) - (300 << 20)]
        gpu.free += 1 << 30
        assert library_bytes(0) == 0


def test_memory_of_other_processes_is_not_of_libraries():
    gpu = Gpu(free=9 << 30)
    with use_backend(gpu):
        note_context(0)
        gpu.free -= 5 << 30
        assert library_bytes(0) == MAX_LIBRARY_BYTES


def test_a_fake_gpu_has_no_libraries():
    with fake_gpus():
        assert library_bytes(3) == 0
