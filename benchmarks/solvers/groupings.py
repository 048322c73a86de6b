"""How groupings of ops compare, with the same local search and budget for each.

python -m benchmarks.solvers.groupings nmt-4 --on 2xP100+cpu --groups 64
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import placewright as pw
from benchmarks.common import Table, add_seed, make_parser
from placewright.solvers import LocalSearch, SingleDevices
from placewright.transforms import Grouping, by_colocation, by_heavy_edges, by_module_count
from placewright.units import format_seconds

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence


def groupings(count: int) -> dict[str, Callable[[pw.Problem], Grouping]]:
    """The groupings by name, with about `count` groups where that can be chosen."""
    return {
        "none": lambda problem: Grouping.of("none", problem, range(len(problem.graph))),
        "colocation": by_colocation,
        "module": lambda problem: by_module_count(problem, count),
        "coarse": lambda problem: by_heavy_edges(problem, count),
    }


def main(argv: Sequence[str] | None = None) -> None:
    parser = make_parser(__doc__, __spec__.name)
    parser.add_argument("model", help="a network of the zoo")
    parser.add_argument("--on", default="2xP100+cpu", help="the cluster")
    parser.add_argument("--groups", type=int, default=64, help="groups that coarsening makes")
    parser.add_argument("--evaluations", type=int, default=4000, help="plans per grouping")
    add_seed(parser)
    arguments = parser.parse_args(argv)
    problem = pw.Problem(pw.zoo.load(arguments.model), pw.Cluster.parse(arguments.on))
    single = pw.solve(problem, SingleDevices())
    stop = pw.MaxEvaluations(arguments.evaluations)
    table = Table("grouping", "groups", "convex", "step time", "one device / it", "fits")
    for name, group in groupings(arguments.groups).items():
        grouping = group(problem)
        search = LocalSearch(group, max_plans=arguments.evaluations)
        result = pw.solve(problem, search, stop, arguments.seed)
        table.row(
            name,
            f"{len(grouping):,}",
            "yes" if grouping.is_convex(problem) else "no",
            format_seconds(result.step_time),
            f"{single.step_time / result.step_time:.2f}",
            "yes" if result.fits else "no",
        )
    print(f"\nbest single device: {format_seconds(single.step_time)}")


if __name__ == "__main__":
    main()
