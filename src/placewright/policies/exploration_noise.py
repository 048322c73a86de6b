"""Exploration noise that is correlated between similar groups of ops.

Independent noise moves single groups, and often no single move improves a plan: a layer has to move
to another device as a whole. Noise that similar groups share moves them together, as noise on a
network's weights would (Plappert et al. 2018). It is still a number added to each logit, so that
the policy that acted can be scored.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

_PATCH_PROBABILITY = 0.5  # of an episode to have a patch, where noise has patches
_COSINES = 8  # slow waves over the groups' order
_DIFFUSION_STEPS = 4  # neighbours up to this many hops away


def similarities(
    kind_shares: NDArray[np.float32], adjacency: NDArray[np.float32]
) -> tuple[NDArray[Any], ...]:
    """Features of groups whose products say how similar two of them are, in four ways.

    By the kinds of their ops, by their neighbours, by their position in the graph, or not at all.

    Args:
        kind_shares: Groups × kinds: the share of each kind of op.
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
    return by_kind, by_adjacency, by_position, np.eye(count)


def correlated_noise(
    rng: np.random.Generator,
    bases: tuple[NDArray[Any], ...],
    episodes: int,
    devices: int,
    patches: bool = False,
) -> NDArray[np.float32]:
    """Episodes × groups × devices: noise of mean 0 and a random deviation up to 1.

    Args:
        bases: The `similarities` of groups; each episode takes one of them.
        patches: Whether half of the episodes move one patch of similar groups as one and leave the
            others alone: a policy that is certain of its plan then tries plans nearby.
    """
    count = len(bases[0])
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
