"""Exploration noise: how alike groups are in, normal numbers for each group and device out.

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

_PATCHED = 0.5  # of all episodes, where noise has patches
_WAVES = 8  # slow waves over the groups' order
_STEPS = 4  # neighbours of neighbours, and so on


def shared(
    rng: np.random.Generator,
    kinds: NDArray[np.float32],
    near: NDArray[np.float32],
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
        kinds: Groups × kinds: what each is made of.
        near: Groups × groups: whether they exchange tensors.
    """
    count = len(kinds)
    spread = kinds.std(axis=0)
    made = (kinds - kinds.mean(axis=0)) / np.where(spread > 1e-6, spread, np.inf)
    step = near + np.eye(count, dtype=np.float32)
    step = np.linalg.matrix_power(step / step.sum(axis=1, keepdims=True), _STEPS)
    wave = np.arange(_WAVES)
    order = np.cos(np.pi * wave * (np.arange(count)[:, None] + 0.5) / count) / (1 + wave)
    bases = (made, step, order, np.eye(count))
    out = np.empty((episodes, count, devices), dtype=np.float32)
    for episode in range(episodes):
        base = bases[int(rng.integers(len(bases)))]
        if patches and rng.random() < _PATCHED:
            apart = np.square(base - base[rng.integers(count)]).sum(axis=1)
            few = np.argsort(apart, kind="stable")[: int(np.exp(rng.uniform(0, np.log(count))))]
            out[episode] = 0.0
            out[episode, few] = rng.standard_normal(devices)
            continue
        drawn = base @ rng.standard_normal((base.shape[1], devices))
        size = drawn.std()
        out[episode] = rng.random() * drawn / (size if size > 1e-6 else 1.0)
    return out
