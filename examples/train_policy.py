"""A policy that is trained on small graphs and then places one that it has never seen.

    python examples/train_policy.py

Needs the extra `torch`. On the command line:

    placewright train placeto --family cifar10 --on 2xK80 --evaluations 20000
    placewright place cifar10:graph=3 --on 2xK80 --method runs/placeto-cifar10
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

import placewright as pw
from placewright import policies
from placewright.training import Environment, Trainer, find_recipe
from placewright.training.policy_solver import PolicySolver

CLUSTER = "2xP100+cpu"


def problem_of(name: str) -> pw.Problem:
    return pw.Problem(pw.zoo.load(name), pw.Cluster.parse(CLUSTER))


def main(folder: Path) -> None:
    training = [problem_of(f"branches:modules=2,batch={batch}") for batch in (8, 16, 32)]
    recipe = find_recipe("placeto-any", groups=16)
    trainer = Trainer([Environment(one) for one in training], recipe, seed=0, max_evaluations=1500)
    trainer.run()
    policies.save(trainer.policy, folder / "policy.json", "examples/train_policy.py")

    policy = policies.load(folder / "policy.json")
    unseen = problem_of("branches:modules=3,batch=24")
    result = pw.solve(unseen, PolicySolver("placeto-any", policy=policy), seed=0)
    comparison = pw.compare(unseen, methods=["single", "random", "heft"])
    for each in (result, *comparison.results):
        print(f"{each.solver:<12} {1e3 * each.step_time:7.2f} ms")
    random = next(each for each in comparison.results if each.solver == "random")
    assert result.step_time < random.step_time


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as temporary:
        main(Path(sys.argv[1] if len(sys.argv) > 1 else temporary))
