"""Does Hierarchical's grouper learn? The recipe `hierarchical-joint` against its controls.

    python -m benchmarks.learning.grouper --networks nmt:graph=3 --seeds 0:5 --plans 3200

All arms have the same seeds, budget and number of groups, and learn from rewards alone.

`joint`: grouper and placer learn together; initial groups are random.
`sampled`: groups are sampled as the fresh grouper does, and the placer alone learns.
`never learns`: neither learns; what sampling alone finds.
`random`, `coarse`, `colocation`: groups are fixed by that rule, and the placer alone learns.

The table has medians and ranges over seeds, as shares of the serial time on the fastest device: of
the best plan, of the greedy plan at the end, and of the mean plan of the last ten updates; then
how many units the grouper has moved to another group, how many groups it uses, and its entropy as a
share of a uniform choice's.
"""

from __future__ import annotations

import statistics
import time
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any

import placewright as pw
from benchmarks.common import (
    ResultFile,
    Table,
    add_jobs,
    add_results,
    chosen,
    make_parser,
    name_list,
    run_jobs,
    seed_range,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from placewright.training import Recipe

NETWORKS = ("nmt:graph=3", "cifar10:graph=3", "ptb:graph=3")
FIXED = ("random", "coarse", "colocation")
ARMS = ("joint", "sampled", "never learns", *FIXED)
FIRM = 1000.0  # nats towards a fixed group


@dataclass(frozen=True)
class GrouperJob:
    """One training run of an arm."""

    arm: str
    network: str
    cluster: str
    plans: int
    groups: int
    seed: int

    @property
    def key(self) -> tuple[Any, ...]:
        return key_of(asdict(self))

    def recipe(self) -> Recipe:
        """The recipe `hierarchical-joint`, or what the arm changes of it."""
        from placewright.training import find_recipe
        from placewright.training.schedules import Constant

        recipe = find_recipe("hierarchical-joint", groups=self.groups)
        changes: dict[str, Any] = {}
        if self.arm == "sampled":
            changes = {"learn_groups": False}
        elif self.arm in FIXED:
            changes = {"learn_groups": False, "locality": FIRM, "home": self.arm}
        elif self.arm == "never learns":
            recipe = replace(recipe, learning_rate=Constant(0.0))
        return replace(recipe, policy_config=replace(recipe.policy_config, **changes))  # type: ignore[type-var]

    def __call__(self) -> dict[str, Any]:
        from placewright.training import Environment, Trainer

        worked = time.process_time()
        cluster = pw.Cluster.parse(self.cluster)
        problem = pw.Problem(pw.zoo.load(self.network), cluster, discipline="ready")
        trainer = Trainer(
            [Environment(problem)], self.recipe(), self.seed, self.plans, device="cpu"
        )

        def greedy_groups() -> Any:
            return trainer.policy.act(problem, 1, 0, greedy=True).actions["group"][0]

        first = greedy_groups()
        trainer.run()
        last, serial = greedy_groups(), trainer.environments[0].reference_seconds
        overflow, best = trainer.environments[0].best_key
        return {
            **asdict(self),
            "best": best / serial,
            "over": overflow,
            "greedy": trainer.log[-1].greedy / serial,
            "mean": statistics.mean(row.mean for row in trainer.log[-10:]) / serial,
            "units": len(first),
            "moved": int((first != last).sum()),
            "used": len(set(last.tolist())),
            "entropy": trainer.log[-1].stats["entropy/groups"],
            "work": round(time.process_time() - worked, 1),  # CPU seconds
        }


def key_of(row: dict[str, Any]) -> tuple[Any, ...]:
    return tuple(row[name] for name in GrouperJob.__dataclass_fields__)


def show(rows: Sequence[dict[str, Any]], networks: Sequence[str], arms: Sequence[str]) -> None:
    for network in networks:
        found = [row for row in rows if row["network"] == network]
        if not found:
            continue
        units = found[0]["units"]
        columns = ("arm", "best", "greedy", "mean", f"moved of {units}", "used", "entropy", "seeds")
        table = Table(*columns, title=network)
        for arm in arms:
            runs = [row for row in found if row["arm"] == arm]
            if runs:
                figures = (spread([row[name] for row in runs]) for name in ("best", "greedy"))
                mean, entropy = (
                    f"{statistics.median(row[name] for row in runs):.3f}"
                    for name in ("mean", "entropy")
                )
                moved, used = (
                    f"{statistics.median(row[name] for row in runs):g}"
                    for name in ("moved", "used")
                )
                table.row(arm, *figures, mean, moved, used, entropy, len(runs))


def spread(values: Sequence[float]) -> str:
    """The median, and the range."""
    return f"{statistics.median(values):.3f} ({min(values):.3f} to {max(values):.3f})"


def main(argv: Sequence[str] | None = None) -> None:
    parser = make_parser(__doc__, __spec__.name)
    option = parser.add_argument
    option("--networks", type=name_list, default=list(NETWORKS), help="networks of the zoo")
    option("--arms", type=name_list, default=list(ARMS), help="arms to run")
    option("--on", default="2xK80+cpu", help="cluster")
    option("--plans", type=int, default=3200, help="evaluations of each run")
    option("--groups", type=int, default=32, help="groups of the grouper")
    option("--seeds", type=seed_range, default=range(5), help="seeds of each arm")
    add_jobs(parser, 1)
    add_results(parser, "runs/grouper.jsonl")
    arguments = parser.parse_args(argv)
    arms = chosen(parser, arguments.arms, ARMS)
    jobs = [
        GrouperJob(arm, network, arguments.on, arguments.plans, arguments.groups, seed)
        for network in arguments.networks
        for seed in arguments.seeds
        for arm in arms
    ]

    def describe(row: dict[str, Any]) -> str:
        return f"{row['network']} {row['arm']} {row['seed']}: best {row['best']:.3f}"

    keys = {job.key for job in jobs}
    rows = run_jobs(jobs, ResultFile(arguments.out, key_of), arguments.jobs, describe)
    show([row for row in rows if key_of(row) in keys], arguments.networks, arms)


if __name__ == "__main__":
    main()
