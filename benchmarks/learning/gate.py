"""Whether rewards alone teach ColocRL when plans are not scarce: 5,000 to 200,000 of them.

    python -m benchmarks.learning.gate tiny        the optimum of a problem that can be enumerated
    python -m benchmarks.learning.gate run --jobs 2
    python -m benchmarks.learning.gate report
    python -m benchmarks.learning.gate figures --folder out/figures

ColocRL places 64 groups of ops that devices run in the plan's order, so that plans are judged in
lanes (`simulator/evaluation.py`). It learns from rewards alone, without noise on its logits: all
plans of an update share one baseline, the gradient of the entropy is clipped apart from that of the
rewards (`BatchedReinforce`), and the entropy's weight falls to 0. `mean` maximises the mean reward,
`top` that of the best 5 % of each update (`TopShare`). `never learns` samples as they do without
the update; `noise only` also never learns, with the noise that `colocrl` ships with. Local search
moves the same groups with as many plans. The entropy's weight was chosen on transformer-xl-2, which
is no row here, with 12,000 plans, one seed and one rate. Runs continue from their checkpoints.
"""

from __future__ import annotations

import statistics
from dataclasses import asdict, dataclass, replace
from functools import partial
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

import placewright as pw
from benchmarks.common import (
    ResultFile,
    Table,
    add_jobs,
    add_results,
    chosen,
    int_list,
    make_parser,
    name_list,
    read_rows,
    run_jobs,
    seed_range,
)
from benchmarks.learning.curves import Curve, best_after, draw_curves
from benchmarks.learning.resumable_runs import search_row, train_row
from placewright.policies.grouping import group_ops
from placewright.solvers import LocalSearch
from placewright.training import (
    BatchNormalised,
    Constant,
    Environment,
    Linear,
    Recipe,
    Trainer,
    find_recipe,
)
from placewright.training.baselines import TopShare
from placewright.training.batched_reinforce import BatchedReinforce
from placewright.training.control_algorithms import NoUpdate

if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterable, Sequence

    from numpy.typing import NDArray

    Rows = list[dict[str, Any]]

RESULTS = "benchmarks/results/raw/2026-11-18-gate.jsonl"
ROWS = {"inception-v3": "2xK80+Haswell", "rnnlm-2": "2xK80+Haswell"}
"""Networks and their clusters."""
GROUPS, HIDDEN, PLANS = 64, 64, 200_000
TOP_SHARE = 0.05
LEARNING_RATE, ENTROPY_BONUS = 1e-3, 0.03
NOISE = 4.0
MARKS = (5_000, 10_000, 20_000, 50_000, 100_000, 200_000)
SEARCH = "local search"
NULLS = ("never learns", "noise only")
LEARNING = ("top", "mean")
ARMS = (SEARCH, *NULLS, *LEARNING)
TINY = "layered:ops=14,width=3,seed=2"
"""A problem of six groups on three devices: 729 plans."""


def gate_recipe(arm: str, batch: int, groups: int = GROUPS, hidden: int = HIDDEN) -> Recipe:
    """ColocRL that learns from rewards alone, or not at all."""
    recipe = replace(
        find_recipe("colocrl", groups, hidden),
        algorithm=BatchedReinforce(),
        baseline=BatchNormalised,
        episodes=batch,
        learning_rate=Constant(LEARNING_RATE),
        logit_noise=Constant(0.0),
        self_imitation=Constant(0.0),
        entropy_bonus=Linear(ENTROPY_BONUS, 0.0),
    )
    if arm in NULLS:
        noise = NOISE if arm == "noise only" else 0.0
        return replace(recipe, algorithm=NoUpdate(), logit_noise=Constant(noise))
    return replace(recipe, baseline=partial(TopShare, TOP_SHARE)) if arm == "top" else recipe


@dataclass(frozen=True)
class Run:
    """One arm on one row.

    Args:
        batch: Plans of an update; 0 for local search.
        checkpoints: The folder of the checkpoints of all runs.
    """

    network: str
    cluster: str
    arm: str
    batch: int
    seed: int
    plans: int
    hidden: int = HIDDEN
    checkpoints: str = "out/gate"

    @property
    def key(self) -> tuple[Any, ...]:
        return key_of(asdict(self))

    def problem(self) -> pw.Problem:
        return pw.Problem(pw.zoo.load(self.network), pw.Cluster.parse(self.cluster))

    def __call__(self) -> dict[str, Any]:
        problem, own = self.problem(), asdict(self)
        del own["checkpoints"]
        if self.arm == SEARCH:
            search = LocalSearch(
                partial(group_ops, rule="colocation", count=GROUPS), with_priorities=False
            )
            return {**own, **search_row(problem, search, self.plans, self.seed)}
        recipe = gate_recipe(self.arm, self.batch, hidden=self.hidden)
        trainer = Trainer([Environment(problem)], recipe, self.seed, self.plans, device="cpu")
        name = "-".join(str(part) for part in self.key).replace(" ", "-")
        return {**own, **train_row(trainer, Path(self.checkpoints) / name)}


