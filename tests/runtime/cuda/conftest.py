"""A machine with GPUs for the tests of this folder, on any machine."""

from __future__ import annotations

import pytest
from fake_cuda import fake_gpus


@pytest.fixture
def cuda():
    """A fake CUDA backend, which the runtime uses during the test."""
    with fake_gpus() as backend:
        yield backend
