"""Placeto's claims on our simulator: unseen graphs, the cost of learning, what each part does.

    python -m benchmarks.generalisation.placeto_claims --only families --families ptb --tests 2
    python -m benchmarks.generalisation.placeto_claims --only graphs --graphs FOLDER

Step times are simulated as TensorFlow's executor runs (`ready`), at most `--groups` groups. Graphs
of the zoo are captured once into `--graphs`, a folder that can be copied to a machine that cannot
capture them; `--only graphs` does no more than that.

`families`: step time over the best known plan of each test graph (the median, and the range from
best to worst graph) on two K80. Zero-shot policies are trained on the family's 24 training graphs
with `--plans` plans and never see the test graphs. A policy's figure is its greedy plan; `of 16` is
the best of that and 15 sampled plans. A policy trained on the graph itself evaluates `--own` plans.
`devices`: the shipped policies, which serve any devices, on clusters that they never saw, next to
one trained on that very graph and cluster with `--any` plans. `ships` is the one plan that a policy
answers with, without any evaluation: for `pair` the greedy plan, for `placeto` the one of 32
candidates that its own list schedule finishes first. `of 16` is the best of that and 15 sampled
plans; `place --method NAME` is what that command finds: the answer and 63 sampled plans, each in
the policy's own order and in the graph's.
`cost`: plans and episodes until Placeto reaches ColocRL's final step time, next to the paper's.
`parts`: rewards per step or at the end, at equal plans and at equal episodes; with and without
message passing.
`joint`: groups chosen with the placement against fixed groups, at equal plans.
`embedding`: policies for any devices that observe more or less of the graph, trained alike on
problems of all families (`benchmarks.train.train_policies`), next to the shipped pair policy; they
are saved in the folder `policies` next to `--graphs`.
"""

from __future__ import annotations

import statistics
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks.common import (
    Table,
    add_jobs,
    add_results,
    chosen,
    make_parser,
    name_list,
)
from benchmarks.generalisation.jobs import (
    CLUSTERS,
    MIX,
    SEEN,
    SHIPS,
    SOLVERS,
    TRAIN,
    Job,
    cached_graph,
    run_all,
)
from benchmarks.generalisation.tables import PAPER, print_ratio, print_ratios, ratios, select

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable, Iterator, Sequence

    Row = dict[str, Any]

UNSEEN = ("5xK80", "6xP100+cpu", "3xV100+2xP100+cpu", "2x(2xP100+cpu)@25GbE")
"""Clusters that no shipped policy was trained on; see `train_policies.random_cluster`."""
PAIR_OF_K80 = "2xK80"
SHIPPED = ("pair", "placeto")
"""The shipped policies that are compared; GO has a table of its own."""

FIXED, JOINT = "any, fixed groups", "any, joint"
GROUPS = (64, 300)
"""Numbers of fixed groups; joint groups are unions of those of the last."""
GROUPS_ON = ("2xK80", "4xK80+cpu")

ALONE = "placeto, end alone"
SILENT = "placeto, no messages"
STEPS = "placeto-steps"


class Settings:
    """What the command line says, and the jobs that follow from it."""

    def __init__(self, arguments: argparse.Namespace) -> None:
        self.arguments = arguments
        self.families: list[str] = arguments.families
        self.lines: list[str] = arguments.rows

    def job(self, what: str, network: str, graph: int, cluster: str, plans: int, **how: Any) -> Job:
        how = {"groups": self.arguments.groups, "device": self.arguments.device, **how}
        return Job(what, network, graph, cluster, plans, folder=self.arguments.graphs, **how)

    def tests(self, most: int | None = None) -> Iterator[tuple[str, int]]:
        """Families and numbers of their test graphs."""
        count = self.arguments.tests if most is None else min(most, self.arguments.tests)
        for name in self.families:
            yield from ((name, graph) for graph in range(count))


def families(settings: Settings) -> list[Job]:
    arguments, jobs = settings.arguments, []
    for seed in range(arguments.seeds):
        for name in settings.families:
            for what in ("placeto", "colocrl, padded"):
                plans, how = arguments.plans, {"seed": seed, "tests": arguments.tests}
                jobs.append(settings.job(what, name, TRAIN, PAIR_OF_K80, plans, **how))
    for name, graph in settings.tests():
        jobs.append(settings.job("placeto", name, graph, PAIR_OF_K80, arguments.own))
        jobs.append(settings.job("colocrl, padded", name, graph, PAIR_OF_K80, arguments.own))
        jobs.append(settings.job(SOLVERS, name, graph, PAIR_OF_K80, arguments.auto))
        jobs += [settings.job(f"{SHIPS}{each}", name, graph, PAIR_OF_K80, 0) for each in SHIPPED]
    return jobs


