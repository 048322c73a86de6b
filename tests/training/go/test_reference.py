"""GO's first updates are those of the training that made the shipped weights.

`reference.json` was recorded from that training. To record it again, which no change of the trainer
should need, run `python tests/training/go/test_reference.py`.
"""

from __future__ import annotations

import hashlib
import json
import math
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from placewright import judge, solve
from placewright.solvers import HEFT, METF

torch = pytest.importorskip("torch")
from placewright.policies.go.config import GoConfig  # noqa: E402
from placewright.training.go.demonstrations import (  # noqa: E402
    Demonstration,
    DemonstrationTask,
    initial_plan,
)
from placewright.training.recipes.go import go_recipe  # noqa: E402
from placewright.training.trainer import Trainer, UpdateLog  # noqa: E402

FILE = Path(__file__).parent / "reference.json"
REFERENCE = json.loads(FILE.read_text()) if FILE.exists() else {}
TASKS = (
    DemonstrationTask("branches:modules=1", "2xP100+cpu", "ready"),
    DemonstrationTask("branches:modules=1", "3xP100+cpu", "in order", 1.5),
    DemonstrationTask("layered:ops=40,seed=1,weights=yes", "3xP100", "ready"),
)
SMALL = GoConfig(hidden=16, heads=2, segment=16, layers=1, tasks=("device", "priority"))
TIMED = replace(SMALL, timed=True, starts=3)
RUNS = {
    "imitation and PPO": (SMALL, {"imitation_share": 0.5}),
    "told times": (TIMED, {"imitation_share": 0.3, "imitation_epochs": 2, "imitation_steps": 2}),
    "PPO alone": (SMALL, {"imitation_share": 0.0, "imitation_steps": 0}),
}
STEPS, EPISODES = 10, 8


def demonstrations() -> list[Demonstration]:
    """Plans of the list schedulers and GO's own initial plan, the best first."""
    made = []
    for task in TASKS:
        problem = task.problem()
        plans = [solve(problem, HEFT()).plan, solve(problem, METF()).plan, initial_plan(problem)]
        placements = np.stack([plan.placement for plan in plans])
        verdict = judge(problem, placements)
        best = verdict.best_first(len(plans))
        names = tuple(("heft", "m-etf", "start")[at] for at in best)
        made.append(
            Demonstration(
                task,
                problem,
                names,
                placements[best],
                verdict.value[best],
                verdict.overflow[best],
            )
        )
    return made


def weights_digest(policy: Any) -> str:
    digest = hashlib.sha256()
    for name, value in sorted(policy.state_dict().items()):
        digest.update(name.encode() + value.detach().cpu().numpy().tobytes())
    return digest.hexdigest()[:16]


def record(name: str) -> dict[str, Any]:
    """The weights after each update, and what each says of itself."""
    config, changes = RUNS[name]
    recipe = go_recipe(config, EPISODES, **changes)
    environments = [
        recipe.environment(each.problem, demonstration=each) for each in demonstrations()
    ]
    trainer = Trainer(environments, recipe, 0, None, device="cpu", max_updates=STEPS)
    weights: list[str] = []

    def after(trainer: Trainer) -> bool:
        weights.append(weights_digest(trainer.policy))
        return True

    trainer.run(after)
    hooks = trainer.hooks
    return {
        "weights": weights[:STEPS],
        "rows": [_figures(row, hooks.references.get(row.problem)) for row in trainer.log],
        "evaluations": [each.evaluations for each in trainer.environments],
        "best": [list(each.best_key) for each in trainer.environments],
        "demonstrations": [list(each.found_by) for each in hooks.demonstrations],
    }


def _figures(row: UpdateLog, reference: float | None) -> dict[str, Any]:
    """A row in the words of the reference: times relative to the demonstration."""
    figures: dict[str, Any] = {"update": row.update, "problem": row.problem}
    if row.phase == "imitation":
        return {**figures, "phase": "imitation", "ratio": None, "best": None, **_stats(row)}
    assert reference is not None
    return {
        **figures,
        "phase": "ppo",
        "ratio": math.inf if math.isnan(row.greedy) else row.greedy / reference,
        "best": row.best / reference,
        "invalid": row.infeasible,
        "mean": row.mean / reference,
        **_stats(row),
    }


def _stats(row: UpdateLog) -> dict[str, float]:
    stats = {"mended" if name == "repair" else name: value for name, value in row.stats.items()}
    return {"gradient": row.gradient, **stats}


def machine() -> list[str]:
    """What the last bits of a weight depend on: MKL has kernels for each maker of processors."""
    lines = Path("/proc/cpuinfo").read_text().splitlines() if sys.platform == "linux" else []
    maker = next((line.partition(":")[2] for line in lines if line.startswith("vendor_id")), "")
    return [torch.__version__, torch.backends.cpu.get_cpu_capability(), maker.strip()]


@pytest.mark.parametrize("name", RUNS)
def test_the_first_updates_are_those_of_the_shipped_training(name):
    found, expected = record(name), REFERENCE["runs"][name]
    assert len(found["weights"]) == STEPS
    if machine() == REFERENCE["machine"]:  # bit for bit
        assert json.loads(json.dumps(found)) == expected
        return
    assert [row["phase"] for row in found["rows"]] == [row["phase"] for row in expected["rows"]]
    assert found["rows"][0]["gradient"] == pytest.approx(expected["rows"][0]["gradient"], rel=1e-2)


if __name__ == "__main__":
    torch.set_num_threads(1)
    runs = {name: record(name) for name in RUNS}
    FILE.write_text(json.dumps({"machine": machine(), "runs": runs}, indent=1) + "\n")
