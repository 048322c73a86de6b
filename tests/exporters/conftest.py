"""What the tests of all exporters need: a small transformer on two GPUs and a host."""

from __future__ import annotations

import numpy as np
import pytest

from placewright import Cluster, Plan, Problem, zoo


class Case:
    """A problem, and plans of it by a rule."""

    def __init__(self, graph, cluster="2xP100+cpu", **more):
        self.problem = Problem(graph, Cluster.parse(cluster), **more)
        self.graph = graph

    def plan(self, rule, **more):
        """A plan from a function of an op to a device's name; inputs stay on the host."""
        at = self.problem.cluster.position
        names = ["cpu" if op.kind == "input" else rule(op) for op in self.graph.ops]
        return Plan.of(self.problem, np.array([at[name] for name in names]), **more)

    def device(self, plan, name):
        return plan.device_names[plan.placement[self.graph.position[name]]]


def block(op):
    """The number of the block that an op is in, or -1."""
    parts = op.module.split(".")
    return int(parts[1]) if parts[0] == "blocks" else -1


@pytest.fixture(scope="session")
def make_case():
    return Case


@pytest.fixture(scope="session")
def block_of():
    return block


@pytest.fixture(scope="session")
def six():
    """Six blocks, each an attention and an mlp."""
    return Case(zoo.load("transformer:blocks=6"))
