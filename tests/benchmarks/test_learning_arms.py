"""The benchmark of arms: what it counts, pairs and prints; and the policy gradient, enumerated."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest

from placewright import judge

torch = pytest.importorskip("torch")
ROOT = Path(__file__).parent.parent.parent


@pytest.fixture(autouse=True)
def _root_on_path(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT))


def line(arm, seed, best, over=0, row="rnnlm", plans=1000):
    return {
        "system": "colocrl", "row": row, "arm": arm, "seed": seed, "plans": plans, "best": best,
        "over": over, "curve": [[10, 2 * best], [100, best]],
    }  # fmt: skip


def test_pairs_are_of_the_same_row_and_seed_and_unfit_plans_count_twice():
    from benchmarks.learning.arms import Results

    rows = [line("as shipped", 0, 1.0), line("never learns", 0, 2.0)]
    rows += [line("as shipped", 1, 1.0, over=5), line("never learns", 1, 2.0)]
    rows += [line("as shipped", 2, 1.0), line("never learns", 2, 9.0, plans=500)]
    results = Results(rows, 1000)
    assert results.values("colocrl", "rnnlm", "as shipped") == [1.0, 2.0, 1.0]
    (logs,) = results.logs(["colocrl"], "as shipped", "never learns").values()
    assert logs == pytest.approx([math.log(0.5), 0.0])


def lines_of(values, seeds=3):
    rows = [line("single device", 0, 3.0, row=row, plans=0) for row in ROWS]
    return rows + [
        {**line(arm, seed, best * (1 + 0.001 * seed), row=row), "greedy": 6.0}
        for arm, best in values.items()
        for seed in range(seeds)
        for row in ROWS
    ]


ROWS = ("rnnlm", "nmt", "inception-v3")
STEP_TIMES = {"never learns": 2.0, "rewards only": 2.0, "as shipped": 1.0, "local search": 0.9}


def test_the_verdict_follows_the_runs():
    from benchmarks.learning.arms import Results, verdict

    text = verdict(Results(lines_of(STEP_TIMES), 1000), "colocrl")
    assert text.startswith("not learned from rewards (1.000")
    assert "; learned (0.500" in text
    assert "; not better than local search (1.111" in text
    assert text.endswith("argmax plan of `as shipped` / best single device 2.000")
    other = verdict(Results(lines_of({**STEP_TIMES, "rewards only": 1.5}), 1000), "colocrl")
    assert other.startswith("learned from rewards (0.750")


def test_few_seeds_decide_nothing_and_have_no_interval():
    from benchmarks.learning.arms import Results, ratio, verdict

    assert "6 of 9 pairs" in verdict(Results(lines_of(STEP_TIMES, seeds=2), 1000), "colocrl")
    assert verdict(Results([], 1000), "go").startswith("not decided, 0 of 9")
    one = Results(lines_of(STEP_TIMES, seeds=1), 1000)
    assert ratio(one.logs(["colocrl"], "as shipped", "never learns")) == "0.500, 3 of 3"


def test_all_arms_of_a_row_have_the_same_seeds_and_plans():
    from benchmarks.learning.arm_runs import UNSEEDED
    from benchmarks.learning.arms import needed_runs
    from benchmarks.learning.rows import SYSTEMS

    runs = needed_runs([*SYSTEMS], range(3), 1000)
    assert len(set(runs)) == len(runs)
    for name, system in SYSTEMS.items():
        for row in system.rows:
            mine = [run for run in runs if (run.system, run.row) == (name, row.name)]
            arms = {run.arm for run in mine} - set(UNSEEDED)
            assert arms >= {"never learns", "rewards only", "as shipped", "local search", "auto"}
            for arm in arms:
                assert [(r.seed, r.plans) for r in mine if r.arm == arm] == [
                    (seed, 1000) for seed in range(3)
                ]


def test_a_report_and_figures_are_made_from_the_file(tmp_path, capsys):
    import json

    from benchmarks.learning.arms import main

    path = tmp_path / "arms.jsonl"
    rows = [
        line(arm, seed, 1.0 + seed) for arm in ("as shipped", "never learns") for seed in (0, 1)
    ]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    main(["report", "--systems", "colocrl", "--out", str(path)])
    text = capsys.readouterr().out
    assert "1.5000 (1.0000–2.0000)" in text
    assert "4.99, 4.04 [M+]" in text
    folder = tmp_path / "figures"
    main(["figures", "--systems", "colocrl", "--out", str(path), "--folder", str(folder)])
    picture = (folder / "arms-colocrl.svg").read_text()
    assert picture.count('stroke-width="1.8"') == 2  # the curves of two arms
    assert "never learns" in picture


def test_a_teachers_plans_are_in_the_budget():
    from benchmarks.learning.arm_runs import Run

    rows = [Run("go", "txl-2", arm, 0, 150)() for arm in ("taught then frozen", "never learns")]
    assert [row["teacher_plans"] for row in rows] == [75, 1]
    for row in rows:
        assert 150 - 19 < row["judged"] <= 150
        assert row["curve"][0][0] > row["teacher_plans"]


@pytest.fixture(scope="module")
def tiny():
    """A problem of 6 groups on 3 devices, its 729 choices, and their step times."""
    import sys

    sys.path.insert(0, str(ROOT))
    try:
        from benchmarks.learning.gate import all_group_choices, tiny_problem
    finally:
        sys.path.remove(str(ROOT))
    problem = tiny_problem()
    choices, placements = all_group_choices(problem, 6)
    return problem, choices, placements, judge(problem, placements).value


def test_sampled_plans_estimate_the_exact_policy_gradient(tiny):
    """The gradient of the mean step time, summed over all 729 plans, against 65,536 samples."""
    from benchmarks.learning.gate import gate_recipe
    from placewright.policies import Episodes

    problem, choices, placements, seconds = tiny
    policy = gate_recipe("mean", 64, 6, 16).policy_config.build(problem, 0)

    def gradient(loss):
        loss.backward()
        found = torch.cat([each.grad.flatten() for each in policy.parameters()])
        policy.zero_grad()
        return found

    count = len(choices)
    everything = Episodes(
        {"device": choices}, placements, np.arange(count), np.zeros((count, 6), dtype=np.float32)
    )
    log_prob = policy.score(problem, everything).log_prob.sum(dim=1)
    assert float(log_prob.exp().sum().detach()) == pytest.approx(1.0, abs=1e-4)
    exact = gradient((log_prob.exp() * torch.as_tensor(seconds, dtype=torch.float32)).sum())

    sampled = policy.act(problem, 65_536, 1)
    values = judge(problem, sampled.placements).value
    credit = torch.as_tensor(values - values.mean(), dtype=torch.float32)
    estimate = gradient((credit * policy.score(problem, sampled).log_prob.sum(dim=1)).mean())
    assert float(torch.nn.functional.cosine_similarity(exact, estimate, dim=0)) > 0.95


@pytest.mark.parametrize("arm", ["mean", "top"])
def test_the_policy_gradient_learns_a_problem_that_can_be_enumerated(tiny, arm):
    """Its argmax plan ends among the best 5 % of all plans; it began among the others."""
    from benchmarks.learning.gate import train_tiny

    problem, _, _, seconds = tiny
    log = train_tiny(problem, arm, seed=0).log
    good = np.quantile(seconds, 0.05)
    assert log[-1].greedy <= good < log[0].greedy
    assert log[-1].entropy < log[0].entropy


def test_the_control_is_taught_one_device_and_stays_there(tiny):
    from benchmarks.learning.arm_runs import teach_one_device
    from benchmarks.learning.gate import gate_recipe
    from placewright.training import Environment, Trainer

    problem = tiny[0]
    recipe = gate_recipe("noise only", 8, 6, 16)
    trainer = Trainer([Environment(problem)], recipe, 0, 40, device="cpu")
    teach_one_device(trainer)
    singles = judge(problem, problem.single_device_placements()).value
    assert trainer.evaluations == len(singles)
    trainer.run()
    assert all(row.greedy == singles.min() for row in trainer.log)


def test_only_runs_without_a_schedule_are_cut_to_fewer_plans():
    from benchmarks.learning.gate import comparable

    def run(arm, plans, seed=0):
        curve, learned = [[10, 2.0], [90, 1.0]], [[10, 2.0], [90, 1.0]]
        row = {"network": "a", "arm": arm, "batch": 8, "seed": seed, "plans": plans, "hidden": 64}
        return {**row, "curve": curve, "learned": learned}

    rows = [run("never learns", 100), run("top", 100), run("top", 50, seed=1)]
    found = comparable([*rows, run("never learns", 20, seed=2)], 50, 64)
    assert [(row["arm"], row["seed"]) for row in found] == [("never learns", 0), ("top", 1)]
    assert found[0]["curve"] == found[0]["learned"] == [[10, 2.0]]
    assert comparable(rows, 50, 128) == []
