"""Placeto's claims on our simulator: graphs never seen, the cost of learning, what each part does.

    python benchmarks/generalisation.py [--only families,devices,cost,parts,joint,embedding]
        [--families cifar10,ptb,nmt] [--tests 8] [--groups 64] [--plans 20000] [--own 4000]
        [--joint 2000] [--mix 12000] [--auto 10] [--seeds 1] [--device cpu]
        [--jobs 16] [--graphs FOLDER] [--out FILE]

Every run is a job of its own (`generalisation_jobs.py`), as many at once as `--jobs`; its line is
added to `--out`, and a job whose line is there is not run again. `--jobs 0` prints the tables of
what is there. Step times are simulated as TensorFlow's executor runs (`ready`), at most `--groups`
groups. Graphs of the zoo are captured once and kept in `--graphs`, a folder that may be carried to
a machine which cannot capture them; `--only graphs` does no more than that.

`families`: step time over the best known plan of each test graph (the median, and the range from
best to worst graph) on two K80. Zero-shot policies are trained on the family's 24 training graphs
with `--plans` plans; the other graphs are never shown. A policy's figure is its likeliest plan; `of
16` is the best of that and 15 drawn. A trained-on-the-graph policy judged `--own` plans.
`devices`: the policies that ship, which serve any devices, on clusters that they never saw; beside
one trained on that very graph and cluster, which judged `--any` plans. `ships` is the one plan that
a policy answers with, for which none is judged: for `pair` the likeliest, for `placeto` of 32 that
it looks at the one that its own list schedule ends first. `of 16` is the best of that and 15 drawn;
`place --method NAME` what that command finds: the answer and 63 drawn plans, each in the policy's
own order and in the graph's.
`cost`: plans and episodes until Placeto reaches ColocRL's final step time, beside the paper's.
`parts`: rewards per step or at the end, at equal plans and at equal episodes; messages or none.
`joint`: groups chosen with the placement against groups made beforehand, at equal plans.
`embedding`: policies for any devices that see more or less of the graph, trained alike on problems
of all families (`train_policies`), beside the pair policy that ships; they are kept in the folder
`policies` beside `--graphs`.
"""

from __future__ import annotations

import argparse
import statistics
from pathlib import Path
from typing import TYPE_CHECKING, Any

from generalisation_jobs import (
    CLUSTERS,
    MIX,
    SEEN,
    SHIPS,
    SOLVERS,
    TRAIN,
    Job,
    kept,
    run_all,
)
from generalisation_tables import PAPER, apart, of, ratios, table

from placewright.policies.shipped import SHIPPED

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    Row = dict[str, Any]

UNSEEN = ("5xK80", "6xP100+cpu", "3xV100+2xP100+cpu", "2x(2xP100+cpu)@25GbE")
"""Clusters that no policy which ships was trained on; see `train_policies.drawn_cluster`."""
PAIR_OF_K80 = "2xK80"

FIXED, JOINT = "any, fixed groups", "any, joint"
GROUPS = (64, 300)
"""The most groups, made beforehand; joint groups are made of those of the last."""
GROUPS_ON = ("2xK80", "4xK80+cpu")

ALONE = "placeto, end alone"
SILENT = "placeto, no messages"
STEPS = "placeto-steps"


class Given:
    """What the command line said, and the jobs that follow from it."""

    def __init__(self, words: argparse.Namespace) -> None:
        self.words = words
        self.families: list[str] = words.families.split(",")
        self.lines: list[str] = words.rows.split(",")

    def job(self, what: str, network: str, graph: int, cluster: str, plans: int, **how: Any) -> Job:
        how = {"groups": self.words.groups, "device": self.words.device, **how}
        return Job(what, network, graph, cluster, plans, folder=self.words.graphs, **how)

    def tests(self, most: int | None = None) -> Iterator[tuple[str, int]]:
        """Families and numbers of their test graphs."""
        count = self.words.tests if most is None else min(most, self.words.tests)
        for name in self.families:
            yield from ((name, graph) for graph in range(count))


