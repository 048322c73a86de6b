"""Expert: a problem whose network is of the zoo in, where the papers' experts put it out."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from placewright.errors import ConfigError
from placewright.transforms.bundles import accelerators
from placewright.zoo.networks import NETWORKS

if TYPE_CHECKING:
    from placewright.problem import Problem
    from placewright.solvers.search import Search


@dataclass(frozen=True)
class Expert:
    """Modules on accelerators by the rule that people use for this network.

    An op that the rule is silent about goes with the op it reads last, a gradient op with its
    forward op's module, a weight with its first reader.
    """

    name = "expert"

    def run(self, search: Search) -> None:
        search.judge(place(search.problem))


def known(problem: Problem) -> bool:
    """Whether there is a rule for this problem's network."""
    return problem.graph.name.partition(":")[0] in NETWORKS


def place(problem: Problem) -> np.ndarray[tuple[int], np.dtype[np.int32]]:
    """The expert's placement.

    Raises:
        ConfigError: The problem's graph is no network of the zoo.
    """
    if not known(problem):
        raise ConfigError(
            f"no expert's placement is known for {problem.graph.name.partition(':')[0]!r}: it is "
            f"known for {', '.join(NETWORKS)}"
        )
    name = problem.graph.name.partition(":")[0]
    order = accelerators(problem)
    modules = [op.module for op in problem.graph.ops]
    piece = NETWORKS[name].expert.place(modules, len(order))
    device = np.full(len(modules), -1, dtype=np.int32)
    for position, op in enumerate(problem.graph.ops):
        if op.module in piece:
            device[position] = order[piece[op.module]]
        elif op.inputs:
            device[position] = device[max(source for source, _ in op.inputs)]
    return problem.settle(np.where(device < 0, order[0], device))
