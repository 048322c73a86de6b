"""Methods that the command line names: solvers, shipped policies and trained runs."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from placewright.solvers import Solver


def find_method(name: str) -> Solver:
    """The method of that name: a solver, a policy that ships, or the folder of a trained run.

    Raises:
        ConfigError: There is no method of that name.
        FileError: The folder holds no trained policy.
    """
    from placewright.solvers import METHODS
    from placewright.solvers import find_method as find_solver

    if name in METHODS:
        return find_solver(name)
    if Path(name).is_dir():
        from placewright.training.run import load_solver

        return load_solver(Path(name))
    from placewright.training.policy_solver import POLICY_SOLVERS

    return find_solver(name, POLICY_SOLVERS)
