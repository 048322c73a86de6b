"""Company: none without GPUs; with one, copies go on until the block is over."""

from __future__ import annotations

import threading
import time

import pytest

torch = pytest.importorskip("torch")

from placewright.runtime.company import Company  # noqa: E402


def test_without_gpus_nothing_runs_beside():
    before = threading.active_count()
    with Company([]).kept():
        assert threading.active_count() == before


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_a_gpu_is_fed_until_the_block_is_over():
    company = Company([0])
    for _ in range(2):
        before = threading.active_count()
        with company.kept():
            assert threading.active_count() == before + 1
            time.sleep(0.05)
        assert threading.active_count() == before
    torch.cuda.synchronize()
