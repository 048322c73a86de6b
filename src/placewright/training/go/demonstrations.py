"""Demonstrations for imitation: strong and weaker plans of problems, in a file.

They need CPU time and no GPU, so they are made once, before training. A line of the file is one
problem, described in words, with its plans.
"""

from __future__ import annotations

import base64
import json
import zlib
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from placewright import files, simulator, solvers, zoo
from placewright.cluster import Cluster
from placewright.errors import FileError
from placewright.plan import Plan
from placewright.policies.go.initial_plans import heuristic_plans, path_lengths
from placewright.problem import Problem
from placewright.solvers import Search
from placewright.training.go.issue_order import longest_path_priorities

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from pathlib import Path

    from numpy.typing import NDArray

    from placewright.graph import Graph
    from placewright.problem import Discipline

QUICK_SOLVERS = (solvers.HEFT, solvers.METF)
"""Methods whose plans are kept besides `auto`'s."""


@dataclass(frozen=True)
class DemonstrationTask:
    """A problem, described in words.

    Args:
        network: A name of the zoo.
        slack: Memory of all accelerators together, relative to the need of the whole network on one
            of them, if that is less than they have; 0 for all their memory.
    """

    network: str
    cluster: str
    discipline: Discipline = "ready"
    slack: float = 0.0

    @property
    def key(self) -> str:
        return f"{self.network} on {self.cluster}, {self.discipline}, {self.slack:.3f}"

    def problem(self, graph_folder: Path | None = None) -> Problem:
        """The problem; its graph is read from the folder if it is there."""
        graph = load_graph(self.network, graph_folder)
        problem = Problem(graph, Cluster.parse(self.cluster), discipline=self.discipline)
        return limit_memory(problem, self.slack) if self.slack else problem


def graph_file(network: str, graph_folder: Path) -> Path:
    """The file of a network's graph in a folder."""
    return graph_folder / (
        network.replace(":", "--").replace("=", "-").replace(",", "_") + ".json.gz"
    )


def load_graph(network: str, graph_folder: Path | None) -> Graph:
    """A network's graph, from a folder if it is there, else from the zoo."""
    if graph_folder is not None and graph_file(network, graph_folder).exists():
        return files.load(graph_file(network, graph_folder), "graph")
    return zoo.load(network)


def limit_memory(problem: Problem, slack: float) -> Problem:
    """The problem with less memory on its accelerators; see `DemonstrationTask.slack`."""
    a = problem.arrays
    peak = simulator.judge(problem, problem.single_device_placements()).peak.max(axis=0)
    devices = np.flatnonzero(~a.is_host)
    capacity = a.capacity.copy()
    share = (peak[devices] * slack / len(devices)).astype(np.int64)
    capacity[devices] = np.minimum(capacity[devices], share)
    return problem.with_arrays(capacity=capacity)


@dataclass(frozen=True, eq=False)
class Demonstration:
    """A problem and plans for it, the best first.

    Args:
        found_by: The method of each plan.
        placements: Plans × ops.
        objective_values: The objective of each plan in its own order.
        overflow: The overflow of each plan, in bytes.
    """

    task: DemonstrationTask
    problem: Problem
    found_by: tuple[str, ...]
    placements: NDArray[np.int32]
    objective_values: NDArray[np.float64]
    overflow: NDArray[np.int64]

    @property
    def best_objective(self) -> float:
        return float(self.objective_values[0])


def make_demonstration(
    task: DemonstrationTask, problem: Problem, evaluations: Sequence[int], seconds: float
) -> Any:
    """A line of the file: plans of list schedulers, of annealing from GO's initial plan, of `auto`.

    Args:
        evaluations: The best plan of `auto` after each of these is kept; it ends at the last.
        seconds: `auto` also ends after this time. On a shared machine let evaluations decide:
            `auto` starts with slow methods, and is weak before they are done.
    """
    plans: list[tuple[str, Plan]] = []
    for solver_class in QUICK_SOLVERS:
        search = Search(problem, solvers.Stop(), 0)
        solver_class().run(search)
        if search.best is not None:
            plans.append((solver_class().name, search.best))
    start_plan = initial_plan(problem)
    refined_plan = solvers.refine(problem, start_plan)
    plans += [("start", start_plan), ("annealing", refined_plan)]
    best_at: dict[int, Plan] = {}

    def on_progress(search: Search) -> None:
        for milestone in evaluations[:-1]:
            if (
                search.evaluations >= milestone
                and milestone not in best_at
                and search.best is not None
            ):
                best_at[milestone] = search.best

    stop = solvers.MaxEvaluations(evaluations[-1]) | solvers.MaxTime(seconds)
    auto = solvers.Auto(exact=False, proposers=())
    result = solvers.solve(
        problem,
        auto,
        stop=stop,
        seed=0,
        progress=on_progress,
        warm_start=refined_plan,
        cautious=False,
    )
    plans += [
        ("auto", result.plan),
        *((f"auto:{milestone}", plan) for milestone, plan in best_at.items()),
    ]
    rows = []
    for name, plan in plans:
        if plan.staging is not None and (plan.staging >= 0).any():
            continue  # a policy decides on devices alone, and this plan needs its staging
        verdict = simulator.judge(problem, plan.placement, plan.priority)
        rows.append((int(verdict.overflow[0]), float(verdict.value[0]), name, plan.placement))
    rows.sort(key=lambda row: row[:2])
    rows = list({row[3].tobytes(): row for row in reversed(rows)}.values())[::-1]  # distinct plans
    return {
        **asdict(task),
        "graph": problem.graph.fingerprint,
        "seconds": round(result.seconds, 1),
        "evaluations": result.evaluations,
        "plans": [
            {"by": name, "value": objective, "over": overflow, "device": _pack(placement)}
            for overflow, objective, name, placement in rows
        ],
    }


