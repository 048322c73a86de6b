"""The papers' tables on our simulator: learned placers beside what they were compared with.

    python benchmarks/learning.py [--rows rnnlm,nmt-2] [--plans 5000] [--seeds 0:3] [--groups 64]
        [--hidden 128] [--recipes colocrl,hierarchical] [--no-partitioners]

Step times in seconds, simulated as TensorFlow's executor runs (`ready`), on the GPUs of the
Hierarchical paper. A learned column is the median of the seeds and their range, each the best plan
that the policy itself drew or liked best; nothing is seeded. Local search moves ColocRL's groups
with the same number of plans. A recipe may name a grouping: `colocrl:coarse`.
"""

from __future__ import annotations

import argparse
import statistics
import time
from dataclasses import dataclass

import numpy as np

import placewright as pw
from placewright import solvers
from placewright.errors import ConfigError, MissingDependency
from placewright.training import Environment, Trainer, recipe, result_of
from placewright.transforms import by_colocation


@dataclass(frozen=True)
class Line:
    """One row of the papers' tables.

    Args:
        split: Whether the Hierarchical paper's expert splits it; its others use one GPU.
        colocrl, hierarchical: What the papers print: best other method, theirs, in seconds.
    """

    name: str
    network: str
    cluster: str
    split: bool
    colocrl: str
    hierarchical: str


LINES = (
    Line("rnnlm", "rnnlm-2", "2xK40+Haswell", False, "1.57 / 1.57", "1.57 / 1.57"),
    Line("nmt-2", "nmt-2", "2xK40+Haswell", True, "4.99 / 4.04", "2.13 / 0.84"),
    Line("nmt-4", "nmt-4", "4xK40+Haswell", True, "–", "3.64 / 1.69"),
    Line("nmt-8", "nmt-8", "8xK40+Haswell", True, "–", "3.88 / 4.07"),
    Line("inception-v3", "inception-v3", "2xK40+Haswell", False, "4.60 / 4.60", "0.15 / 0.13"),
    Line("resnet-152", "resnet-152", "2xK40+Haswell", False, "–", "1.18 / 1.18"),
)


@dataclass(frozen=True)
class Cell:
    """A step time, or why there is none."""

    seconds: float
    over: int = 0

    def __str__(self) -> str:
        return f"{self.seconds:.3f}" if not self.over else f"{self.over / 2**30:.1f} GiB over"


def cell(problem: pw.Problem, solver: solvers.Solver, **how: object) -> Cell | str:
    """What a method finds."""
    try:
        result = pw.solve(problem, solver, **how)  # type: ignore[arg-type]
    except (ConfigError, MissingDependency) as error:
        return str(error)[:20]
    return Cell(result.value, result.overflow)


def single(problem: pw.Problem, kind: str) -> Cell:
    """Everything on the best device of a kind."""
    at = [n for n, device in enumerate(problem.cluster.devices) if device.kind == kind]
    everything = np.repeat(np.array(at)[:, None], len(problem.graph), axis=1)
    verdict = pw.judge(problem, problem.settle(everything))
    best = verdict.best()
    return Cell(float(verdict.value[best]), int(verdict.overflow[best]))


def learned(
    problem: pw.Problem, text: str, seeds: range, given: argparse.Namespace
) -> tuple[str, list[pw.Result], float]:
    """A cell of a recipe, its results, and the mean seconds of a run."""
    name, _, rule = text.partition(":")
    made = recipe(name, given.groups, given.hidden, rule or None)
    results, seconds = [], []
    for seed in seeds:
        start = time.perf_counter()
        trainer = Trainer([Environment(problem)], made, seed, given.plans, device=given.device)
        trainer.run()
        results.append(result_of(trainer))
        seconds.append(time.perf_counter() - start)
    fitting = [result.value for result in results if result.fits]
    if len(fitting) < len(results):
        return f"{len(fitting)} of {len(results)} fit", results, statistics.mean(seconds)
    middle = statistics.median(fitting)
    return (
        f"{middle:.3f} ({min(fitting):.3f}–{max(fitting):.3f})",
        results,
        statistics.mean(seconds),
    )


def row(line: Line, seeds: range, given: argparse.Namespace) -> list[str]:
    """One line of the table."""
    graph = pw.zoo.load(line.network, note=print)
    problem = pw.Problem(graph, pw.Cluster.parse(line.cluster), discipline="ready")
    gpu = single(problem, "gpu")
    expert = cell(problem, solvers.Expert())
    cells: list[object] = [line.name, line.cluster, single(problem, "cpu"), gpu, expert]
    cells.append(expert if line.split else gpu)
    if given.partitioners:
        cells += [cell(problem, solvers.Scotch()), cell(problem, solvers.MinCut())]
    plans, seconds = 0, []
    for text in given.recipes.split(","):
        shown, results, took = learned(problem, text, seeds, given)
        cells.append(shown)
        seconds.append(f"{took:.0f}")
        plans = max(plans, *(result.evaluations for result in results))
    search = solvers.LocalSearch(lambda p: by_colocation(p, given.groups), ordered=False)
    cells.append(cell(problem, search, stop=pw.MaxEvaluations(plans), seed=0))
    cells += [f"{solvers.bound(problem).seconds:.3f}", f"{plans:,}", " / ".join(seconds)]
    return [*map(str, cells), line.colocrl, line.hierarchical]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--rows", default=",".join(line.name for line in LINES))
    parser.add_argument("--plans", type=int, default=5000)
    parser.add_argument("--seeds", default="0:3")
    parser.add_argument("--groups", type=int, default=64)
    parser.add_argument("--hidden", type=int, default=128)
    parser.add_argument("--recipes", default="colocrl,hierarchical")
    parser.add_argument("--device", default="auto", help="cpu, cuda, or a GPU if there is one")
    parser.add_argument("--partitioners", action=argparse.BooleanOptionalAction, default=True)
    given = parser.parse_args()
    first, last = (int(part) for part in given.seeds.split(":"))
    columns = ["row", "cluster", "CPU only", "one GPU", "ColocRL's expert", "Hierarchical's expert"]
    columns += ["Scotch", "MinCut"] if given.partitioners else []
    columns += [*given.recipes.split(","), "local search, same groups", "bound", "plans"]
    columns += ["seconds a run", "ColocRL printed (best other / it)", "Hierarchical printed"]
    print("| " + " | ".join(columns) + " |")
    print("|" + "---|" * len(columns), flush=True)
    known = {line.name: line for line in LINES}
    for name in given.rows.split(","):
        if name not in known:
            parser.error(f"no row is named {name!r}: the rows are {', '.join(known)}")
        print("| " + " | ".join(row(known[name], range(first, last), given)) + " |", flush=True)


if __name__ == "__main__":
    main()
