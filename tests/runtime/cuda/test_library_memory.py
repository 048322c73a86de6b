"""Memory that libraries take of a GPU: part of a limit, in calls of every kind."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

torch = pytest.importorskip("torch")

from fake_cuda import FakeCuda, fake_gpus  # noqa: E402

from placewright.runtime.cuda.backend import use_backend  # noqa: E402
from placewright.runtime.cuda.library_memory import (  # noqa: E402
    MAX_LIBRARY_BYTES,
    has_uncounted_libraries,
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


def test_libraries_are_measured_when_they_may_have_grown():
    gpu = Gpu(free=9 << 30)
    with use_backend(gpu):
        note_context(0)
        gpu.free -= 300 << 20
        assert library_bytes(0, measure=False) == 0
        assert library_bytes(0) == 300 << 20
        measured = gpu.measured
        with memory_caps({0: 4 << 30}, measure=False):
            assert gpu.caps == [(4 << 30) - (300 << 20)]
        assert gpu.measured == measured


@pytest.mark.parametrize("was_used", [False, True])
def test_libraries_of_a_gpu_that_was_used_before_are_known_to_be_uncounted(was_used):
    with use_backend(Gpu(was_used=was_used)):
        assert has_uncounted_libraries(0) == was_used


def test_a_fake_gpu_has_no_libraries():
    with fake_gpus():
        assert library_bytes(3) == 0
