"""Expert placements of the zoo's networks, by the rules that their papers use."""

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
    """Modules on accelerators by the rule that experts use for this network.

    An op that the rule does not cover goes with its last input, a gradient op with its forward
    op's module, a weight with its first reader.
    """

    name = "expert"

    def run(self, search: Search) -> None:
        search.judge(expert_placement(search.problem))


def has_expert(problem: Problem) -> bool:
    """Whether there is a rule for this problem's network."""
    return problem.graph.name.partition(":")[0] in NETWORKS


def expert_placement(problem: Problem) -> np.ndarray[tuple[int], np.dtype[np.int32]]:
    """The expert's placement.

    Raises:
        ConfigError: The problem's graph is not a network of the zoo.
    """
    if not has_expert(problem):
        raise ConfigError(
            f"no expert's placement is known for {problem.graph.name.partition(':')[0]!r}: it is "
            f"known for {', '.join(NETWORKS)}"
        )
    name = problem.graph.name.partition(":")[0]
    devices = accelerators(problem)
    modules = [op.module for op in problem.graph.ops]
    part_of = NETWORKS[name].expert.place(modules, len(devices))
    placement = np.full(len(modules), -1, dtype=np.int32)
    for position, op in enumerate(problem.graph.ops):
        if op.module in part_of:
            placement[position] = devices[part_of[op.module]]
        elif op.inputs:
            placement[position] = placement[max(source for source, _ in op.inputs)]
    return problem.legalize(np.where(placement < 0, devices[0], placement))