@dataclass(frozen=True)
class MakeDemonstrations:
    """Makes lines of the file on workers; an item is a `DemonstrationTask`.

    Args:
        evaluations: The first ones of `make_demonstration`.
        effort: Ops × plans of the last number.
        seconds: As in `make_demonstration`.
        graph_folder: Where graphs are; workers on other machines need it too.
        min_evaluations: The least last number.
        max_evaluations: The largest.
    """

    evaluations: tuple[int, ...]
    effort: float
    seconds: float
    graph_folder: Path | None = None
    min_evaluations: int = 6_000
    max_evaluations: int = 40_000

    def __call__(self, problem: None, tasks: Sequence[DemonstrationTask]) -> list[Any]:
        """A line for each task."""
        lines = []
        for task in tasks:
            labelled = task.problem(self.graph_folder)
            affordable = int(self.effort / labelled.arrays.ops)
            last = min(max(affordable, self.min_evaluations), self.max_evaluations)
            milestones = (*self.evaluations, last)
            lines.append(make_demonstration(task, labelled, milestones, self.seconds))
        return lines


def quick_demonstration(problem: Problem) -> Demonstration:
    """Plans of the list schedulers and GO's initial plan, in GO's order: no search is needed."""
    plans = [initial_plan(problem)]
    names = ["start"]
    for solver_class in QUICK_SOLVERS:
        plans.append(solvers.solve(problem, solver_class()).plan)
        names.append(solver_class().name)
    placements = np.stack([plan.placement for plan in plans])
    verdict = simulator.judge(problem, placements, longest_path_priorities(problem, placements))
    best = verdict.best_first(len(plans))
    return Demonstration(
        DemonstrationTask(problem.graph.name, problem.cluster.name, problem.discipline),
        problem,
        tuple(names[index] for index in best),
        placements[best],
        verdict.value[best],
        verdict.overflow[best],
    )


def initial_plan(problem: Problem) -> Plan:
    """GO's best initial plan, in GO's order."""
    placements = heuristic_plans(problem, path_lengths(problem.arrays)[0], 1)
    priorities = longest_path_priorities(problem, placements)
    return Plan.of(problem, placements[0], None if priorities is None else priorities[0])


def read_demonstrations(
    path: Path, graph_folder: Path | None = None, tasks: Iterable[DemonstrationTask] | None = None
) -> list[Demonstration]:
    """The problems of a file and their plans; only these tasks if given.

    Raises:
        FileError: A line is damaged or was made from another graph.
    """
    wanted_keys = None if tasks is None else {task.key for task in tasks}
    demonstrations, graphs = [], {}
    for number, record in enumerate(read_records(path), 1):
        task = DemonstrationTask(
            record["network"], record["cluster"], record["discipline"], record["slack"]
        )
        if wanted_keys is not None and task.key not in wanted_keys:
            continue
        if task.network not in graphs:
            graphs[task.network] = load_graph(task.network, graph_folder)
        problem = _build_problem(task, graphs[task.network])
        if problem.graph.fingerprint != record["graph"]:
            raise FileError(f"{path}: line {number} was made from another graph: make it again")
        plans = record["plans"]
        if not plans:
            continue
        placements = np.stack([_unpack(plan["device"]) for plan in plans])
        demonstrations.append(
            Demonstration(
                task,
                problem,
                tuple(plan["by"] for plan in plans),
                placements,
                np.array([plan["value"] for plan in plans]),
                np.array([plan["over"] for plan in plans]),
            )
        )
    return demonstrations


def read_records(path: Path) -> list[dict[str, Any]]:
    """The lines of a file, if it exists; an incomplete last line is left out."""
    records = []
    for line in path.read_text().splitlines() if path.exists() else ():
        try:
            records.append(json.loads(line))
        except ValueError:
            continue
    return records


def _build_problem(task: DemonstrationTask, graph: Graph) -> Problem:
    problem = Problem(graph, Cluster.parse(task.cluster), discipline=task.discipline)
    return limit_memory(problem, task.slack) if task.slack else replace(problem)


def _pack(placement: NDArray[np.int32]) -> str:
    return base64.b64encode(zlib.compress(placement.astype(np.uint8).tobytes(), 9)).decode()


def _unpack(text: str) -> NDArray[np.int32]:
    return np.frombuffer(zlib.decompress(base64.b64decode(text)), dtype=np.uint8).astype(np.int32)