def families(given: Given) -> list[Job]:
    words, jobs = given.words, []
    for seed in range(words.seeds):
        for name in given.families:
            for what in ("placeto", "colocrl, padded"):
                plans, how = words.plans, {"seed": seed, "tests": words.tests}
                jobs.append(given.job(what, name, TRAIN, PAIR_OF_K80, plans, **how))
    for name, graph in given.tests():
        jobs.append(given.job("placeto", name, graph, PAIR_OF_K80, words.own))
        jobs.append(given.job("colocrl, padded", name, graph, PAIR_OF_K80, words.own))
        jobs.append(given.job(SOLVERS, name, graph, PAIR_OF_K80, words.auto))
        jobs += [given.job(f"{SHIPS}{each}", name, graph, PAIR_OF_K80, 0) for each in SHIPPED]
    return jobs


def show_families(given: Given, rows: Sequence[Row]) -> None:
    for name in given.families:
        found = []
        for graph in range(given.words.tests):
            row: dict[str, float] = {}
            for each in of(rows, network=name, cluster=PAIR_OF_K80):
                _tell_family(row, each, graph)
            found.append(row)
        if not all(found):
            continue
        title = f"{name}: {len(found)} test graphs, {PAIR_OF_K80}, {given.words.groups} groups"
        table(title, ratios(found))
        apart(found, "Placeto, zero-shot", "Placeto, on the graph")
        apart(found, "Placeto, zero-shot", "Placeto, on the graph, likeliest")
        apart(found, "ColocRL, zero-shot", "ColocRL, on the graph")


def _tell_family(row: dict[str, float], each: Row, graph: int) -> None:
    """What a line says of a test graph; of several seeds the median counts."""
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
            row[f"{name}, ships, likeliest"] = each["argmax"]
    elif label:
        row[f"{label}, on the graph"] = each["best"]
        row[f"{label}, on the graph, likeliest"] = each["likeliest"]


METHODS = ("random", "best single device", "expert", "HEFT", "m-ETF", "auto")


def devices(given: Given) -> list[Job]:
    words, jobs = given.words, []
    for cluster in UNSEEN:
        for name, graph in given.tests(words.few):
            if words.any:
                jobs.append(given.job("placeto-any", name, graph, cluster, words.any))
            jobs.append(given.job(SOLVERS, name, graph, cluster, words.auto))
            jobs += [given.job(f"{SHIPS}{each}", name, graph, cluster, 0) for each in SHIPPED]
    return jobs


def show_devices(given: Given, rows: Sequence[Row]) -> None:
    for cluster in UNSEEN:
        found = []
        for name, graph in given.tests(given.words.few):
            row: dict[str, float] = {}
            for each in of(rows, network=name, cluster=cluster, graph=graph):
                if each["what"] == "placeto-any":
                    row["placeto, on the graph"] = each["best"]
                    row["placeto, on the graph, likeliest"] = each["likeliest"]
                else:
                    _tell_family(row, each, graph)
            found.append(row)
        if all(found):
            title = f"{cluster}: {len(found)} test graphs of {', '.join(given.families)}"
            table(title, ratios(found))
            lines = ("placeto, ships", "placeto, ships, likeliest", "placeto, ships, of 16")
            for line in (*lines, "place --method placeto"):
                apart(found, line, "placeto, on the graph")


def cost(given: Given) -> list[Job]:
    words, jobs = given.words, []
    for line in given.lines:
        network, _, count = line.partition(":")
        cluster = f"{count}xK80+cpu"
        for seed in range(words.seeds):
            for what in ("colocrl", "placeto"):
                plans = words.reach if what == "colocrl" else words.own
                jobs.append(given.job(what, network, 0, cluster, plans, seed=seed))
            steps = words.steps * (words.groups + 1)
            if steps:
                jobs.append(given.job(STEPS, network, 0, cluster, steps, seed=seed))
    return jobs