def show_families(settings: Settings, rows: Sequence[Row]) -> None:
    for name in settings.families:
        found = []
        for graph in range(settings.arguments.tests):
            row: dict[str, float] = {}
            for each in select(rows, network=name, cluster=PAIR_OF_K80):
                _add_figures(row, each, graph)
            found.append(row)
        if not all(found):
            continue
        title = (
            f"{name}: {len(found)} test graphs, {PAIR_OF_K80}, {settings.arguments.groups} groups"
        )
        print_ratios(title, ratios(found))
        print_ratio(found, "Placeto, zero-shot", "Placeto, on the graph")
        print_ratio(found, "Placeto, zero-shot", "Placeto, on the graph, greedy")
        print_ratio(found, "ColocRL, zero-shot", "ColocRL, on the graph")


def _add_figures(row: dict[str, float], each: Row, graph: int) -> None:
    """Add a line's figures for a test graph to its row; of several seeds the first counts."""
    label = {"placeto": "Placeto", "colocrl, padded": "ColocRL"}.get(each["what"], "")
    if each["graph"] == TRAIN and each["seed"] == 0 and graph < len(each.get("placed", [])):
        row[f"{label}, zero-shot"], row[f"{label}, zero-shot, of 16"] = each["placed"][graph]
    if each["graph"] != graph:
        return
    if each["what"] == SOLVERS:
        row |= {key: each[key] for key in each if key in METHODS}
    elif each["what"].startswith(SHIPS):
        name = each["what"].removeprefix(SHIPS)
        row[f"{name}, ships"], row[f"{name}, ships, of 16"] = each["likeliest"], each["of 16"]
        row[f"place --method {name}"] = each["method"]
        if "argmax" in each:
            row[f"{name}, ships, greedy"] = each["argmax"]
    elif label:
        row[f"{label}, on the graph"] = each["best"]
        row[f"{label}, on the graph, greedy"] = each["likeliest"]


METHODS = ("random", "best single device", "expert", "HEFT", "m-ETF", "auto")


def devices(settings: Settings) -> list[Job]:
    arguments, jobs = settings.arguments, []
    for cluster in UNSEEN:
        for name, graph in settings.tests(arguments.few):
            if arguments.any:
                jobs.append(settings.job("placeto-any", name, graph, cluster, arguments.any))
            jobs.append(settings.job(SOLVERS, name, graph, cluster, arguments.auto))
            jobs += [settings.job(f"{SHIPS}{each}", name, graph, cluster, 0) for each in SHIPPED]
    return jobs


def show_devices(settings: Settings, rows: Sequence[Row]) -> None:
    for cluster in UNSEEN:
        found = []
        for name, graph in settings.tests(settings.arguments.few):
            row: dict[str, float] = {}
            for each in select(rows, network=name, cluster=cluster, graph=graph):
                if each["what"] == "placeto-any":
                    row["placeto, on the graph"] = each["best"]
                    row["placeto, on the graph, greedy"] = each["likeliest"]
                else:
                    _add_figures(row, each, graph)
            found.append(row)
        if all(found):
            title = f"{cluster}: {len(found)} test graphs of {', '.join(settings.families)}"
            print_ratios(title, ratios(found))
            lines = ("placeto, ships", "placeto, ships, greedy", "placeto, ships, of 16")
            for line in (*lines, "place --method placeto"):
                print_ratio(found, line, "placeto, on the graph")


def cost(settings: Settings) -> list[Job]:
    arguments, jobs = settings.arguments, []
    for line in settings.lines:
        network, _, count = line.partition(":")
        cluster = f"{count}xK80+cpu"
        for seed in range(arguments.seeds):
            for what in ("colocrl", "placeto"):
                plans = arguments.reach if what == "colocrl" else arguments.own
                jobs.append(settings.job(what, network, 0, cluster, plans, seed=seed))
            steps = arguments.steps * (arguments.groups + 1)
            if steps:
                jobs.append(settings.job(STEPS, network, 0, cluster, steps, seed=seed))
    return jobs


