"""The runs of `placeto_claims`: training, shipped policies, and solvers.

Each run takes one thread, so that as many can run at once as there are cores.
"""

from __future__ import annotations

import copy
import time
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

import placewright as pw
from benchmarks.common import ResultFile, run_jobs
from benchmarks.train.weight_average import WeightAverage
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
"""As `graph`: the family's training graphs instead of one test graph."""
SOLVERS, SHIPS = "solvers", "ships: "
MIX = "all families"
"""As `network`: training problems of all families, as `train_policies` makes them."""
CLUSTERS = ("2xK80", "4xK80+cpu", "5xK80", "6xP100+cpu", "3xV100+2xP100+cpu")
"""The clusters that such a policy is tested on; the last three it never saw."""
SAMPLED = 15  # plans that a policy samples besides its greedy plan
POINTS = 60  # of a learning curve that are saved


@dataclass(frozen=True)
class Job:
    """One training run, one shipped policy, or the solvers, on one graph and cluster.

    Args:
        what: A name for `named_recipe`, `SOLVERS`, or `SHIPS` and the name of a shipped policy.
        network: A family's name, or a network's of the zoo.
        graph: The number of a family's test graph; `TRAIN` for its training graphs; with `MIX` the
            number of training graphs of each family, each on random clusters.
        plans: Evaluations; for `SOLVERS` the seconds of `auto`.
        tests: Test graphs (of each family) that a policy trained on several graphs places at last.
        folder: Cache of the zoo's graphs.
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
        """The problem, with devices that run ready ops first, as TensorFlow's executor does."""
        if self.network in FAMILIES:
            graph = family(self.network, "test")[self.graph]
        else:
            graph = cached_graph(self.network, Path(self.folder))
        return pw.Problem(graph, pw.Cluster.parse(self.cluster), discipline="ready")

    @property
    def key(self) -> tuple[Any, ...]:
        return key_of(asdict(self))

    def __call__(self) -> dict[str, Any]:
        began, worked = time.perf_counter(), time.process_time()
        if self.what == SOLVERS:
            problem = self.problem()
            figures = by_solvers(problem, self.groups, self.plans, self.seed)
            if self.network in EXPERTS:
                figures["expert"] = by_expert(problem, self.network)
        elif self.what.startswith(SHIPS):
            problem = self.problem()
            name = self.what.removeprefix(SHIPS)
            policy = shipped_policy(name)
            figures = dict(zip(("likeliest", "of 16"), place(policy, problem), strict=True))
            if getattr(policy.config, "candidates", 1) > 1:  # type: ignore[attr-defined]
                alone = copy.copy(policy)
                alone.config = replace(policy.config, candidates=1)  # type: ignore[attr-defined]
                figures["argmax"] = place(alone, problem, 1)[0]
            # What `placewright place --method NAME` finds.
            figures["method"] = solve_value(problem, POLICY_SOLVERS[name](), seed=self.seed)
        elif self.network == MIX:
            figures = self._on_mix()
        elif self.graph == TRAIN:
            figures = self._on_family()
        else:
            figures = self._on_graph()
        took = {
            "seconds": round(time.perf_counter() - began, 1),
            "work": round(time.process_time() - worked, 1),  # CPU seconds
        }
        return {**asdict(self), **figures, **took}

    def _on_graph(self) -> dict[str, Any]:
        trainer = self._trained([self.problem()])
        environment, policy = trainer.environments[0], trainer.policy
        count = len(policy.grouping(environment.problem))  # type: ignore[attr-defined]
        if getattr(policy.config, "merge", False):  # type: ignore[attr-defined]
            episodes = policy.act(environment.problem, 1, 0, greedy=True)
            merged = policy.merged_groups(environment.problem, episodes)  # type: ignore[attr-defined]
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
        tests = [place(trainer.policy, each) for each in problems("test")[: self.tests]]
        return {
            "judged": trainer.evaluations,
            "placed": tests,
            "curve": [[rows[at].plans, rows[at].mean, rows[at].entropy] for at in points],
        }

    def _on_mix(self) -> dict[str, Any]:
        """Compare with the shipped pair policy on graphs of all families; save the policy."""
        from benchmarks.train.train_policies import EACH, random_problems

        trainer = self._trained(random_problems(self.graph, EACH, 0))
        tried = []
        for name in FAMILIES:
            for graph in family(name, "test")[: self.tests]:
                for cluster in CLUSTERS:
                    problem = pw.Problem(graph, pw.Cluster.parse(cluster))
                    both = (
                        place(trainer.policy, problem),
                        place(shipped_policy("pair"), problem),
                    )
                    tried.append([name, cluster, *both[0], *both[1]])
        folder = Path(self.folder).parent / "policies"
        folder.mkdir(parents=True, exist_ok=True)
        label = self.what.replace(", ", "-").replace(" ", "-")
        policies.save(trainer.policy, folder / f"{label}-{self.seed}.json")
        return {"judged": trainer.evaluations, "tried": tried}

    def _trained(self, problems: Sequence[pw.Problem]) -> Trainer:
        environments = [Environment(each) for each in problems]
        recipe = named_recipe(self.what, self.groups)
        if self.graph == TRAIN:
            recipe = multi_graph_recipe(recipe)
        elif self.network == MIX:
            from benchmarks.train.train_policies import many_problems_recipe

            recipe = many_problems_recipe(recipe)
        trainer = Trainer(environments, recipe, self.seed, self.plans, device=self.device)
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
"""What a policy for any devices observes of the graph: nothing; predecessors, successors and
unordered groups of each group; these after rounds of message passing; neighbours on each device;
these with an initial placement; and all of it."""