def key_of(row: dict[str, Any]) -> tuple[Any, ...]:
    """What distinguishes a run from others, given its line."""
    return tuple(row[name] for name in Run.__dataclass_fields__ if name != "checkpoints")


def needed_runs(arguments: argparse.Namespace) -> list[Run]:
    """All runs, the quick ones first and seed by seed."""
    runs = []
    for seed, arm, batch, network in product(
        arguments.seeds, arguments.arms, arguments.batches, arguments.rows
    ):
        size = 0 if arm == SEARCH else arguments.batches[0] if arm in NULLS else batch
        shape = size, seed, arguments.plans, arguments.hidden, str(arguments.checkpoints)
        runs.append(Run(network, ROWS[network], arm, *shape))
    return list(dict.fromkeys(runs))


def run(arguments: argparse.Namespace) -> None:
    def describe(row: dict[str, Any]) -> str:
        names = ", ".join(str(row[name]) for name in ("network", "arm", "batch", "seed"))
        return f"{names}: {row['best']:.4f}, {row['rate']:,.0f} plans per CPU s"

    results = ResultFile(arguments.out, key_of)
    run_jobs(needed_runs(arguments), results, arguments.jobs, describe)


def comparable(rows: Rows, plans: int, hidden: int) -> Rows:
    """Runs with that many plans, and of arms without a schedule also longer ones, cut there."""
    found = {}
    for row in sorted(rows, key=lambda row: -int(row["plans"])):
        if row["hidden"] != hidden or row["plans"] < plans:
            continue
        if row["plans"] == plans or row["arm"] in (SEARCH, *NULLS):
            curve = [point for point in row["curve"] if point[0] <= plans]
            learned = [point for point in row.get("learned", []) if point[0] <= plans]
            key = row["network"], row["arm"], row["batch"], row["seed"]
            found[key] = {**row, "curve": curve, "learned": learned}
    return list(found.values())


def report(arguments: argparse.Namespace) -> None:
    """The best plan after so many plans, medians over seeds, and what the policy itself does."""
    rows = comparable(read_rows(arguments.out), arguments.plans, arguments.hidden)
    marks = [mark for mark in MARKS if mark <= arguments.plans]
    print_arms(rows, ARMS, marks, "plans per CPU s")


def print_arms(
    rows: Rows,
    arms: Sequence[str],
    marks: Sequence[int],
    rate: str,
    networks: Iterable[str] = ROWS,
) -> None:
    """A table with a line for each row, arm and size of updates.

    Args:
        rate: The name of the column of plans per second.
    """
    columns = ["row", "arm", "plans an update", "seeds", *(f"{mark:,}" for mark in marks)]
    columns += ["mean, first to last", "argmax at the end", "entropy at the end"]
    table = Table(*columns, "do not fit", rate)
    for network, arm in product(networks, arms):
        for batch in sorted({row["batch"] for row in rows if row["arm"] == arm}):
            kind = network, arm, batch
            mine = [row for row in rows if (row["network"], row["arm"], row["batch"]) == kind]
            if mine:
                after = [[best_after(row["curve"], mark) for row in mine] for mark in marks]
                cells = [network, arm, batch or "–", len(mine)]
                table.row(*cells, *map(_spread, after), *_learned(mine))


def _spread(values: list[float]) -> str:
    middle = f"{statistics.median(values):.4f}"
    if max(values) - min(values) < 5e-5:
        return middle
    return f"{middle} ({min(values):.4f}–{max(values):.4f})"


def _learned(rows: list[dict[str, Any]]) -> list[str]:
    rate = f"{statistics.median(row['rate'] for row in rows):,.0f}"
    if not rows[0]["learned"]:
        return ["–"] * 4 + [rate]

    def middle(point: int, column: int) -> float:
        return statistics.median(row["learned"][point][column] for row in rows)

    unfit = float(np.mean([point[4] for row in rows for point in row["learned"]]))
    cells = [f"{middle(0, 1):.3f} to {middle(-1, 1):.3f}", f"{middle(-1, 2):.4f}"]
    return [*cells, f"{middle(-1, 3):.1%}", f"{unfit:.1%}", rate]