def show_cost(given: Given, rows: Sequence[Row]) -> None:
    columns = ["row", "seed", "ColocRL ends at, s", "its plans", "Placeto", "ends at, s"]
    columns += ["plans to reach it", "episodes", "ratio of plans", "ratio of episodes"]
    print("\n**Cost to reach ColocRL's final step time**\n")
    print("| " + " | ".join([*columns, "the paper's ratio"]) + " |")
    print("|---" * (len(columns) + 1) + "|")
    for line in given.lines:
        network, _, count = line.partition(":")
        mine = of(rows, network=network, cluster=f"{count}xK80+cpu")
        for theirs in of(mine, what="colocrl"):
            final = theirs["history"][-1][0]
            first, second = PAPER.get(line, (1, 0))
            for each in of(mine, seed=theirs["seed"]):
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
                print("| " + " | ".join([*cells, f"{second / first:.2f}"]) + " |")


def parts(given: Given) -> list[Job]:
    words, jobs = given.words, []
    for name, graph in given.tests(words.few):
        for what, plans in (
            (ALONE, words.own),
            (SILENT, words.own),
            (STEPS, words.own),
            (STEPS, words.steps * (words.groups + 1)),
        ):
            if plans:
                jobs.append(given.job(what, name, graph, PAIR_OF_K80, plans))
        if words.steps:
            jobs.append(given.job(ALONE, name, graph, PAIR_OF_K80, words.steps))
        jobs.append(given.job(SOLVERS, name, graph, PAIR_OF_K80, words.auto))
    return jobs


def show_parts(given: Given, rows: Sequence[Row]) -> None:
    words = given.words
    each = words.groups + 1
    labels = {
        (ALONE, words.own): f"at the end, {words.own:,} plans",
        (SILENT, words.own): f"at the end, no messages, {words.own:,} plans",
        (STEPS, words.own): f"per step, {words.own:,} plans",
        (ALONE, words.steps): f"at the end, {words.steps:,} episodes",
        (STEPS, words.steps * each): f"per step, {words.steps:,} episodes",
    }
    for name in given.families:
        found = []
        for graph in range(min(words.few, words.tests)):
            row: dict[str, float] = {}
            for line in of(rows, network=name, graph=graph, cluster=PAIR_OF_K80):
                if label := labels.get((line["what"], line["plans"])):
                    row[label], row[f"{label}: likeliest"] = line["best"], line["likeliest"]
                elif line["what"] == SOLVERS and "auto" in line:
                    row["auto"] = line["auto"]
            found.append(row)
        if all(found):
            table(f"{name}: {len(found)} test graphs, {PAIR_OF_K80}", ratios(found))


def joint(given: Given) -> list[Job]:
    words, jobs = given.words, []
    for cluster in GROUPS_ON:
        for name, graph in given.tests(words.few):
            for what, groups in (*((FIXED, each) for each in GROUPS), (JOINT, GROUPS[-1])):
                for seed in range(words.seeds):
                    how = {"groups": groups, "seed": seed, "device": "cpu"}
                    jobs.append(given.job(what, name, graph, cluster, words.joint, **how))
    return jobs


def show_joint(given: Given, rows: Sequence[Row]) -> None:
    for cluster in GROUPS_ON:
        found = []
        for name, graph in given.tests(given.words.few):
            for seed in range(given.words.seeds):
                row: dict[str, float] = {}
                for each in of(rows, network=name, graph=graph, cluster=cluster, seed=seed):
                    if each["what"] in (FIXED, JOINT):
                        label = f"{each['what'].removeprefix('any, ')}, up to {each['groups']}"
                        row[label], row[f"{label}: likeliest"] = each["best"], each["likeliest"]
                found.append(row)
        if not all(found):
            continue
        table(f"{cluster}: {len(found)} runs of {given.words.joint:,} plans", ratios(found))
        mine = [each["groups found"] for each in of(rows, what=JOINT, cluster=cluster)]
        if mine:
            print(f"\nGroups of the likeliest joint plan: {min(mine)} to {max(mine)}.")
            for groups in GROUPS:
                apart(found, f"joint, up to {GROUPS[-1]}", f"fixed groups, up to {groups}")


def embedding(given: Given) -> list[Job]:
    words = given.words
    return [
        given.job(
            what, MIX, words.mixed, "several", words.mix, seed=seed, tests=words.few, device="cpu"
        )
        for seed in range(max(words.seeds, words.mixes))
        for what in SEEN
        if what.removeprefix("any, ") in words.sees.split(",")
    ]


