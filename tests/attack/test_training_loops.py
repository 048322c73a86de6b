"""A placed model trained by an ordinary loop ends with PyTorch's weights, to the bit."""

from __future__ import annotations

import pytest
import torch
from attack.training_loops import KINDS, NETWORKS, OPTIMIZERS, compare

torch.set_num_threads(1)


def test_a_small_network_ends_with_the_same_weights():
    assert compare("mlp", "adam", "alternating") == []


@pytest.mark.gpu
@pytest.mark.slow
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize("network", NETWORKS)
def test_a_network_on_a_gpu_ends_with_the_same_weights(network, optimizer):
    assert compare(network, optimizer, "gpu") == []


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize("network", NETWORKS)
def test_a_network_ends_with_the_same_weights(network, optimizer, kind):
    assert compare(network, optimizer, kind) == []
