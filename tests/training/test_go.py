"""GO's training: teachers' plans come back, imitation imitates, and PPO goes on from it."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest

from placewright import Plan, judge, policies, simulate
from placewright.errors import FileError
from placewright.solvers.ordering.priority_rules import rule_priorities

torch = pytest.importorskip("torch")
from placewright.policies.go.config import GoConfig  # noqa: E402
from placewright.training.go.demonstrations import (  # noqa: E402
    DemonstrationTask,
    graph_file,
    make_demonstration,
    read_demonstrations,
    read_records,
)
from placewright.training.go.imitation import Imitation, train_by_imitation  # noqa: E402
from placewright.training.go.issue_order import IssueOrderEnvironment, issue_priorities  # noqa: E402
from placewright.training.go.proposer import GoProposer  # noqa: E402
from placewright.training.go.trainer import (  # noqa: E402
    GoRecipe,
    GoTrainer,
    report_rows,
)

SMALL = GoConfig(hidden=16, heads=2, segment=16, layers=1, tasks=("device", "priority"))
TASKS = (
    DemonstrationTask("branches:modules=1", "2xP100+cpu", "ready"),
    DemonstrationTask("branches:modules=1", "3xP100+cpu", "in order", 1.5),
)


@pytest.fixture(scope="module")
def taught_file(tmp_path_factory):
    path = tmp_path_factory.mktemp("go") / "teachers.jsonl"
    rows = [make_demonstration(task, task.problem(), (50, 300), 20.0) for task in TASKS]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


@pytest.fixture
def lessons(taught_file):
    return read_demonstrations(taught_file)


@pytest.fixture(autouse=True)
def one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def test_teachers_plans_come_back_the_best_first(lessons, taught_file, tmp_path):
    assert [lesson.task for lesson in lessons] == list(TASKS)
    for lesson in lessons:
        keys = list(zip(lesson.overflow.tolist(), lesson.objective_values.tolist(), strict=True))
        assert keys == sorted(keys)
        assert {"start", "m-etf", "heft"} & set(lesson.found_by)
        assert len(np.unique(lesson.placements, axis=0)) == len(lesson.placements)
        judge(lesson.problem, lesson.placements)  # raises unless all are lawful
    assert lessons[1].problem.arrays.capacity[0] < lessons[0].problem.arrays.capacity[0]
    assert read_demonstrations(taught_file, tasks=TASKS[1:])[0].task == TASKS[1]
    text = taught_file.read_text()
    cut = tmp_path / "cut.jsonl"
    cut.write_text(text[: len(text) * 3 // 4])  # as when its writer was killed
    assert len(read_records(cut)) == 1
    other = tmp_path / "other.jsonl"
    other.write_text(text.replace("modules=1", "modules=2"))
    with pytest.raises(FileError, match="line 1 was made from another graph"):
        read_demonstrations(other)


def test_a_folders_graph_takes_the_zoos_place(tmp_path):
    from placewright import files, zoo

    files.save(zoo.load("branches:modules=2"), graph_file("branches:modules=1", tmp_path))
    assert len(TASKS[0].problem(tmp_path).graph) > len(TASKS[0].problem().graph)


def test_in_order_devices_are_issued_what_a_ready_executor_would_start():
    problem = DemonstrationTask("layered:ops=60,seed=1", "3xP100", "in order").problem()
    rng = np.random.default_rng(0)
    device = rng.integers(0, 3, size=(2, 60)).astype(np.int32)
    rank = -np.arange(60.0)[None].repeat(2, axis=0)
    orders = issue_priorities(problem, device, rank)
    ready = DemonstrationTask("layered:ops=60,seed=1", "3xP100", "ready").problem()
    expected = simulate(ready, Plan.of(ready, device[1], rank[1])).start
    assert (orders[1] == expected).all()
    assert issue_priorities(ready, device, rank) is rank
    assert issue_priorities(problem, device, None) is None
    environment = IssueOrderEnvironment(problem)
    judged = environment.judge(device, "test", rank)
    assert judged.seconds.tolist() == judge(problem, device, orders).value.tolist()
    best = judge(problem, environment.best_placement[None], environment.best_priority[None])
    assert best.value[0] == environment.best_key[1]


def test_imitation_puts_units_where_the_teacher_has_them_and_mends_what_was_moved(lessons):
    """Taught on one problem whose strong plan is not its first one."""
    problem = lessons[1].problem
    policy = SMALL.build(problem)
    rows = train_by_imitation(
        policy, lessons[1:], steps=60, learning_rate=5e-3, imitation=Imitation(unit_probability=1.0)
    )
    assert rows[-1]["loss"] < 0.7 * rows[0]["loss"]
    first, last = (np.mean([row["pass 0"] for row in part]) for part in (rows[:5], rows[-10:]))
    assert last > 0.85
    assert last > first
    seen = policy.observe(problem)
    strong = policy.act(problem, 1, 0, greedy=True).placements[0]
    free = np.flatnonzero(problem.arrays.scheduled & (problem.arrays.allowed.sum(axis=1) > 1))
    likely = GoProposer(policy).move_probabilities(problem, Plan.of(problem, strong))
    assert likely[np.arange(len(strong)), strong][free].mean() > 0.7
    broken = strong.copy()
    unit = int(seen.unit[free[len(free) // 2]])
    broken[seen.unit == unit] = (broken[seen.unit == unit] + 1) % 2
    moved = np.flatnonzero((broken != strong) & problem.arrays.scheduled)
    likely = GoProposer(policy).move_probabilities(problem, Plan.of(problem, broken))
    assert likely[moved, strong[moved]].mean() > 0.5


def test_damage_is_small_or_large_and_lawful(lessons):
    policy = SMALL.build(lessons[0].problem)
    seen, rng = policy.observe(lessons[0].problem), np.random.default_rng(0)
    strong = lessons[0].placements[0][seen.leader]
    rows = [Imitation()._damage_plan(seen, strong, [], rng) for _ in range(60)]
    assert all(seen.legal[np.arange(len(seen)), row].all() for row in rows)
    moved = [float((row != strong).mean()) for row in rows]
    assert min(moved) < 0.1 < max(moved)


def test_training_imitates_then_learns_from_rewards_and_reports(lessons, tmp_path):
    recipe = GoRecipe(episodes=8, imitation_share=0.5)
    shape = replace(SMALL, timed=True, starts=3)
    training = GoTrainer(shape.build(lessons[0].problem), lessons, recipe, device="cpu")
    training.run(1e9, max_steps=12)
    parts = [point.part for point in training.log]
    assert parts == ["imitation"] * 6 + ["ppo"] * 5  # the last problem's plans were judged alone
    assert all(np.isfinite(point.said["gradient"]) for point in training.log)
    rows = report_rows(training)
    assert [row["task"] for row in rows] == [task.key for task in TASKS]
    assert all(row["best"] <= min(1.0, row["likeliest"]) for row in rows)
    evaluations = [each.evaluations for each in training.environments]
    assert sum(evaluations) >= 6 * 8 + 5 + 2  # drawn, argmax, teachers

    own, plans = dict(training.best_keys), [each.evaluations for each in training.environments]
    training.try_priority_rules(0)
    more = training.environments[0].evaluations - plans[0]
    assert more >= 10  # a plan in so many orders at least
    best = training.best_keys[0]
    assert best <= own[0]
    devices = training.policy.observe(lessons[0].problem).legalize(training.elites[0].placements)
    orders = [rule_priorities(lessons[0].problem, one).values() for one in devices]
    values = [
        float(judge(lessons[0].problem, device[None], order[None]).value[0])
        for device, several in zip(devices, orders, strict=True)
        for order in several
    ]
    assert best[1] == min(own[0][1], *values)

    training.save(tmp_path / "run" / "checkpoint.json")
    again = GoTrainer(shape.build(lessons[0].problem, seed=9), lessons, recipe, device="cpu")
    again.resume(tmp_path / "run" / "checkpoint.json")
    assert (again.steps, again.seconds) == (12, training.seconds)
    expected, found = training.policy.state_dict(), again.policy.state_dict()
    assert all((expected[name] == found[name]).all() for name in expected)
    mine, theirs = (each.optimizer.state_dict()["state"] for each in (training, again))
    assert mine.keys() == theirs.keys()
    assert all((mine[at]["exp_avg"] == theirs[at]["exp_avg"]).all() for at in mine)


def test_a_plan_better_than_the_teachers_is_taught_from_then_on(lessons):
    given = lessons[0]
    order = SMALL.build(given.problem).priorities(given.problem, given.placements)
    value = judge(given.problem, given.placements, order).value  # in GO's order, not in their own
    worst, better = [int(value.argmax())], given.placements[[int(value.argmin())]]
    weak = replace(
        given,
        placements=given.placements[worst],
        objective_values=given.objective_values[worst],
        overflow=given.overflow[worst],
        found_by=tuple(given.found_by[at] for at in worst),
    )
    training = GoTrainer(SMALL.build(weak.problem), [weak], device="cpu")
    reference = training.reference_seconds(0)
    order = training.policy.priorities(weak.problem, better)
    judged = training.environments[0].judge(better, "sampled", order)
    assert judged.seconds[0] < reference
    training._improve_demonstration(0)
    assert training.demonstrations[0].found_by[0] == "go"
    assert (training.demonstrations[0].placements[0] == better[0]).all()


def test_a_proposer_makes_plans_and_says_where_ops_would_rather_be(lessons, tmp_path):
    for lesson in lessons:
        problem = lesson.problem
        policies.save(replace(SMALL, timed=True, starts=2).build(problem), tmp_path / "go.json")
        proposer = GoProposer.read(tmp_path / "go.json")
        plans = proposer.propose(problem, 12, seed=0)
        assert [len(proposer.propose(problem, count, seed=0)) for count in (1, 2, 3)] == [1, 2, 3]
        assert len(plans) == 12
        assert plans == proposer.propose(problem, 12, seed=0)
        again = proposer.propose(problem, 12, seed=1)
        assert plans[:8] == again[:8]  # the likeliest, the first ones, those between
        assert plans[8:] != again[8:]
        seen = proposer.policy.observe(problem)
        for at in range(2):
            first = seen.legalize(seen.initial_plans[at])
            assert (plans[2 + at].placement == first).all()
            kept = [(plans[each + at].placement == first).mean() for each in (0, 4, 6)]
            assert kept[0] <= kept[2]  # the surer a move must be, the fewer there are
        likely = proposer.move_probabilities(problem, plans[0])
        assert likely.shape == (problem.arrays.ops, problem.arrays.devices)
        np.testing.assert_allclose(likely.sum(axis=1), 1.0)
        leaders = np.unique(problem.arrays.leader)
        assert (likely[leaders][~problem.arrays.allowed[leaders]] < 1e-6).all()
    policies.save(policies.find_config("pair")().build(problem), tmp_path / "pair.json")
    with pytest.raises(FileError, match="holds policy 'pair': expected 'go'"):
        GoProposer.read(tmp_path / "pair.json")


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_training_runs_on_a_gpu(lessons):
    training = GoTrainer(SMALL.build(lessons[0].problem), lessons, device="cuda", threads=4)
    training.run(1e9, max_steps=10)
    assert training.policy.torch_device.type == "cuda"
    assert {point.part for point in training.log} == {"imitation", "ppo"}
    episodes = training.policy.act(lessons[0].problem, 4, seed=0)
    scores = training.policy.score(lessons[0].problem, episodes)
    np.testing.assert_allclose(scores.log_prob.detach().cpu(), episodes.log_prob, atol=1e-4)
