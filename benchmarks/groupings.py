"""Compares groupings of ops: the same local search and budget on each.

    python benchmarks/groupings.py nmt-4 --on 2xP100+cpu --groups 64 --evaluations 4000
"""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

import placewright as pw
from placewright.solvers import LocalSearch, SingleDevices
from placewright.transforms import Grouping, by_colocation, by_heavy_edges, by_module_count
from placewright.units import format_seconds

if TYPE_CHECKING:
    from collections.abc import Callable


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", help="a built-in model")
    parser.add_argument("--on", default="2xP100+cpu", help="a cluster")
    parser.add_argument("--groups", type=int, default=64, help="groups that coarsening makes")
    parser.add_argument("--evaluations", type=int, default=4000, help="plans for each grouping")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    problem = pw.Problem(pw.zoo.load(options.model), pw.Cluster.parse(options.on))
    single = pw.solve(problem, SingleDevices())
    print("grouping      groups  convex    step time   vs one  fits")
    for name, group in groupings(options.groups).items():
        grouping = group(problem)
        search = LocalSearch(group, max_plans=options.evaluations)
        result = pw.solve(problem, search, pw.MaxEvaluations(options.evaluations), options.seed)
        print(
            f"{name:<12} {len(grouping):>7,} {'yes' if grouping.is_convex(problem) else 'no':>7} "
            f"{format_seconds(result.step_time):>12} {single.step_time / result.step_time:>7.2f}x "
            f"{'yes' if result.fits else 'no':>5}"
        )
    print(f"best single device: {format_seconds(single.step_time)}")


def groupings(count: int) -> dict[str, Callable[[pw.Problem], Grouping]]:
    """The groupings by name, with about `count` groups where that can be chosen."""
    return {
        "none": lambda problem: Grouping.of("none", problem, range(len(problem.graph))),
        "colocation": by_colocation,
        "module": lambda problem: by_module_count(problem, count),
        "coarse": lambda problem: by_heavy_edges(problem, count),
    }


if __name__ == "__main__":
    main()
