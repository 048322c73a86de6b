"""The policies that ship, trained anew.

    python benchmarks/train_policies.py pair [--plans 12800] [--seed 0] [--out FOLDER]
    python benchmarks/train_policies.py placeto [--plans 24000] [--begin FILE]

Trains on the training graphs of the three families, on clusters of two to eight devices of mixed
speed, half of them with little memory, and writes the policy where the package reads it. `placeto`
begins with the weights of `pair`, or goes on with a policy that was trained before; it needs torch.
"""

from __future__ import annotations

import argparse
import time
from dataclasses import replace
from pathlib import Path

import numpy as np

import placewright as pw
from placewright.policies.shipped import FOLDER
from placewright.training.pairs import PairTraining
from placewright.zoo.families import family

FAMILIES = ("cifar10", "ptb", "nmt")
CLUSTERS = ("2xK80", "2xP100+cpu", "3xP100+cpu", "4xK80+cpu", "2xK80+2xP100+cpu", "8xP100")


def tight(problem: pw.Problem, slack: float) -> pw.Problem:
    """The problem with as much memory on its devices as one plan on all of them needs."""
    a = problem.arrays
    everything = np.repeat(np.arange(a.devices)[:, None], a.ops, axis=1)
    peak = pw.judge(problem, problem.settle(everything)).peak.max(axis=0)
    devices = np.flatnonzero(~a.host)
    capacity = a.capacity.copy()
    capacity[devices] = np.minimum(capacity[devices], peak[devices] * slack / len(devices))
    return problem.with_arrays(capacity=capacity)


def problems(graphs: int, seed: int, ready: float = 0.0) -> list[pw.Problem]:
    """So many training graphs of each family, each on all clusters, half of them tight.

    Args:
        ready: The share of problems whose devices take whatever is ready.
    """
    rng = np.random.default_rng([seed, 2])
    made = []
    for name in FAMILIES:
        for graph in family(name, "train")[:graphs]:
            for cluster in CLUSTERS:
                problem = pw.Problem(graph, pw.Cluster.parse(cluster))
                if rng.random() < ready:
                    problem = replace(problem, discipline="ready")
                if rng.random() < 0.5:
                    problem = tight(problem, rng.uniform(1.2, 1.8))
                made.append(problem)
    return made


def train_pair(given: argparse.Namespace) -> None:
    began = time.perf_counter()

    def watch(plans: int, policy: object) -> None:
        if plans % 1600 == 0:
            print(f"{plans:,} plans, {time.perf_counter() - began:.0f} s", flush=True)

    policy = PairTraining().run(problems(given.graphs, given.seed), given.plans, given.seed, watch)
    policy.save(Path(given.out) / "pair.json")


def train_placeto(given: argparse.Namespace) -> None:
    from placewright import policies
    from placewright.training import Environment, Trainer, recipe
    from placewright.training.averaging import Averaged

    shown = problems(given.graphs, given.seed, ready=0.3)
    np.random.default_rng([given.seed, 3]).shuffle(shown)
    begin = policies.load(Path(given.begin)) if given.begin else None
    environments = [Environment(each) for each in shown]
    made = recipe("placeto-any")
    trainer = Trainer(environments, made, given.seed, given.plans, begin, device="cpu")
    began, averaged = time.perf_counter(), Averaged()

    def watch(trainer: Trainer) -> bool:
        averaged(trainer)
        if trainer.updates % 50 == 0:
            took = time.perf_counter() - began
            print(f"{trainer.evaluations:,} plans, {took:.0f} s", flush=True)
        return True

    trainer.run(watch)
    averaged.settle(trainer)
    policies.save(trainer.policy, Path(given.out) / "placeto.json")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("policy", choices=["pair", "placeto"])
    parser.add_argument("--plans", type=int, help="12,800 for pair, 24,000 for placeto")
    parser.add_argument("--graphs", type=int, default=24, help="training graphs of each family")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", default=str(FOLDER))
    parser.add_argument("--begin", help="a policy's file to go on with")
    given = parser.parse_args()
    if given.policy == "pair":
        given.plans = given.plans or 12_800
        train_pair(given)
    else:
        given.plans = given.plans or 24_000
        train_placeto(given)


if __name__ == "__main__":
    main()