def figures(arguments: argparse.Namespace) -> None:
    rows = comparable(read_rows(arguments.out), arguments.plans, arguments.hidden)
    arguments.folder.mkdir(parents=True, exist_ok=True)
    path = arguments.folder / "gate.svg"
    title = "ColocRL from rewards alone: best step time so far, in seconds; median of seeds"
    path.write_text(draw_curves(title, arm_panels(rows, ARMS), arguments.plans, first=100))
    print(path)


def arm_panels(rows: Rows, arms: Sequence[str]) -> dict[str, list[Curve]]:
    """The curves of each network, arm by arm."""
    panels = {}
    for network, cluster in ROWS.items():
        kinds = dict.fromkeys((row["arm"], row["batch"]) for row in rows)
        panels[f"{network} on {cluster}, in order"] = [
            Curve(
                f"{arm}, {batch:,}" if arm in LEARNING else arm,
                [
                    row["curve"]
                    for row in rows
                    if (row["network"], row["arm"], row["batch"]) == (network, arm, batch)
                ],
            )
            for arm, batch in sorted(kinds, key=lambda kind: (arms.index(kind[0]), kind[1]))
        ]
    return panels


def tiny_problem() -> pw.Problem:
    """A problem whose plans can be enumerated."""
    return pw.Problem(pw.zoo.load(TINY), pw.Cluster.parse("3xP100"))


def all_group_choices(
    problem: pw.Problem, groups: int
) -> tuple[NDArray[np.int32], NDArray[np.int32]]:
    """Plans × groups: every choice of devices for ColocRL's groups; and plans × ops."""
    grouping = group_ops(problem, "colocation", groups)
    devices = range(problem.arrays.devices)
    choices = np.array(list(product(devices, repeat=len(grouping))), dtype=np.int32)
    return choices, problem.legalize(grouping.expand(choices))


def tiny(arguments: argparse.Namespace) -> None:
    """The optimum among all plans, and the best and argmax plan of each arm."""
    problem = tiny_problem()
    values = np.sort(pw.judge(problem, all_group_choices(problem, 6)[1]).value)
    print(f"{len(values)} plans: best {values[0]:.6g} s, median {np.median(values):.6g} s\n")
    table = Table("arm", "seed", "plans", "best / optimum", "argmax / optimum", "entropy")
    for arm, seed in product(("never learns", "mean", "top"), arguments.seeds):
        trainer = train_tiny(problem, arm, seed)
        last = trainer.log[-1]
        best = trainer.environments[0].best_key[1] / values[0]
        cells = f"{best:.4f}", f"{last.greedy / values[0]:.4f}", f"{last.entropy:.1%}"
        table.row(arm, seed, trainer.evaluations, *cells)


def train_tiny(problem: pw.Problem, arm: str, seed: int, plans: int = 9600) -> Trainer:
    """Train on the problem that can be enumerated; an update is 64 plans."""
    recipe = replace(gate_recipe(arm, 64, 6, 16), learning_rate=Linear(1e-2, 1e-3))
    trainer = Trainer([Environment(problem)], recipe, seed, plans, device="cpu")
    trainer.run()
    return trainer


def main(argv: Sequence[str] | None = None) -> None:
    parser = make_parser(__doc__, __spec__.name)
    actions = {"tiny": tiny, "run": run, "report": report, "figures": figures}
    option = parser.add_argument
    option("action", choices=actions, help="what to do")
    option("--rows", type=name_list, default=[*ROWS], help="networks to run")
    option("--arms", type=name_list, default=[*ARMS], help="arms to run")
    option("--seeds", type=seed_range, default=range(2), help="first:last + 1")
    option("--batches", type=int_list, default=[256, 4096], help="plans of an update")
    option("--plans", type=int, default=PLANS, help="plans that each run judges")
    option("--hidden", type=int, default=HIDDEN, help="size of the policy's hidden states")
    option("--checkpoints", type=Path, default=Path("out/gate"), help="folder of checkpoints")
    option("--folder", type=Path, default=Path("benchmarks/results/figures"), help="of figures")
    add_results(parser, RESULTS)
    add_jobs(parser, 1)
    arguments = parser.parse_args(argv)
    chosen(parser, arguments.rows, ROWS)
    chosen(parser, arguments.arms, ARMS)
    actions[arguments.action](arguments)


if __name__ == "__main__":
    main()
