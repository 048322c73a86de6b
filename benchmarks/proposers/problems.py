"""The problems that proposers are trained and tested on, by name.

A name is `NETWORK@CLUSTER`, and after `!` the memory of all accelerators together, as a multiple of
what the whole network needs on one device.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

import placewright as pw
from placewright import Cluster, Constraints, Problem, judge
from placewright.zoo.families import TEST_GRAPHS, TRAINING_GRAPHS

CLUSTERS = (
    "4xP100+cpu",
    "2xV100+2xP100+cpu",
    "3xP100",
    "2xV100+4xK80+cpu",
    "4xV100-nvlink+cpu",
    "2x(2xP100+cpu)@25GbE",
)


def named_problem(name: str) -> Problem:
    """The problem of a name."""
    network, _, rest = name.partition("@")
    cluster, _, slack = rest.partition("!")
    graph = pw.zoo.load(network, note=lambda text: None)
    unlimited = Problem(graph, Cluster.parse(cluster))
    if not slack:
        return unlimited
    devices = [each for each in unlimited.cluster.devices if each.kind != "cpu"]
    one = unlimited.legalize(np.zeros(len(graph), dtype=np.int32))
    need = int(judge(unlimited, one[None]).peak.sum())
    limits = {each.name: int(float(slack) * need / len(devices)) for each in devices}
    return replace(unlimited, constraints=Constraints(limits=limits))


def generated(seeds: range) -> list[str]:
    """Generated graphs of three shapes on all clusters, half of them with little memory."""
    names = []
    for at in seeds:
        rng = np.random.default_rng([2026, 9, at])
        shape = ("layered", "series-parallel", "fork-join")[at % 3]
        ops = int(np.exp(rng.uniform(np.log(800), np.log(6_000))))
        more = {
            "layered": f",width={int(rng.integers(8, 40))}",
            "series-parallel": f",parallel={rng.uniform(0.3, 0.6):.2f}",
            "fork-join": f",branches={int(rng.integers(3, 9))},depth={int(rng.integers(2, 8))}",
        }[shape]
        weights = "true" if rng.random() < 0.7 else "false"
        cluster = CLUSTERS[int(rng.integers(len(CLUSTERS)))]
        slack = "!1.4" if rng.random() < 0.5 else ""
        names.append(f"{shape}:ops={ops},seed={at},weights={weights}{more}@{cluster}{slack}")
    return names


def families(test: bool, count: int) -> list[str]:
    """Graphs of the families, of their test or their training part."""
    graphs = (TEST_GRAPHS if test else TRAINING_GRAPHS)[:count]
    return [
        f"{name}:graph={at}@{CLUSTERS[(at + 2 * place) % len(CLUSTERS)]}" + ("!1.4", "")[at % 2]
        for place, name in enumerate(("cifar10", "ptb", "nmt"))
        for at in graphs
    ]


NETWORKS = {
    False: (
        "inception-v3@4xP100+cpu",
        "resnet-152@2xV100+2xP100+cpu!1.4",
        "rnnlm-2@4xP100+cpu",
        "gpt2@2xV100+4xK80+cpu",
    ),
    True: (
        "nmt-2@4xP100+cpu",
        "nmt-2@2xV100+4xK80+cpu!1.4",
        "nmt-4@4xV100-nvlink+cpu",
        "amoebanet-d@4xP100+cpu",
        "amoebanet-d@2xV100+2xP100+cpu!1.4",
        "wavenet-4x36@4xP100+cpu",
        "transformer-xl-4@2xV100+2xP100+cpu!1.4",
        "t5@4xP100+cpu",
    ),
}
"""Networks for training (False) and for testing (True)."""


def training() -> list[str]:
    """Problems that proposers are trained on."""
    return [*generated(range(100, 136)), *families(test=False, count=6), *NETWORKS[False]]


def held_out() -> list[str]:
    """Problems that they never see."""
    return [*generated(range(24)), *families(test=True, count=4), *NETWORKS[True]]