def show_cost(settings: Settings, rows: Sequence[Row]) -> None:
    columns = ["row", "seed", "ColocRL ends at, s", "its plans", "Placeto", "ends at, s"]
    columns += ["plans to reach it", "episodes", "ratio of plans", "ratio of episodes"]
    title = "Cost to reach ColocRL's final step time"
    table = Table(*columns, "the paper's ratio", title=title)
    for line in settings.lines:
        network, _, count = line.partition(":")
        mine = select(rows, network=network, cluster=f"{count}xK80+cpu")
        for theirs in select(mine, what="colocrl"):
            final = theirs["history"][-1][0]
            first, second = PAPER.get(line, (1, 0))
            for each in select(mine, seed=theirs["seed"]):
                if each["what"] not in ("placeto", STEPS):
                    continue
                plans = each["groups found"] + 1 if each["what"] == STEPS else 1
                reached = [at for at, best in each["history"] if best <= theirs["best"]]
                cells = [line, str(theirs["seed"]), f"{theirs['best']:.4g}", f"{final:,}"]
                cells += ["per step" if plans > 1 else "at the end", f"{each['best']:.4g}"]
                if reached:
                    at = reached[0]
                    cells += [f"{at:,}", f"{at / plans:,.0f}", f"{final / at:.2f}"]
                    cells += [f"{final * plans / at:.2f}"]
                else:
                    cells += [f"not in {each['judged']:,}", "–", "–", "–"]
                table.row(*cells, f"{second / first:.2f}")


def parts(settings: Settings) -> list[Job]:
    arguments, jobs = settings.arguments, []
    for name, graph in settings.tests(arguments.few):
        for what, plans in (
            (ALONE, arguments.own),
            (SILENT, arguments.own),
            (STEPS, arguments.own),
            (STEPS, arguments.steps * (arguments.groups + 1)),
        ):
            if plans:
                jobs.append(settings.job(what, name, graph, PAIR_OF_K80, plans))
        if arguments.steps:
            jobs.append(settings.job(ALONE, name, graph, PAIR_OF_K80, arguments.steps))
        jobs.append(settings.job(SOLVERS, name, graph, PAIR_OF_K80, arguments.auto))
    return jobs


def show_parts(settings: Settings, rows: Sequence[Row]) -> None:
    arguments = settings.arguments
    each = arguments.groups + 1
    labels = {
        (ALONE, arguments.own): f"at the end, {arguments.own:,} plans",
        (SILENT, arguments.own): f"at the end, no message passing, {arguments.own:,} plans",
        (STEPS, arguments.own): f"per step, {arguments.own:,} plans",
        (ALONE, arguments.steps): f"at the end, {arguments.steps:,} episodes",
        (STEPS, arguments.steps * each): f"per step, {arguments.steps:,} episodes",
    }
    for name in settings.families:
        found = []
        for graph in range(min(arguments.few, arguments.tests)):
            row: dict[str, float] = {}
            for line in select(rows, network=name, graph=graph, cluster=PAIR_OF_K80):
                if label := labels.get((line["what"], line["plans"])):
                    row[label], row[f"{label}: greedy"] = line["best"], line["likeliest"]
                elif line["what"] == SOLVERS and "auto" in line:
                    row["auto"] = line["auto"]
            found.append(row)
        if all(found):
            print_ratios(f"{name}: {len(found)} test graphs, {PAIR_OF_K80}", ratios(found))


def joint(settings: Settings) -> list[Job]:
    arguments, jobs = settings.arguments, []
    for cluster in GROUPS_ON:
        for name, graph in settings.tests(arguments.few):
            for what, groups in (*((FIXED, each) for each in GROUPS), (JOINT, GROUPS[-1])):
                for seed in range(arguments.seeds):
                    how = {"groups": groups, "seed": seed, "device": "cpu"}
                    jobs.append(settings.job(what, name, graph, cluster, arguments.joint, **how))
    return jobs


def show_joint(settings: Settings, rows: Sequence[Row]) -> None:
    for cluster in GROUPS_ON:
        found = []
        for name, graph in settings.tests(settings.arguments.few):
            for seed in range(settings.arguments.seeds):
                row: dict[str, float] = {}
                for each in select(rows, network=name, graph=graph, cluster=cluster, seed=seed):
                    if each["what"] in (FIXED, JOINT):
                        label = f"{each['what'].removeprefix('any, ')}, up to {each['groups']}"
                        row[label], row[f"{label}: greedy"] = each["best"], each["likeliest"]
                found.append(row)
        if not all(found):
            continue
        print_ratios(
            f"{cluster}: {len(found)} runs of {settings.arguments.joint:,} plans", ratios(found)
        )
        mine = [each["groups found"] for each in select(rows, what=JOINT, cluster=cluster)]
        if mine:
            print(f"\nGroups of the greedy joint plan: {min(mine)} to {max(mine)}.")
            for groups in GROUPS:
                print_ratio(found, f"joint, up to {GROUPS[-1]}", f"fixed groups, up to {groups}")


def embedding(settings: Settings) -> list[Job]:
    arguments = settings.arguments
    return [
        settings.job(
            what,
            MIX,
            arguments.mixed,
            "several",
            arguments.mix,
            seed=seed,
            tests=arguments.few,
            device="cpu",
        )
        for seed in range(max(arguments.seeds, arguments.mixes))
        for what in SEEN
        if what.removeprefix("any, ") in arguments.sees
    ]


