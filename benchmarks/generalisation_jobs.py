"""Jobs of `generalisation.py`: what to run in, a line of JSON each out; those there are kept.

A job trains a policy, or asks a policy that ships, or the solvers. Each runs on one thread in a
process of its own kind, so as many run at once as there are cores.
"""

from __future__ import annotations

import copy
import json
import os
import time
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import asdict, dataclass, replace
from multiprocessing import get_context
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from weight_average import WeightAverage

import placewright as pw
from placewright import files, policies, solvers
from placewright.policies.grouping import group_ops, legal_devices
from placewright.policies.shipped import shipped_policy
from placewright.training import Environment, Recipe, Trainer, find_recipe
from placewright.training.policy_solver import POLICY_SOLVERS
from placewright.training.recipes.registry import multi_graph_recipe
from placewright.transforms.bundles import accelerators
from placewright.zoo.families import family
from placewright.zoo.networks.experts import ExpertRule

if TYPE_CHECKING:
    from collections.abc import Sequence

    from placewright.policies import Policy

FAMILIES = ("cifar10", "ptb", "nmt")
TRAIN = -1
"""The number of a job that is trained on a family's training graphs instead of one test graph."""
SOLVERS, SHIPS = "solvers", "ships: "
MIX = "all families"
"""The network of a job that is trained on problems as `train_policies` makes them."""
CLUSTERS = ("2xK80", "4xK80+cpu", "5xK80", "6xP100+cpu", "3xV100+2xP100+cpu")
"""What such a policy is tried on; the last three it never saw."""
DRAWN = 15  # plans that a policy draws beside its likeliest
POINTS = 60  # of a curve that are kept


