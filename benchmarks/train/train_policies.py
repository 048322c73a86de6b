"""Train the policies `pair` and `placeto` that ship.

    python -m benchmarks.train.train_policies pair --plans 12800
    python -m benchmarks.train.train_policies placeto --plans 40000 --each 3

Trains on the training graphs of the three families and writes the policy where the package reads
it. `pair` is trained on six clusters, half of the problems with little memory. `placeto` is trained
on random clusters, `--each` for every graph; it begins with the weights of `pair`, or with those of
`--begin`, and needs torch.
"""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

import placewright as pw
from benchmarks.common import add_seed, make_parser
from benchmarks.train.linear_trainer import LinearTrainer
from benchmarks.train.training_record import training_record
from placewright.policies.shipped import WEIGHTS_FOLDER
from placewright.training.go.demonstrations import limit_memory
from placewright.zoo.families import TRAINING_GRAPHS, family

if TYPE_CHECKING:
    import argparse
    from collections.abc import Sequence

    from placewright.training import Recipe

FAMILIES = ("cifar10", "ptb", "nmt")
KINDS = ("K80", "P100", "V100", "A100")
COUNTS = (2, 3, 4, 8)
NETWORKS = ("10GbE", "100GbE", "infiniband")
"""Parts of the clusters that `placeto` is trained on; see `random_cluster`."""
READY, LITTLE = 0.6, 0.4
EACH, CANDIDATES, GRAPHS = 3, 32, 24
CLUSTERS = ("2xK80", "2xP100+cpu", "3xP100+cpu", "4xK80+cpu", "2xK80+2xP100+cpu", "8xP100")
"""The clusters that `pair` is trained on."""


def training_networks(graphs: int = GRAPHS) -> list[str]:
    """The names of `graphs` training graphs of each family."""
    return [f"{name}:graph={at}" for name in FAMILIES for at in TRAINING_GRAPHS[:graphs]]


def problems(graphs: int, seed: int) -> list[pw.Problem]:
    """`graphs` training graphs of each family, each on all clusters, half with little memory."""
    rng = np.random.default_rng([seed, 2])
    problems_so_far = []
    for name in FAMILIES:
        for graph in family(name, "train")[:graphs]:
            for cluster in CLUSTERS:
                problem = pw.Problem(graph, pw.Cluster.parse(cluster))
                if rng.random() < 0.5:
                    problem = limit_memory(problem, rng.uniform(1.2, 1.8))
                problems_so_far.append(problem)
    return problems_so_far


def train_pair(arguments: argparse.Namespace) -> None:
    began = time.perf_counter()

    def watch(plans: int, policy: object) -> None:
        if plans % 1600 == 0:
            print(f"{plans:,} plans, {time.perf_counter() - began:.0f} s", flush=True)

    policy = LinearTrainer().run(
        problems(arguments.graphs, arguments.seed), arguments.plans, arguments.seed, watch
    )
    words = f"pair --plans {arguments.plans} --seed {arguments.seed}"
    words += "" if arguments.graphs == GRAPHS else f" --graphs {arguments.graphs}"
    made_by = f"python -m benchmarks.train.train_policies {words}"
    data = f"{arguments.graphs} training graphs of each family, each on {len(CLUSTERS)} clusters"
    networks = training_networks(arguments.graphs)
    record = training_record(arguments.seed, data, networks)
    policy.save(arguments.out / "pair.json", made_by, record)


def random_cluster(rng: np.random.Generator) -> str:
    """A cluster of 2, 3, 4 or 8 accelerators of up to three kinds, on one machine or two.

    None has 5, 6 or 7 accelerators, or a network of 25GbE: policies are tested on these.
    """
    count = int(rng.choice(COUNTS))
    most = min(count, int(rng.choice((1, 2, 3), p=(0.55, 0.3, 0.15))))
    kinds = rng.choice(KINDS, size=most, replace=False).tolist()
    cuts = sorted(rng.choice(np.arange(1, count), size=most - 1, replace=False).tolist())
    sizes = np.diff([0, *cuts, count]).tolist()
    cards = [kind for kind, size in zip(kinds, sizes, strict=True) for _ in range(size)]
    host = ["cpu"] if rng.random() < 0.6 else []

    def machine(cards: list[str]) -> str:
        return "+".join([f"{cards.count(each)}x{each}" for each in dict.fromkeys(cards)] + host)

    if rng.random() >= 0.35:
        return machine(cards)
    cut = int(rng.integers(1, count)) if rng.random() < 0.5 else count // 2
    return f"({machine(cards[:cut])})+({machine(cards[cut:])})@{rng.choice(NETWORKS)}"


