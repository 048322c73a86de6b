"""Placeto's claims on our simulator: graphs never seen, the cost of learning, what each part does.

    python benchmarks/generalisation.py families [--families cifar10,ptb,nmt] [--tests 8]
    python benchmarks/generalisation.py devices  [--families …]
    python benchmarks/generalisation.py cost     [--rows inception-v3:2,…] [--seeds 1]
    python benchmarks/generalisation.py parts    [--families …]
        [--groups 64] [--plans 20000] [--own 4000] [--auto 10s] [--device auto]

`families`: step time over the best known plan of each test graph (the median, and the range from
best to worst graph) on two K80 as TensorFlow's executor runs (`ready`). Zero-shot policies are
trained on the family's 24 training graphs with `--plans` plans; the other graphs are never shown.
A policy's figure is its likeliest plan; `of 16` is the best of that and 15 drawn.
`devices`: the policies that ship, which serve any devices, on clusters that they never saw.
`cost`: plans and episodes until Placeto reaches ColocRL's final step time, beside the paper's.
`parts`: rewards per step or at the end, at equal plans and at equal episodes; messages or none.
"""

from __future__ import annotations

import argparse
import statistics
import time
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

import placewright as pw
from placewright import solvers
from placewright.policies.groups import grouped, legal_devices
from placewright.policies.shipped import SHIPPED, shipped
from placewright.training import Environment, Recipe, Trainer, recipe
from placewright.zoo.families import family

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from placewright.policies import Policy

UNSEEN = ("5xK80", "6xP100+cpu", "3xV100+2xP100+cpu", "2x(2xP100+cpu)@25GbE")
"""Clusters that no policy which ships was trained on (`train_policies.CLUSTERS`)."""

PAPER = {
    "inception-v3:2": (1600, 7800),
    "inception-v3:4": (5800, 35_800),
    "nmt-2:2": (20_400, 73_000),
    "nmt-2:4": (94_000, 51_700),
    "nasnet-a:2": (3500, 16_300),
    "nasnet-a:4": (29_000, 37_000),
}
"""Placements that Placeto and ColocRL (`RNN-based`) needed, as the paper prints them."""


def problems(name: str, part: Any, cluster: str, count: int | None = None) -> list[pw.Problem]:
    on = pw.Cluster.parse(cluster)
    return [pw.Problem(graph, on, discipline="ready") for graph in family(name, part)[:count]]


def trained(
    made: Recipe, shown: Sequence[pw.Problem], plans: int, given: argparse.Namespace, seed: int = 0
) -> Trainer:
    """A policy trained on problems that take turns."""
    began = time.perf_counter()
    trainer = Trainer([Environment(each) for each in shown], made, seed, plans, device=given.device)
    trainer.run()
    took = time.perf_counter() - began
    print(f"<!-- {made.name}: {trainer.evaluations:,} plans, {took:.0f} s -->", flush=True)
    return trainer


def placed(policy: Policy, problem: pw.Problem, drawn: int = 15) -> tuple[float, float]:
    """What a policy's likeliest plan takes, and the best of it and some drawn ones."""
    values = []
    for count, greedy in ((1, True), (drawn, False)):
        episodes = policy.act(problem, count, 1, greedy=greedy)
        last = np.flatnonzero(np.append(np.diff(episodes.owner) > 0, True))
        order = None if episodes.priority is None else episodes.priority[last]
        verdict = pw.judge(problem, episodes.device[last], order)
        fitting = np.where(verdict.overflow > 0, np.inf, verdict.value)
        values.append(float(fitting.min()))
    return values[0], min(values)


def at_random(problem: pw.Problem, groups: int) -> float:
    """The median of 64 random placements of the same groups."""
    grouping = grouped(problem, "coarse", groups)
    legal = legal_devices(problem, grouping)
    luck = np.random.default_rng(0).random((64, *legal.shape))
    rows = np.where(legal, luck, -1.0).argmax(axis=2).astype(np.int32)
    return float(np.median(pw.judge(problem, problem.settle(grouping.expand(rows))).value))


