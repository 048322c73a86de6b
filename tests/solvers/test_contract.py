"""Every solver: its time is the simulator's, same seed same plan, it stops, it keeps rules."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import cache
from importlib.util import find_spec
from typing import TYPE_CHECKING

import numpy as np
import pytest
from small_problems import random_problem

from placewright import (
    Constraints,
    Graph,
    MaxEvaluations,
    MaxTime,
    Op,
    Plan,
    Problem,
    simulate,
    solvers,
)
from placewright.errors import ConfigError
from placewright.solvers import (
    HEFT,
    LNS,
    METHODS,
    ON_REQUEST,
    Annealing,
    Auto,
    CPoP,
    CrossEntropy,
    Exact,
    Expert,
    FusionSearch,
    Genetic,
    Islands,
    LocalSearch,
    OrderSearch,
    PopulationAnnealing,
    RuntimeSolver,
    Search,
    SingleDevice,
    Solver,
    Stop,
    solve,
)
from placewright.training.policy_solver import POLICY_SOLVERS

if TYPE_CHECKING:
    from placewright.problem import Discipline, Objective
    from placewright.result import Result

SOLVERS: dict[str, Solver] = {
    # The expert knows the networks of the zoo alone: see tests/zoo/test_capture.py.
    **{name: make() for name, make in METHODS.items() if name != "expert"},
    # As little walking as shows all that they do.
    "annealing": Annealing(rounds=2, first_round=30),
    "auto": Auto(first_evaluations=10, exact=False),
    "islands": Islands(2, (Auto(first_evaluations=10, exact=False),), 50, workers="threads:1"),
    # Searches, which would go on for thousands of plans.
    "local-search": LocalSearch(batch=8, max_plans=100),
    "genetic": Genetic(population=12, max_plans=100),
    "cross-entropy": CrossEntropy(batch=20, max_plans=100),
    "population-annealing": PopulationAnnealing(replicas=12, max_plans=100),
    "order-search": OrderSearch(batch=8, max_plans=60),
    "fusion-search": FusionSearch(batch=8, max_plans=60),
    "single gpu0": SingleDevice("gpu0"),
    **{
        name: replace(make(), samples=3)
        for name, make in POLICY_SOLVERS.items()
        if name == "pair" or find_spec("torch")
    },
    "heft-contended": HEFT(contended=True),
    "cpop-contended": CPoP(contended=True),
    "exact": Exact(deterministic=0.05),
    "lns": LNS(window=4, work=0.02, patience=2),
}
ABSENT = set() if find_spec("ortools") else {Exact, LNS}
ABSENT |= set() if find_spec("torch") else {PopulationAnnealing}
"""Solvers whose package is not installed."""
SOLVERS = {name: solver for name, solver in SOLVERS.items() if type(solver) not in ABSENT}

PARTITIONERS = ("metis", "kahip", "scotch", "mincut")
PROBLEMS = [
    ("chain", "one_device"),
    ("diamond", "two_devices"),
    ("fork_join", "shared_wire"),
    ("layers", "gpu_and_host"),
    ("layers", "shared_wire"),
    ("diamond", "in_a_row"),
]
LACKS = {
    "one_device": {"cpu-only"},
    "two_devices": {"cpu-only"},
    "in_a_row": {"cpu-only", "single gpu0"},
}
"""Solvers that ask for a device which the cluster does not have."""

NO_BASELINES = {*ON_REQUEST, *POLICY_SOLVERS, "auto", "cpop-contended", "fusion-search"} - {
    "baselines"
} | {name for name in SOLVERS if name.startswith(PARTITIONERS)}
"""Searches, a variant, and what needs packages beside the core."""

QUICK_PROBLEMS = (("layers", "gpu_and_host"), ("diamond", "in_a_row"))
QUICK_RULES = (("in order", "step"), ("ready", "period"))
"""What the unmarked tests look at; the whole product is slow."""


def unless(quick: bool) -> list[pytest.MarkDecorator]:
    return [] if quick else [pytest.mark.slow]


every_solver = pytest.mark.parametrize("name", SOLVERS)
every_rule = pytest.mark.parametrize(
    ("discipline", "objective"),
    [
        pytest.param(d, o, marks=unless((d, o) in QUICK_RULES))
        for d in ("in order", "ready")
        for o in ("step", "period")
    ],
)
every_problem = pytest.mark.parametrize(
    ("graph", "cluster"),
    [pytest.param(*pair, marks=unless(pair in QUICK_PROBLEMS)) for pair in PROBLEMS],
)
every_pair = pytest.mark.parametrize(
    ("name", "graph", "cluster"),
    [
        pytest.param(name, graph, cluster, marks=unless((graph, cluster) in QUICK_PROBLEMS))
        for name in SOLVERS
        for graph, cluster in PROBLEMS
        if name not in LACKS.get(cluster, set())
    ],
)
every_seed = pytest.mark.parametrize(
    "seed", [pytest.param(seed, marks=unless(seed == 0)) for seed in range(4)]
)
every_look = pytest.mark.parametrize(
    "looks", [pytest.param(looks, marks=unless(looks in (0, 3))) for looks in range(12)]
)


Named = Callable[..., Problem]


@pytest.fixture(scope="module")
def shared() -> dict[tuple[str, ...], Problem]:
    """Problems by what they are: one that many tests share has its bound worked out once."""
    return {}


@pytest.fixture
def named(request: pytest.FixtureRequest, shared: dict[tuple[str, ...], Problem]) -> Named:
    """The problem of a graph and a cluster of the cast; its limits belong to its name."""

    def make(
        graph: str,
        cluster: str,
        discipline: Discipline = "in order",
        objective: Objective = "step",
        **limits: int,
    ) -> Problem:
        key = (graph, cluster, discipline, objective, str(limits))
        if key not in shared:
            shared[key] = Problem(
                request.getfixturevalue(graph),
                request.getfixturevalue(cluster),
                constraints=Constraints(limits=limits),
                discipline=discipline,
                objective=objective,
            )
        return shared[key]

    return make


@cache
def any_problem(seed: int, discipline: Discipline, objective: Objective) -> Problem:
    return random_problem(seed, discipline, objective, ops=9)


def run(problem: Problem, name: str, stop: MaxEvaluations | MaxTime | None = None) -> Result:
    return solve(problem, SOLVERS[name], stop, seed=3)


@every_rule
@every_pair
def test_a_result_is_what_the_simulator_says(
    name: str,
    graph: str,
    cluster: str,
    discipline: Discipline,
    objective: Objective,
    named: Named,
) -> None:
    problem = named(graph, cluster, discipline, objective)
    result = run(problem, name)
    timeline = simulate(problem, result.plan)
    assert result.step_time == timeline.step_time
    assert result.period == timeline.period
    assert result.overflow == timeline.overflow
    assert result.objective_value == result.history[-1][2]
    assert result.objective_value >= result.bound
    assert result.solver == SOLVERS[name].name


@every_pair
def test_the_same_seed_gives_the_same_plan(
    name: str, graph: str, cluster: str, named: Named
) -> None:
    problem = named(graph, cluster)
    assert run(problem, name).plan == run(problem, name).plan
    stop = MaxEvaluations(5)
    assert run(problem, name, stop).plan == run(problem, name, stop).plan


@every_pair
def test_a_solver_stops_when_it_is_told(name: str, graph: str, cluster: str, named: Named) -> None:
    problem = named(graph, cluster)
    assert run(problem, name, MaxEvaluations(1)).evaluations == 1
    assert run(problem, name, MaxEvaluations(2)).evaluations <= 2
    alone = run(problem, name, MaxTime(0))
    assert alone.evaluations <= 100  # the first batch and no more


@every_rule
@every_solver
@every_seed
def test_random_problems_get_plans_that_keep_their_constraints(
    seed: int, name: str, discipline: Discipline, objective: Objective
) -> None:
    problem = any_problem(seed, discipline, objective)
    result = run(problem, name)
    assert Plan.of(problem, result.plan.placement) is not None  # it would raise
    assert result.objective_value >= result.bound


@every_solver
def test_pins_forbidden_devices_and_colocation_are_kept(
    name: str, fork_join: Graph, request: pytest.FixtureRequest
) -> None:
    constraints = Constraints(
        pins={"branch0": "cpu"},
        forbid={"join": ("gpu0", "cpu")},
        colocate=(("branch1", "branch3"),),
    )
    problem = Problem(fork_join, request.getfixturevalue("shared_wire"), constraints=constraints)
    device = dict(zip(problem.graph.position, run(problem, name).plan.placement, strict=True))
    assert device["branch0"] == 2
    assert device["join"] == 1
    assert device["branch1"] == device["branch3"]


@every_rule
@pytest.mark.parametrize("name", [name for name in SOLVERS if name != "cpu-only"])
def test_one_op_on_one_device_is_placed(
    name: str, discipline: Discipline, objective: Objective, request: pytest.FixtureRequest
) -> None:
    graph, cluster = Graph("one", (Op("only", flops=3),)), request.getfixturevalue("one_device")
    costs = request.getfixturevalue("exact")
    result = run(Problem(graph, cluster, costs, discipline=discipline, objective=objective), name)
    assert result.plan.placement.tolist() == [0]
    assert result.objective_value == 3.0
    assert result.gap == pytest.approx(0)


@every_solver
def test_where_nothing_fits_the_least_overflow_is_the_result(name: str, named: Named) -> None:
    result = run(named("layers", "gpu_and_host", gpu0=0, cpu=0), name)
    assert not result.fits
    assert result.overflow >= 100  # the two weights alone


@every_rule
@every_problem
def test_baselines_are_no_worse_than_any_of_them(
    graph: str, cluster: str, discipline: Discipline, objective: Objective, named: Named
) -> None:
    problem = named(graph, cluster, discipline, objective)
    best = run(problem, "baselines").key
    for name in SOLVERS.keys() - LACKS.get(cluster, set()) - NO_BASELINES:
        assert best <= run(problem, name).key, name


def test_baselines_are_no_worse_than_any_single_device() -> None:
    for seed in range(20):
        problem = random_problem(seed, ops=8)
        best = solve(problem, SOLVERS["baselines"]).key
        assert best <= solve(problem, SOLVERS["single"]).key


def test_an_unknown_device_is_refused_with_the_nearest(diamond_problem: Problem) -> None:
    message = r"cluster 'two_devices' has no device 'gpu7': did you mean 'gpu[01]'\?"
    with pytest.raises(ConfigError, match=message):
        solve(diamond_problem, SingleDevice("gpu7"))


def test_cpu_only_needs_a_cpu(diamond_problem: Problem) -> None:
    message = r"cluster 'two_devices' has no cpu: add one, or choose another method"
    with pytest.raises(ConfigError, match=message):
        solve(diamond_problem, SOLVERS["cpu-only"])


def test_solvers_hold_nothing_but_their_settings() -> None:
    for name, make in METHODS.items():
        solver = make()
        assert solver == make()
        assert solver.name == name
        with pytest.raises(AttributeError):
            solver.name = "other"  # type: ignore[misc]


def test_every_solver_is_in_this_contract() -> None:
    public = [getattr(solvers, name) for name in solvers.__all__]
    kinds = {kind for kind in public if isinstance(kind, type) and hasattr(kind, "run")}
    tested = {type(solver) for solver in SOLVERS.values()}
    learned = {kind for kind in tested if kind.__module__.startswith("placewright.training")}
    assert kinds - {Solver, RuntimeSolver, Expert} == (tested - learned) | ABSENT


def test_all_solvers_see_the_same_arrays(diamond_problem: Problem) -> None:
    """No solver writes into the problem."""
    a = diamond_problem.arrays
    before = {field: np.array(value) for field, value in vars(a).items()}
    solve(diamond_problem, SOLVERS["baselines"])
    for field, value in before.items():
        assert np.array_equal(getattr(a, field), value), field


class Sudden(Stop):
    """Time that runs out between two looks at the clock."""

    def __init__(self, looks: int) -> None:
        self.looks = looks

    def __call__(self, search: Search) -> bool:
        self.looks -= 1
        return self.looks < 0


@every_solver
@every_look
def test_time_may_run_out_at_any_moment(name: str, looks: int, named: Named) -> None:
    problem = named("layers", "gpu_and_host", gpu0=8)
    result = solve(problem, SOLVERS[name], Sudden(looks))
    assert result.evaluations >= 1
    assert result.step_time == simulate(problem, result.plan).step_time


def test_a_renamed_method_is_found_by_its_old_name_with_a_warning() -> None:
    assert "schedule" in METHODS
    with pytest.warns(FutureWarning, match="method 'schedule' is called 'order-search' now"):
        assert METHODS["schedule"] is OrderSearch
    assert "schedule" not in list(METHODS)
    with pytest.raises(KeyError):
        METHODS["scheduler"]