def show_embedding(given: Given, rows: Sequence[Row]) -> None:
    print("\n**What a policy for any devices sees, against the pair policy that ships**\n")
    columns = ["sees", "seed", "plans", "likeliest, mean ratio", "won", "lost"]
    columns += ["of 16, mean ratio", "won", "lost", "never seen clusters, likeliest"]
    print("| " + " | ".join(columns) + " |\n" + "|---" * len(columns) + "|")
    for what in SEEN:
        for each in sorted(of(rows, what=what), key=lambda row: row["seed"]):
            cells = [what.removeprefix("any, "), str(each["seed"]), f"{each['judged']:,}"]
            for mine, its in ((2, 4), (3, 5)):
                shares = [row[mine] / row[its] for row in each["tried"]]
                cells.append(f"{statistics.geometric_mean(shares):.4f}")
                cells.append(str(sum(share < 1 - 1e-4 for share in shares)))
                cells.append(str(sum(share > 1 + 1e-4 for share in shares)))
            new = [row[2] / row[4] for row in each["tried"] if row[1] in CLUSTERS[2:]]
            cells.append(f"{statistics.geometric_mean(new):.4f}")
            print("| " + " | ".join(cells) + " |")


def graphs(given: Given) -> list[Job]:
    """No jobs: graphs of the zoo are fetched before any are run."""
    return []


SECTIONS: dict[str, tuple[Callable[[Given], list[Job]], Callable[..., None] | None]] = {
    "families": (families, show_families),
    "devices": (devices, show_devices),
    "cost": (cost, show_cost),
    "parts": (parts, show_parts),
    "joint": (joint, show_joint),
    "embedding": (embedding, show_embedding),
    "graphs": (graphs, None),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--only", default=",".join(SECTIONS), help="sections")
    parser.add_argument("--jobs", type=int, default=2, help="processes at once; 0: tables alone")
    parser.add_argument("--families", default="cifar10,ptb,nmt")
    parser.add_argument("--tests", type=int, default=8, help="test graphs of each family")
    parser.add_argument("--few", type=int, default=4, help="the same, of devices and parts")
    parser.add_argument("--groups", type=int, default=64)
    parser.add_argument("--plans", type=int, default=20_000, help="to train on a family")
    parser.add_argument("--own", type=int, default=4000, help="to train Placeto on one graph")
    parser.add_argument("--any", type=int, default=1000, help="the same for any devices; 0: none")
    parser.add_argument("--reach", type=int, default=5000, help="of cost: ColocRL's plans")
    parser.add_argument("--steps", type=int, default=1000, help="episodes with rewards per step")
    parser.add_argument("--rows", default=",".join(PAPER), help="of cost: networks:GPUs")
    parser.add_argument("--seeds", type=int, default=1, help="of cost and of zero-shot policies")
    parser.add_argument("--joint", type=int, default=2000, help="plans of a run of joint")
    parser.add_argument("--mix", type=int, default=12_000, help="plans of a run of embedding")
    parser.add_argument("--mixed", type=int, default=6, help="its training graphs of each family")
    parser.add_argument("--mixes", type=int, default=3, help="seeds of embedding")
    every = ",".join(what.removeprefix("any, ") for what in SEEN)
    parser.add_argument("--sees", default=every, help="of embedding: what policies see")
    parser.add_argument("--auto", type=int, default=10, help="seconds; 0 for none")
    parser.add_argument("--device", default="cpu", help="where policies live: cpu or cuda")
    parser.add_argument("--graphs", default="out/graphs", help="where graphs of the zoo are kept")
    parser.add_argument("--out", default="out/generalisation.jsonl")
    given = Given(parser.parse_args())
    wanted = given.words.only.split(",")
    if {"cost", "graphs"} & set(wanted):
        for line in given.lines:
            kept(line.partition(":")[0], Path(given.words.graphs))
    made = {name: SECTIONS[name][0](given) for name in wanted}
    every = sorted((job for jobs in made.values() for job in jobs), key=length, reverse=True)
    rows = run_all(every, Path(given.words.out), given.words.jobs)
    for name in wanted:
        show = SECTIONS[name][1]
        if show is not None:
            show(given, rows)


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