def solved(problem: pw.Problem, solver: solvers.Solver, **how: Any) -> float:
    result = pw.solve(problem, solver, **how)
    return result.value if result.fits else float("inf")


def table(title: str, rows: Iterable[tuple[str, Sequence[float]]]) -> None:
    """Ratios to the best known, one line a method."""
    print(f"\n**{title}**\n\n| method | median | best | worst |\n|---|---|---|---|")
    for name, ratios in rows:
        middle = statistics.median(ratios)
        print(f"| {name} | {middle:.3f} | {min(ratios):.3f} | {max(ratios):.3f} |", flush=True)


def ratios(found: list[dict[str, float]]) -> list[tuple[str, list[float]]]:
    """Each method's step times over the best of all methods, problem by problem."""
    best = [min(row.values()) for row in found]
    return [
        (name, [row[name] / least for row, least in zip(found, best, strict=True)])
        for name in found[0]
    ]


def families(given: argparse.Namespace) -> None:
    """Graphs never seen."""
    own = recipe("placeto", groups=given.groups)
    for name in given.families.split(","):
        train = problems(name, "train", "2xK80")
        tests = problems(name, "test", "2xK80", given.tests)
        zero = trained(own, train, given.plans, given).policy
        other = recipe("colocrl", groups=given.groups, rule="coarse")
        other = replace(other, shape=replace(other.shape, padded=True))  # type: ignore[type-var]
        rnn = trained(other, train, given.plans, given).policy
        found = []
        for problem in tests:
            row = {"random": at_random(problem, given.groups)}
            row["ColocRL, zero-shot"], row["ColocRL, zero-shot, of 16"] = placed(rnn, problem)
            row["Placeto, zero-shot"], row["Placeto, zero-shot, of 16"] = placed(zero, problem)
            alone = trained(own, [problem], given.own, given)
            row["Placeto, trained on the graph"] = alone.environments[0].key[1]
            for each in SHIPPED:
                single, several = placed(shipped(each, problem), problem)
                row[f"{each}, ships"], row[f"{each}, ships, of 16"] = single, several
            if solvers.expert.known(problem):
                row["expert"] = solved(problem, solvers.Expert())
            row["best single device"] = solved(problem, solvers.EverySingleDevice())
            row["HEFT"] = solved(problem, solvers.HEFT())
            row["m-ETF"] = solved(problem, solvers.METF())
            row["auto"] = solved(problem, solvers.Auto(), stop=pw.MaxTime(given.auto), seed=0)
            found.append(row)
        table(f"{name}: {len(tests)} test graphs, 2xK80, {given.groups} groups", ratios(found))
        apart = [row["Placeto, zero-shot"] / row["Placeto, trained on the graph"] for row in found]
        print(f"\nZero-shot over trained on the graph: median {statistics.median(apart):.3f}.")


def devices(given: argparse.Namespace) -> None:
    """Clusters never seen."""
    for cluster in UNSEEN:
        found = []
        for name in given.families.split(","):
            for problem in problems(name, "test", cluster, given.tests):
                row = {}
                for each in SHIPPED:
                    single, several = placed(shipped(each, problem), problem)
                    row[each], row[f"{each}, of 16"] = single, several
                row["HEFT"] = solved(problem, solvers.HEFT())
                row["m-ETF"] = solved(problem, solvers.METF())
                row["best single device"] = solved(problem, solvers.EverySingleDevice())
                row["auto"] = solved(problem, solvers.Auto(), stop=pw.MaxTime(given.auto), seed=0)
                found.append(row)
        table(f"{cluster}: {len(found)} test graphs of {given.families}", ratios(found))


