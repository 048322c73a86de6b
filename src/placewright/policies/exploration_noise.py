"""Exploration noise that is correlated between similar groups of ops.

Independent noise moves single groups, and a plan that is better than any with one group moved is
then out of reach: a layer goes to another device as a whole or not at all. Noise that is shared by
groups that look alike moves them together, as noise on a network's weights would (Plappert et al.
2018), and still is a number added to each logit, so that the policy that acted can be scored.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

_PATCH_PROBABILITY = 0.5  # of all episodes, where noise has patches
_COSINES = 8  # slow waves over the groups' order
_DIFFUSION_STEPS = 4  # neighbours of neighbours, and so on


def correlated_noise(
    rng: np.random.Generator,
    kind_shares: NDArray[np.float32],
    adjacency: NDArray[np.float32],
    episodes: int,
    devices: int,
    patches: bool = False,
) -> NDArray[np.float32]:
    """Episodes × groups × devices, of mean 0 and deviation up to 1, which is drawn too.

    Each episode draws in what its groups are to be alike: what they are made of, whom they are near
    to, where they stand in order, or nothing.

    Args:
        patches: Whether half of the episodes shake a few groups that are alike, as one, and leave
            the others alone: a policy that is sure of its plan then tries its neighbours.
        kind_shares: Groups × kinds: what each is made of.
        adjacency: Groups × groups: whether they exchange tensors.
    """
    count = len(kind_shares)
    deviation = kind_shares.std(axis=0)
    by_kind = (kind_shares - kind_shares.mean(axis=0)) / np.where(
        deviation > 1e-6, deviation, np.inf
    )
    by_adjacency = adjacency + np.eye(count, dtype=np.float32)
    by_adjacency = np.linalg.matrix_power(
        by_adjacency / by_adjacency.sum(axis=1, keepdims=True), _DIFFUSION_STEPS
    )
    frequency = np.arange(_COSINES)
    by_position = np.cos(np.pi * frequency * (np.arange(count)[:, None] + 0.5) / count) / (
        1 + frequency
    )
    bases = (by_kind, by_adjacency, by_position, np.eye(count))
    noise = np.empty((episodes, count, devices), dtype=np.float32)
    for episode in range(episodes):
        base = bases[int(rng.integers(len(bases)))]
        if patches and rng.random() < _PATCH_PROBABILITY:
            distance = np.square(base - base[rng.integers(count)]).sum(axis=1)
            patch = np.argsort(distance, kind="stable")[
                : int(np.exp(rng.uniform(0, np.log(count))))
            ]
            noise[episode] = 0.0
            noise[episode, patch] = rng.standard_normal(devices)
            continue
        sample = base @ rng.standard_normal((base.shape[1], devices))
        scale = sample.std()
        noise[episode] = rng.random() * sample / (scale if scale > 1e-6 else 1.0)
    return noise
