"""Random sequences of actions leave a placed model and the model itself alike."""

from __future__ import annotations

import pytest
import torch
from attack.odd_uses.sequences import Sequence, try_sequence

torch.set_num_threads(1)


def test_a_seed_gives_the_same_sequence_each_time():
    assert Sequence.of_seed(3) == Sequence.of_seed(3)
    assert Sequence.of_seed(3) != Sequence.of_seed(4)


@pytest.mark.parametrize("seed", range(4))
def test_a_sequence_shows_no_difference(seed):
    assert try_sequence(seed, shrink=False)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(4, 200))
def test_a_longer_list_of_sequences_shows_no_difference(seed):
    assert try_sequence(seed)