def cost(given: argparse.Namespace) -> None:
    """Plans and episodes until Placeto reaches what ColocRL ends with."""
    columns = ["row", "ColocRL ends at, s", "its plans", "Placeto ends at, s", "plans to reach it"]
    columns += ["episodes", "ratio of plans", "ratio of episodes", "the paper's ratio"]
    print("| " + " | ".join(columns) + " |\n" + "|---" * len(columns) + "|")
    for line in given.rows.split(","):
        network, _, count = line.partition(":")
        on = pw.Cluster.parse(f"{count}xK80+cpu")
        problem = pw.Problem(pw.zoo.load(network, note=print), on, discipline="ready")
        for seed in range(given.seeds):
            ends = trained(
                recipe("colocrl", groups=given.groups), [problem], given.own, given, seed
            )
            theirs = ends.environments[0]
            name = "placeto-steps" if given.steps else "placeto"
            made = recipe(name, groups=given.groups)
            each = given.groups + 1 if given.steps else 1
            mine = trained(made, [problem], given.own * each, given, seed).environments[0]
            reached = [plans for plans, _, value in mine.history if value <= theirs.key[1]]
            final = theirs.history[-1][0]
            plans = f"{reached[0]:,}" if reached else "never"
            episodes = f"{reached[0] / each:,.0f}" if reached else "never"
            by_plan = f"{final / reached[0]:.2f}" if reached else "–"
            by_episode = f"{final * each / reached[0]:.2f}" if reached else "–"
            first, second = PAPER.get(line, (0, 0))
            paper = f"{second / first:.2f}" if first else "–"
            cells = [line, f"{theirs.key[1]:.4g}", f"{final:,}", f"{mine.key[1]:.4g}", plans]
            print("| " + " | ".join([*cells, episodes, by_plan, by_episode, paper]) + " |")


def parts(given: argparse.Namespace) -> None:
    """What rewards per step and messages are worth."""
    final = recipe("placeto", groups=given.groups)
    final = replace(final, imitate=recipe("placeto-steps").imitate)  # the same but for the reward
    steps = recipe("placeto-steps", groups=given.groups)
    silent = replace(final, shape=replace(final.shape, rounds=0))  # type: ignore[type-var]
    each = given.groups + 1
    for name in given.families.split(","):
        found: list[dict[str, float]] = []
        for problem in problems(name, "test", "2xK80", given.tests):
            row = {}
            for label, made, plans in (
                ("at the end", final, given.own),
                ("at the end, no messages", silent, given.own),
                ("per step, equal plans", steps, given.own),
                ("per step, equal episodes", steps, given.own * each),
            ):
                trainer = trained(made, [problem], plans, given)
                row[label] = trainer.environments[0].key[1]
                row[f"{label}: likeliest"] = trainer.rows[-1].likeliest
            row["auto"] = solved(problem, solvers.Auto(), stop=pw.MaxTime(given.auto), seed=0)
            found.append(row)
        table(f"{name}: {len(found)} test graphs, {given.own:,} plans or episodes", ratios(found))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    sections = {"families": families, "devices": devices, "cost": cost, "parts": parts}
    parser.add_argument("section", choices=sections)
    parser.add_argument("--families", default="cifar10,ptb,nmt")
    parser.add_argument("--tests", type=int, default=8, help="test graphs of each family")
    parser.add_argument("--groups", type=int, default=64)
    parser.add_argument("--plans", type=int, default=20_000, help="to train on a family")
    parser.add_argument("--own", type=int, default=4000, help="to train on one graph")
    parser.add_argument("--rows", default=",".join(PAPER))
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--steps", action="store_true", help="of cost: rewards per step")
    parser.add_argument("--auto", default="10s")
    parser.add_argument("--device", default="auto", help="cpu, cuda, or a GPU if there is one")
    given = parser.parse_args()
    given.auto = pw.units.parse_seconds(given.auto)
    sections[given.section](given)


if __name__ == "__main__":
    main()
