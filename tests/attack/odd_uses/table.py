"""The whole table: every module of odd uses, and the cases by name."""

from __future__ import annotations

from attack.odd_uses import arguments, dtypes, hooks, modes, state, tensors, weights
from attack.odd_uses.harness import CASES as CASES

MODULES = (arguments, dtypes, hooks, modes, state, tensors, weights)
