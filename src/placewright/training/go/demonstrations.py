"""Teachers' plans: problems in, strong plans and the weaker ones on the way to them out, in a file.

They cost CPU time and no GPU, so they are made once and apart from training. A line of the file is
one problem, told in words, with its plans.
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
from placewright.policies.go.initial_plans import first_plans, ways
from placewright.problem import Problem
from placewright.solvers import Search
from placewright.training.go.issue_order import own_order

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from pathlib import Path

    from numpy.typing import NDArray

    from placewright.graph import Graph
    from placewright.problem import Discipline

QUICK = (solvers.HEFT, solvers.METF)
"""Methods whose plans are kept beside `auto`'s."""


@dataclass(frozen=True)
class Task:
    """A problem in words.

    Args:
        network: A name of the zoo.
        slack: Memory of all devices but the host together, in terms of what one of them would need
            alone, if that is less than they have; 0 for as much as they have.
    """

    network: str
    cluster: str
    discipline: Discipline = "ready"
    slack: float = 0.0

    @property
    def key(self) -> str:
        return f"{self.network} on {self.cluster}, {self.discipline}, {self.slack:.3f}"

    def problem(self, graphs: Path | None = None) -> Problem:
        """The problem itself; its graph is read from the folder if it is there."""
        graph = kept_graph(self.network, graphs)
        problem = Problem(graph, Cluster.parse(self.cluster), discipline=self.discipline)
        return tight(problem, self.slack) if self.slack else problem


def graph_file(network: str, graphs: Path) -> Path:
    """Where a folder keeps the graph of a network."""
    return graphs / (network.replace(":", "--").replace("=", "-").replace(",", "_") + ".json.gz")


def kept_graph(network: str, graphs: Path | None) -> Graph:
    """A network's graph, from a folder if it has it, else from the zoo."""
    if graphs is not None and graph_file(network, graphs).exists():
        return files.load(graph_file(network, graphs), "graph")
    return zoo.load(network)


def tight(problem: Problem, slack: float) -> Problem:
    """The problem with so much memory on its devices, of what everything on one of them needs."""
    a = problem.arrays
    everything = np.repeat(np.arange(a.devices)[:, None], a.ops, axis=1)
    peak = simulator.judge(problem, problem.settle(everything)).peak.max(axis=0)
    devices = np.flatnonzero(~a.host)
    capacity = a.capacity.copy()
    share = (peak[devices] * slack / len(devices)).astype(np.int64)
    capacity[devices] = np.minimum(capacity[devices], share)
    return problem.with_arrays(capacity=capacity)


@dataclass(frozen=True, eq=False)
class Lesson:
    """A problem and plans for it, the best first.

    Args:
        by: Who made each plan.
        device: Plans × ops.
        value: The objective of each in its own order.
        over: Bytes over.
    """

    task: Task
    problem: Problem
    by: tuple[str, ...]
    device: NDArray[np.int32]
    value: NDArray[np.float64]
    over: NDArray[np.int64]

    @property
    def best(self) -> float:
        return float(self.value[0])


def teach(task: Task, problem: Problem, evaluations: Sequence[int], seconds: float) -> Any:
    """A line of the file: list schedulers' plans, a walk from GO's own first plan, and `auto`'s.

    Args:
        evaluations: Plans judged after which `auto`'s best so far is kept; it ends after the last.
        seconds: It ends after these too. Let the plans decide where the machine is shared: `auto`
            begins with methods that take long, and is weak before they are done.
    """
    plans: list[tuple[str, Plan]] = []
    for make in QUICK:
        search = Search(problem, solvers.Stop(), 0)
        make().run(search)
        if search.best is not None:
            plans.append((make().name, search.best))
    first = first_plan(problem)
    walked = solvers.refined(problem, first)
    plans += [("start", first), ("walk", walked)]
    at: dict[int, Plan] = {}

    def watch(search: Search) -> None:
        for mark in evaluations[:-1]:
            if search.evaluations >= mark and mark not in at and search.best is not None:
                at[mark] = search.best

    stop = solvers.MaxEvaluations(evaluations[-1]) | solvers.MaxTime(seconds)
    auto = solvers.Auto(exact=False)
    result = solvers.solve(problem, auto, stop=stop, seed=0, progress=watch, start=walked)
    plans += [("auto", result.plan), *((f"auto:{mark}", plan) for mark, plan in at.items())]
    rows = []
    for name, plan in plans:
        if plan.staging is not None and (plan.staging >= 0).any():
            continue  # a policy decides on devices, and this plan is nothing without its staging
        verdict = simulator.judge(problem, plan.device, plan.priority)
        rows.append((int(verdict.overflow[0]), float(verdict.value[0]), name, plan.device))
    rows.sort(key=lambda row: row[:2])
    rows = list({row[3].tobytes(): row for row in reversed(rows)}.values())[::-1]  # no two alike
    return {
        **asdict(task),
        "graph": problem.graph.fingerprint,
        "seconds": round(result.seconds, 1),
        "evaluations": result.evaluations,
        "plans": [
            {"by": name, "value": value, "over": over, "device": _packed(device)}
            for over, value, name, device in rows
        ],
    }


def first_plan(problem: Problem) -> Plan:
    """The plan that GO's first pass reads, in GO's order."""
    device = first_plans(problem, ways(problem.arrays)[0], 1)
    orders = own_order(problem, device)
    return Plan.of(problem, device[0], None if orders is None else orders[0])


def read_lessons(
    path: Path, graphs: Path | None = None, tasks: Iterable[Task] | None = None
) -> list[Lesson]:
    """The problems of a file and their plans; of these tasks alone if given.

    Raises:
        FileError: A line is damaged or was made from another graph.
    """
    wanted = None if tasks is None else {task.key for task in tasks}
    lessons, known = [], {}
    for number, data in enumerate(lines(path), 1):
        task = Task(data["network"], data["cluster"], data["discipline"], data["slack"])
        if wanted is not None and task.key not in wanted:
            continue
        if task.network not in known:
            known[task.network] = kept_graph(task.network, graphs)
        problem = _problem(task, known[task.network])
        if problem.graph.fingerprint != data["graph"]:
            raise FileError(f"{path}: line {number} was made from another graph: make it anew")
        plans = data["plans"]
        if not plans:
            continue
        device = np.stack([_unpacked(plan["device"]) for plan in plans])
        lessons.append(
            Lesson(
                task,
                problem,
                tuple(plan["by"] for plan in plans),
                device,
                np.array([plan["value"] for plan in plans]),
                np.array([plan["over"] for plan in plans]),
            )
        )
    return lessons


def lines(path: Path) -> list[dict[str, Any]]:
    """What a file holds, if it is there; a last line that was cut off is left out."""
    found = []
    for line in path.read_text().splitlines() if path.exists() else ():
        try:
            found.append(json.loads(line))
        except ValueError:
            continue
    return found


def _problem(task: Task, graph: Graph) -> Problem:
    problem = Problem(graph, Cluster.parse(task.cluster), discipline=task.discipline)
    return tight(problem, task.slack) if task.slack else replace(problem)


def _packed(device: NDArray[np.int32]) -> str:
    return base64.b64encode(zlib.compress(device.astype(np.uint8).tobytes(), 9)).decode()


def _unpacked(text: str) -> NDArray[np.int32]:
    return np.frombuffer(zlib.decompress(base64.b64decode(text)), dtype=np.uint8).astype(np.int32)
