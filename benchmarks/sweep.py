"""The sweep that the default recipes come from, on networks that `learning.py` does not report on.

    python benchmarks/sweep.py [--plans 2000] [--seeds 0:1] [--out sweep.jsonl] [--jobs 2]
        [--recipes colocrl,hierarchical] [--settings noise-2,rate-1e-3]

A cell is the best step time that a policy found, as a ratio to local search over ColocRL's groups
with the same number of plans; the last column is their geometric mean. A run that was there already
in the file is not repeated.
"""

from __future__ import annotations

import argparse
import json
import math
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import replace
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import placewright as pw
from placewright import solvers
from placewright.training import Environment, Recipe, Trainer, recipe
from placewright.training.schedules import Always, Straight, Until
from placewright.transforms import by_colocation

NETWORKS = {
    "rnnlm-4": "4xK40+Haswell",
    "transformer-xl-2": "2xK40+Haswell",
    "resnet-50": "2xK40+Haswell",
    "wavenet-2x18": "2xK40+Haswell",
}
"""What settings are chosen on; none of them is a row of the papers' tables."""

SEARCH = "local search"
PLAIN = "no noise"

SETTINGS: dict[str, dict[str, Any]] = {
    PLAIN: {"noise": Always(0.0)},
    "noise-1": {"noise": Straight(1.0, 0.25)},
    "noise-2": {"noise": Straight(2.0, 0.5)},
    "noise-4": {"noise": Straight(4.0, 1.0)},
    "noise-2, not shared": {"noise": Straight(2.0, 0.5), "shape": {"shared": False}},
    "noise-2, 8 samples": {"noise": Straight(2.0, 0.5), "samples": 8},
    "noise-2, rate 1e-3": {"noise": Straight(2.0, 0.5), "rate": Always(1e-3)},
    "noise-2, rate 1e-2": {"noise": Straight(2.0, 0.5), "rate": Always(1e-2)},
    "noise-2, no floor": {"noise": Straight(2.0, 0.5), "floor": Always(0.0)},
    "noise-2, floor to the end": {"noise": Straight(2.0, 0.5), "floor": Until(1.0, 0.1)},
    "noise-2, imitate 0": {"noise": Straight(2.0, 0.5), "imitate": Always(0.0)},
    "noise-2, imitate 4": {"noise": Straight(2.0, 0.5), "imitate": Always(4.0)},
    "noise-2, locality 4": {"noise": Straight(2.0, 0.5), "shape": {"locality": 4.0}},
    "noise-2, locality 64": {"noise": Straight(2.0, 0.5), "shape": {"locality": 64.0}},
}
"""What is changed in a recipe, one or two things at a time, by the name of the setting."""


def changed(name: str, setting: str) -> Recipe | None:
    """A recipe in a setting; None where the policy has no such thing."""
    made, change = recipe(name), dict(SETTINGS[setting])
    shape = {"shared": True, **change.pop("shape", {})}
    if any(not hasattr(made.shape, key) for key in shape):
        return None
    return replace(made, shape=replace(made.shape, **shape), **change)  # type: ignore[type-var]


def run(name: str, setting: str, network: str, seed: int, plans: int) -> dict[str, Any]:
    """One run: what was tried, and the best step time."""
    cluster = pw.Cluster.parse(NETWORKS[network])
    problem = pw.Problem(pw.zoo.load(network), cluster, discipline="ready")
    what = {"recipe": name, "setting": setting, "network": network, "seed": seed, "plans": plans}
    if name == SEARCH:
        search = solvers.LocalSearch(lambda p: by_colocation(p, 64), ordered=False)
        result = pw.solve(problem, search, stop=pw.MaxEvaluations(plans), seed=seed)
        return {**what, "best": result.value, "over": result.overflow}
    made = changed(name, setting)
    assert made is not None
    environment = Environment(problem)
    Trainer([environment], made, seed, plans, device="cpu").run()
    return {**what, "best": environment.key[1], "over": environment.key[0]}


def table(rows: list[dict[str, Any]], plans: int) -> str:
    """Settings × networks: ratios to local search, means over seeds."""
    rows = [row for row in rows if row["plans"] == plans and not row["over"]]
    found: dict[tuple[str, str, str], list[float]] = {}
    for row in rows:
        found.setdefault((row["recipe"], row["setting"], row["network"]), []).append(row["best"])
    networks = [name for name in NETWORKS if (SEARCH, "", name) in found]
    lines = [f"| recipe | setting | {' | '.join(networks)} | mean |"]
    lines.append("|" + "---|" * (len(networks) + 3))
    for name, setting in dict.fromkeys((key[0], key[1]) for key in found if key[0] != SEARCH):
        ratios = []
        for network in networks:
            values = found.get((name, setting, network), [])
            best = found[SEARCH, "", network]
            ratios.append(math.nan if not values else _mean(values) / _mean(best))
        cells = " | ".join(f"{ratio:.3f}" for ratio in (*ratios, _mean(ratios)))
        lines.append(f"| {name} | {setting} | {cells} |")
    return "\n".join(lines)


def _mean(values: list[float]) -> float:
    """The geometric mean of those that are there."""
    known = [math.log(value) for value in values if not math.isnan(value)]
    return math.exp(sum(known) / len(known)) if known else math.nan


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--plans", type=int, default=2000)
    parser.add_argument("--seeds", default="0:1")
    parser.add_argument("--out", type=Path, default=Path("sweep.jsonl"))
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--recipes", default="colocrl,hierarchical")
    parser.add_argument("--settings", default="/".join(SETTINGS), help="names with / between them")
    given = parser.parse_args()
    first, last = (int(part) for part in given.seeds.split(":"))
    rows = (
        [json.loads(line) for line in given.out.read_text().splitlines()]
        if given.out.exists()
        else []
    )
    keys = ("recipe", "setting", "network", "seed", "plans")
    known = {tuple(row[key] for key in keys) for row in rows}
    tries = [(SEARCH, "", network, seed) for network in NETWORKS for seed in range(first, last)]
    tries += [
        (name, setting, network, seed)
        for seed in range(first, last)
        for setting in given.settings.split("/")
        for name in given.recipes.split(",")
        if changed(name, setting) is not None
        for network in NETWORKS
    ]
    tries = [each for each in tries if (*each, given.plans) not in known]
    with ProcessPoolExecutor(given.jobs, mp_context=get_context("spawn")) as pool:
        waiting = [pool.submit(run, *each, given.plans) for each in tries]
        for done in as_completed(waiting):
            rows.append(done.result())
            with given.out.open("a") as file:
                file.write(json.dumps(rows[-1]) + "\n")
            print(rows[-1], flush=True)
    print(table(rows, given.plans))


if __name__ == "__main__":
    main()