def random_problems(
    graphs: int, each: int, seed: int, ready: float = READY, little: float = LITTLE
) -> list[pw.Problem]:
    """`graphs` training graphs of each family, each on `each` random clusters, shuffled.

    Args:
        ready: The share of problems whose devices run ready ops first.
        little: The share with little memory.
    """
    rng = np.random.default_rng([seed, 7])
    problems_so_far = []
    for _ in range(each):
        for name in FAMILIES:
            for graph in family(name, "train")[:graphs]:
                problem = pw.Problem(graph, pw.Cluster.parse(random_cluster(rng)))
                if rng.random() < ready:
                    problem = replace(problem, discipline="ready")
                if rng.random() < little:
                    problem = limit_memory(problem, rng.uniform(1.2, 1.8))
                problems_so_far.append(problem)
    rng.shuffle(problems_so_far)
    return problems_so_far


def train_placeto(arguments: argparse.Namespace) -> None:
    from benchmarks.train.weight_average import WeightAverage
    from placewright import policies
    from placewright.training import Environment, Trainer, find_recipe

    problems = random_problems(arguments.graphs, arguments.each, arguments.seed)
    begin = policies.load(Path(arguments.begin)) if arguments.begin else None
    environments = [Environment(each) for each in problems]
    recipe = find_recipe("placeto-any")
    config = replace(recipe.policy_config, candidates=CANDIDATES)  # type: ignore[type-var]
    recipe = many_problems_recipe(replace(recipe, policy_config=config))
    trainer = Trainer(environments, recipe, arguments.seed, arguments.plans, begin, device="cpu")
    began, averaged = time.perf_counter(), WeightAverage()

    def watch(trainer: Trainer) -> bool:
        averaged(trainer)
        if trainer.updates % 50 == 0:
            took = time.perf_counter() - began
            print(f"{trainer.evaluations:,} plans, {took:.0f} s", flush=True)
        return True

    trainer.run(watch)
    averaged.apply_to(trainer)
    words = f"placeto --plans {arguments.plans} --each {arguments.each} --seed {arguments.seed}"
    words += "" if arguments.graphs == GRAPHS else f" --graphs {arguments.graphs}"
    words += f" --begin {arguments.begin}" if arguments.begin else ""
    made_by = f"python -m benchmarks.train.train_policies {words}"
    data = f"{arguments.graphs} training graphs of each family, on {arguments.each} random clusters"
    record = training_record(arguments.seed, data, training_networks(arguments.graphs))
    policies.save(trainer.policy, arguments.out / "placeto.json", made_by, record)


def many_problems_recipe(recipe: Recipe) -> Recipe:
    """A recipe for any devices, for many problems: four per update, larger steps.

    On unseen clusters, greedy plans became 8 % faster than those of `pair` by 6,000 plans; with one
    problem per update they became 1.5 % faster by 8,000 (one seed each).
    """
    from placewright.training.schedules import Linear

    return replace(
        recipe, problems=4, episodes=16, greedy_every=0, learning_rate=Linear(5e-3, 5e-4)
    )


def main(argv: Sequence[str] | None = None) -> None:
    parser = make_parser(__doc__, __spec__.name)
    option = parser.add_argument
    option("policy", choices=["pair", "placeto"], help="the policy to train")
    option("--plans", type=int, help="evaluations; else 12,800 for pair, 40,000 for placeto")
    option("--graphs", type=int, default=GRAPHS, help="training graphs of each family")
    option("--each", type=int, default=EACH, help="placeto: clusters for each graph")
    option("--out", type=Path, default=WEIGHTS_FOLDER, help="folder that the policy is written to")
    option("--begin", help="placeto: file of a policy to start from")
    add_seed(parser)
    arguments = parser.parse_args(argv)
    arguments.out.mkdir(parents=True, exist_ok=True)
    if arguments.policy == "pair":
        arguments.plans = arguments.plans or 12_800
        train_pair(arguments)
    else:
        arguments.plans = arguments.plans or 40_000
        train_placeto(arguments)


if __name__ == "__main__":
    main()