GROUPED: dict[str, dict[str, Any]] = {
    "any, fixed groups": {"merge": False},
    "any, joint": {"merge": True},
}
"""Groups that are fixed before, or chosen with the placement."""


def named_recipe(what: str, groups: int) -> Recipe:
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
    if what.startswith("placeto"):  # half the time, since it learns from half the decisions
        found = replace(found, policy_config=replace(found.policy_config, learn_fraction=0.5))  # type: ignore[type-var]
    if what.endswith(", end alone"):  # as with rewards per step, but for the reward
        return replace(found, self_imitation=find_recipe("placeto-steps").self_imitation)
    if what.endswith(", no messages"):
        found = replace(found, self_imitation=find_recipe("placeto-steps").self_imitation)
        return replace(found, policy_config=replace(found.policy_config, rounds=0))  # type: ignore[type-var]
    return found


def cached_graph(network: str, folder: Path) -> pw.Graph:
    """A network of the zoo, from the folder; captured and saved there the first time."""
    path = folder / f"{network}.json.gz"
    if path.exists():
        return files.load(path, "graph")
    graph = pw.zoo.load(network)
    folder.mkdir(parents=True, exist_ok=True)
    files.save(graph, path)
    return graph


def place(policy: Policy, problem: pw.Problem, sampled: int = SAMPLED) -> tuple[float, float]:
    """Step time of a policy's greedy plan, and the best of it and some sampled ones."""
    values = []
    for count, greedy in ((1, True), (sampled, False)):
        episodes = policy.act(problem, count, 1, greedy=greedy)
        last = np.flatnonzero(np.append(np.diff(episodes.episode_of) > 0, True))
        order = None if episodes.priority is None else episodes.priority[last]
        verdict = pw.judge(problem, episodes.placements[last], order)
        fitting = np.where(verdict.overflow > 0, np.inf, verdict.value)
        values.append(float(fitting.min()))
    return values[0], min(values)


def by_solvers(problem: pw.Problem, groups: int, seconds: float, seed: int) -> dict[str, float]:
    """Step times of random plans and of methods without learning."""
    values = {"random": at_random(problem, groups)}
    methods: dict[str, solvers.Solver] = {
        "best single device": solvers.SingleDevices(),
        "HEFT": solvers.HEFT(),
        "m-ETF": solvers.METF(),
    }
    if solvers.expert.has_expert(problem):
        methods["expert"] = solvers.Expert()
    for name, solver in methods.items():
        values[name] = solve_value(problem, solver)
    if seconds:
        stop = pw.MaxTime(seconds)
        values["auto"] = solve_value(problem, solvers.Auto(), stop=stop, seed=seed)
    return values


EXPERTS = {
    "cifar10": ExpertRule("cells in order, one contiguous segment for each GPU", (("cells",),)),
    "ptb": ExpertRule("one GPU: there is one layer"),
    "nmt": ExpertRule(
        "a layer for each GPU",
        (("encoder.layers",), ("decoder.layers",)),
        on_last_gpu=("attention",),
    ),
}
"""Expert placements of the families, after those of the papers for similar networks."""


def by_expert(problem: pw.Problem, name: str) -> float:
    """Step time of the expert's placement; ops without a rule follow their last input."""
    order = accelerators(problem)
    ops = problem.graph.ops
    piece = EXPERTS[name].place([op.module for op in ops], len(order))
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
    scores = np.random.default_rng(0).random((64, *legal.shape))
    rows = np.where(legal, scores, -1.0).argmax(axis=2).astype(np.int32)
    return float(np.median(pw.judge(problem, problem.legalize(grouping.expand(rows))).value))


def solve_value(problem: pw.Problem, solver: solvers.Solver, **how: Any) -> float:
    """The objective of what a method finds; infinite if it does not fit."""
    result = pw.solve(problem, solver, cautious=False, **how)
    return result.objective_value if result.fits else float("inf")


def run_all(jobs: Sequence[Job], path: Path, at_once: int) -> list[dict[str, Any]]:
    """The lines of these jobs, after those that are not in the file have run; see `run_jobs`."""

    def describe(row: dict[str, Any]) -> str:
        names = " ".join(str(row[name]) for name in ("what", "network", "graph", "cluster", "seed"))
        return f"{names} in {row['seconds']:.0f} s"

    rows = run_jobs(jobs, ResultFile(path, key_of), at_once, describe)
    # In one order, whichever was done first; solvers before what learns.
    order = {job.key: (job.what != SOLVERS, job.what, job.seed) for job in jobs}
    return sorted((row for row in rows if key_of(row) in order), key=lambda row: order[key_of(row)])


def key_of(row: dict[str, Any]) -> tuple[Any, ...]:
    """What distinguishes a job from others, given its line; where it ran does not matter."""
    names = [name for name in Job.__dataclass_fields__ if name not in ("device", "folder")]
    return tuple(row[name] for name in names)
