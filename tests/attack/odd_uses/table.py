"""The whole table: every module of odd uses, and the cases by name."""

from __future__ import annotations

from attack.odd_uses import (
    arguments,
    branches,
    caches,
    concurrency,
    copies,
    dtypes,
    gradients,
    hooks,
    modes,
    odd_forwards,
    odd_models,
    optimizers,
    outputs,
    parts,
    randomness,
    several_models,
    state,
    submodules,
    tensors,
    transforms,
    weights,
    whole_steps,
)
from attack.odd_uses.harness import CASES as CASES

MODULES = (
    arguments,
    branches,
    caches,
    concurrency,
    copies,
    dtypes,
    gradients,
    hooks,
    modes,
    odd_forwards,
    odd_models,
    optimizers,
    outputs,
    parts,
    randomness,
    several_models,
    state,
    submodules,
    tensors,
    transforms,
    weights,
    whole_steps,
)