@dataclass(frozen=True)
class Job:
    """One training run, or what needs none.

    Args:
        what: A name of `made`, `SOLVERS`, or `SHIPS` and the name of a policy that ships.
        network: A family's name, or a network's of the zoo.
        graph: The number of a family's test graph; `TRAIN` for its training graphs; of `MIX`: how
            many training graphs of each family, each on clusters drawn at random.
        plans: To judge; for `SOLVERS` the seconds that `auto` may take.
        tests: Test graphs (of each family) that a policy trained on several places in the end.
        folder: Where graphs of the zoo are kept.
    """

    what: str
    network: str
    graph: int
    cluster: str
    plans: int
    groups: int = 64
    seed: int = 0
    tests: int = 0
    device: str = "cpu"
    folder: str = ""

    def problem(self) -> pw.Problem:
        """What is placed, as TensorFlow's executor runs it."""
        if self.network in FAMILIES:
            graph = family(self.network, "test")[self.graph]
        else:
            graph = kept(self.network, Path(self.folder))
        return pw.Problem(graph, pw.Cluster.parse(self.cluster), discipline="ready")

    def __call__(self) -> dict[str, Any]:
        began, worked = time.perf_counter(), time.process_time()
        if self.what == SOLVERS:
            problem = self.problem()
            found = by_solvers(problem, self.groups, self.plans, self.seed)
            if self.network in HANDS:
                found["expert"] = by_hand(problem, self.network)
        elif self.what.startswith(SHIPS):
            problem = self.problem()
            name = self.what.removeprefix(SHIPS)
            policy = shipped_policy(name)
            found = dict(zip(("likeliest", "of 16"), placed(policy, problem), strict=True))
            if getattr(policy.config, "candidates", 1) > 1:  # type: ignore[attr-defined]
                alone = copy.copy(policy)
                alone.config = replace(policy.config, candidates=1)  # type: ignore[attr-defined]
                found["argmax"] = placed(alone, problem, 1)[0]
            # What `placewright place --method NAME` finds.
            found["method"] = solved(problem, POLICY_SOLVERS[name](), seed=self.seed)
        elif self.network == MIX:
            found = self._on_mix()
        elif self.graph == TRAIN:
            found = self._on_family()
        else:
            found = self._on_graph()
        took = {
            "seconds": round(time.perf_counter() - began, 1),
            "work": round(time.process_time() - worked, 1),  # less what other processes took
        }
        return {**asdict(self), **found, **took}

    def _on_graph(self) -> dict[str, Any]:
        trainer = self._trained([self.problem()])
        environment, policy = trainer.environments[0], trainer.policy
        count = len(policy.grouping(environment.problem))  # type: ignore[attr-defined]
        if getattr(policy.config, "merge", False):  # type: ignore[attr-defined]
            liked = policy.act(environment.problem, 1, 0, greedy=True)
            merged = policy.merged_groups(environment.problem, liked)  # type: ignore[attr-defined]
            count = len(np.unique(merged))
        history = [[count, best] for count, _, best in environment.history]
        return {
            "best": environment.best_key[1],
            "over": environment.best_key[0],
            "judged": environment.evaluations,
            "likeliest": trainer.log[-1].greedy,
            "history": history,
            "groups found": count,
        }

    def _on_family(self) -> dict[str, Any]:
        on = pw.Cluster.parse(self.cluster)

        def problems(part: Any) -> list[pw.Problem]:
            graphs = family(self.network, part)
            return [pw.Problem(each, on, discipline="ready") for each in graphs]

        trainer = self._trained(problems("train"))
        rows = trainer.log
        points = sorted({(len(rows) - 1) * at // (POINTS - 1) for at in range(POINTS)})
        tests = [placed(trainer.policy, each) for each in problems("test")[: self.tests]]
        return {
            "judged": trainer.evaluations,
            "placed": tests,
            "curve": [[rows[at].plans, rows[at].mean, rows[at].entropy] for at in points],
        }

    def _on_mix(self) -> dict[str, Any]:
        """Beside the pair policy that ships, on graphs of all families; the policy is kept."""
        from train_policies import EACH, drawn_problems

        trainer = self._trained(drawn_problems(self.graph, EACH, 0))
        tried = []
        for name in FAMILIES:
            for graph in family(name, "test")[: self.tests]:
                for cluster in CLUSTERS:
                    problem = pw.Problem(graph, pw.Cluster.parse(cluster))
                    both = (
                        placed(trainer.policy, problem),
                        placed(shipped_policy("pair"), problem),
                    )
                    tried.append([name, cluster, *both[0], *both[1]])
        folder = Path(self.folder).parent / "policies"
        folder.mkdir(parents=True, exist_ok=True)
        label = self.what.replace(", ", "-").replace(" ", "-")
        policies.save(trainer.policy, folder / f"{label}-{self.seed}.json")
        return {"judged": trainer.evaluations, "tried": tried}

    def _trained(self, shown: Sequence[pw.Problem]) -> Trainer:
        environments = [Environment(each) for each in shown]
        found = made(self.what, self.groups)
        if self.graph == TRAIN:
            found = multi_graph_recipe(found)
        elif self.network == MIX:
            from train_policies import of_many

            found = of_many(found)
        trainer = Trainer(environments, found, self.seed, self.plans, device=self.device)
        averaged = WeightAverage()
        trainer.run(averaged)
        if self.graph == TRAIN or self.network == MIX:
            averaged.apply_to(trainer)
        return trainer


SEEN: dict[str, dict[str, Any]] = {
    "any, blind": {"rounds": 0, "blind": True, "tuned": True, "senses": False, "draft": False},
    "any, pooled": {"rounds": 0, "blind": False, "tuned": True, "senses": False, "draft": False},
    "any, vectors": {"rounds": 4, "blind": False, "tuned": True, "senses": False, "draft": False},
    "any, senses": {"rounds": 0, "blind": False, "tuned": True, "senses": True, "draft": False},
    "any, draft": {"rounds": 0, "blind": False, "tuned": True, "senses": True, "draft": True},
    "any, all": {"rounds": 2, "blind": False, "tuned": True, "senses": True, "draft": True},
}
"""What a policy for any devices sees of the graph: nothing, what is before, after and beside each
group, the same after rounds of messages, neighbours on each device, those with a draft, and all of
it."""

GROUPED: dict[str, dict[str, Any]] = {
    "any, fixed groups": {"merge": False},
    "any, joint": {"merge": True},
}
"""Groups made beforehand, or chosen with the placement."""


def made(what: str, groups: int) -> Recipe:
    """A recipe, by what it is called in the tables."""
    if what == "colocrl, padded":
        found = find_recipe("colocrl", groups=groups, grouping="coarse")
        return replace(found, policy_config=replace(found.policy_config, padded=True))  # type: ignore[type-var]
    if what == "placeto-any":
        return find_recipe("placeto-any")
    if what in SEEN:
        found = find_recipe("placeto-any")
        return replace(found, policy_config=replace(found.policy_config, **SEEN[what]))  # type: ignore[type-var]
    if what in GROUPED:
        found = find_recipe("placeto-joint", groups=groups)
        return replace(found, policy_config=replace(found.policy_config, **GROUPED[what]))  # type: ignore[type-var]
    found = find_recipe(what.partition(",")[0], groups=groups)
    if what.startswith("placeto"):  # half the time, for half the decisions learned from
        found = replace(found, policy_config=replace(found.policy_config, learn_fraction=0.5))  # type: ignore[type-var]
    if what.endswith(", end alone"):  # as with rewards per step, but for the reward
        return replace(found, self_imitation=find_recipe("placeto-steps").self_imitation)
    if what.endswith(", no messages"):
        found = replace(found, self_imitation=find_recipe("placeto-steps").self_imitation)
        return replace(found, policy_config=replace(found.policy_config, rounds=0))  # type: ignore[type-var]
    return found


def kept(network: str, folder: Path) -> pw.Graph:
    """A network of the zoo, from the folder if it is there, else captured and kept there."""
    path = folder / f"{network}.json.gz"
    if path.exists():
        return files.load(path, "graph")
    graph = pw.zoo.load(network)
    folder.mkdir(parents=True, exist_ok=True)
    files.save(graph, path)
    return graph


def placed(policy: Policy, problem: pw.Problem, drawn: int = DRAWN) -> tuple[float, float]:
    """What a policy's likeliest plan takes, and the best of it and some drawn ones."""
    values = []
    for count, greedy in ((1, True), (drawn, False)):
        episodes = policy.act(problem, count, 1, greedy=greedy)
        last = np.flatnonzero(np.append(np.diff(episodes.episode_of) > 0, True))
        order = None if episodes.priority is None else episodes.priority[last]
        verdict = pw.judge(problem, episodes.placements[last], order)
        fitting = np.where(verdict.overflow > 0, np.inf, verdict.value)
        values.append(float(fitting.min()))
    return values[0], min(values)


def by_solvers(problem: pw.Problem, groups: int, seconds: float, seed: int) -> dict[str, float]:
    """What random plans and methods without learning take."""
    found = {"random": at_random(problem, groups)}
    methods: dict[str, solvers.Solver] = {
        "best single device": solvers.SingleDevices(),
        "HEFT": solvers.HEFT(),
        "m-ETF": solvers.METF(),
    }
    if solvers.expert.has_expert(problem):
        methods["expert"] = solvers.Expert()
    for name, solver in methods.items():
        found[name] = solved(problem, solver)
    if seconds:
        found["auto"] = solved(problem, solvers.Auto(), stop=pw.MaxTime(seconds), seed=seed)
    return found


HANDS = {
    "cifar10": ExpertRule("cells in order, one stretch for each GPU", (("cells",),)),
    "ptb": ExpertRule("one GPU: there is one layer"),
    "nmt": ExpertRule(
        "a layer for each GPU",
        (("encoder.layers",), ("decoder.layers",)),
        on_last_gpu=("attention",),
    ),
}
"""Where a person would put the graphs of a family; the papers' experts do so with their like."""


def by_hand(problem: pw.Problem, name: str) -> float:
    """What the expert's placement takes; what the rule is silent about goes with what it reads."""
    order = accelerators(problem)
    ops = problem.graph.ops
    piece = HANDS[name].place([op.module for op in ops], len(order))
    device = np.full(len(ops), order[0], dtype=np.int32)
    for at, op in enumerate(ops):
        if op.module in piece:
            device[at] = order[piece[op.module]]
        elif op.inputs:
            device[at] = device[max(source for source, _ in op.inputs)]
    verdict = pw.judge(problem, problem.legalize(device[None]))
    return float(verdict.value[0]) if verdict.overflow[0] == 0 else float("inf")


def at_random(problem: pw.Problem, groups: int) -> float:
    """The median of 64 random placements of the same groups."""
    grouping = group_ops(problem, "coarse", groups)
    legal = legal_devices(problem, grouping)
    luck = np.random.default_rng(0).random((64, *legal.shape))
    rows = np.where(legal, luck, -1.0).argmax(axis=2).astype(np.int32)
    return float(np.median(pw.judge(problem, problem.legalize(grouping.expand(rows))).value))


def solved(problem: pw.Problem, solver: solvers.Solver, **how: Any) -> float:
    result = pw.solve(problem, solver, **how)
    return result.objective_value if result.fits else float("inf")


def run_all(jobs: Sequence[Job], path: Path, at_once: int) -> list[dict[str, Any]]:
    """Every job's line, those in the file first; none is run anew if `at_once` is 0."""
    rows = read(path)
    known = {key_of(row) for row in rows}
    waiting = [job for job in dict.fromkeys(jobs) if key_of(asdict(job)) not in known]
    if at_once and waiting:
        path.parent.mkdir(parents=True, exist_ok=True)
        # Processes read it as they begin: small networks are quickest with one thread.
        os.environ |= {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
        began = time.perf_counter()
        with ProcessPoolExecutor(at_once, mp_context=get_context("spawn")) as pool:
            for done in as_completed([pool.submit(job) for job in waiting]):
                row = done.result()
                rows.append(row)
                with path.open("a") as file:
                    file.write(json.dumps(row) + "\n")
                shown = (row[name] for name in ("what", "network", "graph", "cluster", "seed"))
                passed = time.perf_counter() - began
                print(f"{passed:5.0f} s:", *shown, f"in {row['seconds']:.0f} s", flush=True)
    # In one order, whichever was done first; what needs no learning before what does.
    place = {key_of(asdict(job)): (job.what != SOLVERS, job.what, job.seed) for job in jobs}
    found = [row for row in rows if key_of(row) in place]
    return sorted(found, key=lambda row: place[key_of(row)])


def read(path: Path) -> list[dict[str, Any]]:
    """The lines of a file, if it is there."""
    if not path.exists():
        return []
    return [json.loads(line) for line in path.read_text().splitlines()]


def key_of(row: dict[str, Any]) -> tuple[Any, ...]:
    """What tells a job from others, of its line; where it ran does not matter."""
    names = [name for name in Job.__dataclass_fields__ if name not in ("device", "folder")]
    return tuple(row[name] for name in names)