def show_embedding(settings: Settings, rows: Sequence[Row]) -> None:
    title = "What a policy for any devices observes, against the shipped pair policy"
    table = Table(
        *("observes", "seed", "plans", "greedy, mean ratio", "won", "lost"),
        *("of 16, mean ratio", "won", "lost", "unseen clusters, greedy"),
        title=title,
    )
    for what in SEEN:
        for each in sorted(select(rows, what=what), key=lambda row: row["seed"]):
            cells = [what.removeprefix("any, "), str(each["seed"]), f"{each['judged']:,}"]
            for mine, its in ((2, 4), (3, 5)):
                shares = [row[mine] / row[its] for row in each["tried"]]
                cells.append(f"{statistics.geometric_mean(shares):.4f}")
                cells.append(str(sum(share < 1 - 1e-4 for share in shares)))
                cells.append(str(sum(share > 1 + 1e-4 for share in shares)))
            new = [row[2] / row[4] for row in each["tried"] if row[1] in CLUSTERS[2:]]
            cells.append(f"{statistics.geometric_mean(new):.4f}")
            table.row(*cells)


def graphs(settings: Settings) -> list[Job]:
    """No jobs: graphs of the zoo are fetched before any are run."""
    return []


SECTIONS: dict[str, tuple[Callable[[Settings], list[Job]], Callable[..., None] | None]] = {
    "families": (families, show_families),
    "devices": (devices, show_devices),
    "cost": (cost, show_cost),
    "parts": (parts, show_parts),
    "joint": (joint, show_joint),
    "embedding": (embedding, show_embedding),
    "graphs": (graphs, None),
}


def main(argv: Sequence[str] | None = None) -> None:
    parser = make_parser(__doc__, __spec__.name)
    option = parser.add_argument
    option("--only", type=name_list, default=[*SECTIONS], help="sections")
    option("--families", type=name_list, default=["cifar10", "ptb", "nmt"], help="families")
    option("--tests", type=int, default=8, help="test graphs of each family")
    option("--few", type=int, default=4, help="the same, in devices, parts, joint and embedding")
    option("--groups", type=int, default=64, help="groups that are placed")
    option("--plans", type=int, default=20_000, help="families: evaluations to train on a family")
    option("--own", type=int, default=4000, help="evaluations to train on one graph")
    option("--any", type=int, default=1000, help="devices: the same for any devices; 0 for none")
    option("--reach", type=int, default=5000, help="cost: ColocRL's evaluations")
    option("--steps", type=int, default=1000, help="cost, parts: episodes with rewards per step")
    option("--rows", type=name_list, default=[*PAPER], help="cost: networks, each with its GPUs")
    option("--seeds", type=int, default=1, help="seeds in cost, families and joint")
    option("--joint", type=int, default=2000, help="joint: evaluations per run")
    option("--mix", type=int, default=12_000, help="embedding: evaluations per run")
    option("--mixed", type=int, default=6, help="embedding: training graphs of each family")
    option("--mixes", type=int, default=3, help="embedding: seeds")
    observed = [what.removeprefix("any, ") for what in SEEN]
    option("--sees", type=name_list, default=observed, help="embedding: what policies observe")
    option("--auto", type=int, default=10, help="time budget of `auto`, seconds; 0 for none")
    option("--device", default="cpu", help="torch device of the policies: cpu or cuda")
    option("--graphs", default="out/graphs", help="cache of the zoo's graphs")
    add_results(parser, "out/generalisation.jsonl")
    add_jobs(parser)
    settings = Settings(parser.parse_args(argv))
    sections = chosen(parser, settings.arguments.only, SECTIONS)
    if {"cost", "graphs"} & set(sections):
        for line in settings.lines:
            cached_graph(line.partition(":")[0], Path(settings.arguments.graphs))
    jobs = [job for name in sections for job in SECTIONS[name][0](settings)]
    jobs.sort(key=length, reverse=True)
    rows = run_all(jobs, settings.arguments.out, settings.arguments.jobs)
    for name in sections:
        show = SECTIONS[name][1]
        if show is not None:
            show(settings, rows)


def length(job: Job) -> float:
    """About how long a job takes, so that the longest begin first."""
    if job.what == SOLVERS:
        return job.plans
    first = job.what.partition(",")[0]
    if first in ("any", "placeto-any"):
        return job.plans / 25
    factor = 0.3 if first == "colocrl" else 1.0
    if job.what == STEPS:
        factor /= job.groups
    return factor * job.plans * (job.groups / 64) ** 2 / 50


if __name__ == "__main__":
    main()
