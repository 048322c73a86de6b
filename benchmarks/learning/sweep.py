"""The sweep that the default recipes come from, on networks that `learning.py` does not report on.

    python benchmarks/sweep.py [--plans 2000] [--seeds 0:1] [--out sweep.jsonl] [--jobs 2]
        [--chosen chosen.json] [--recipes colocrl] [--networks rnnlm-4,resnet-50]
        [--settings "noise 1" "noise 2"]

A cell is the best step time that a policy found, as a ratio to local search over ColocRL's groups
with the same number of plans; the last column is their geometric mean, and the setting with the
least of it is chosen, of those that were run on all. Runs that are in the file already are not
repeated; `--jobs 0` prints what it has.
"""

from __future__ import annotations

import argparse
import json
import math
from pathlib import Path
from typing import TYPE_CHECKING, Any

from learning_runs import SEARCH, SETTINGS, Run, changed, run_all

from placewright.training import find_recipe

if TYPE_CHECKING:
    from collections.abc import Sequence

NETWORKS = {
    "rnnlm-4": "4xK40+Haswell",
    "transformer-xl-2": "2xK40+Haswell",
    "resnet-50": "2xK40+Haswell",
    "wavenet-2x18": "2xK40+Haswell",
}
"""What settings are chosen on; none of them is a row of the papers' tables."""

RECIPES = ("colocrl", "hierarchical")
TRIED = [name for name in SETTINGS if name.startswith(("no noise", "noise", "patches"))]


def tries(
    plans: int,
    seeds: range,
    recipes: Sequence[str],
    networks: Sequence[str],
    settings: Sequence[str],
) -> list[Run]:
    """Every setting that a recipe can have, on every network."""
    runs = []
    for seed in seeds:
        for network in networks:
            cluster = NETWORKS[network]
            runs.append(Run(network, cluster, SEARCH, seed, plans))
            for name in recipes:
                for setting in settings:
                    try:
                        changed(find_recipe(name), setting)
                    except TypeError:  # ColocRL has no locality
                        continue
                    runs.append(Run(network, cluster, name, seed, plans, setting))
    return runs


def ratios(rows: list[dict[str, Any]]) -> dict[tuple[str, str], list[float]]:
    """For each recipe and setting the ratio to local search on each network, means over seeds.

    It is no number where there is no run.
    """
    none = [math.nan]
    found: dict[tuple[str, str, str], list[float]] = {}
    for row in rows:
        value = math.inf if row["over"] else row["best"]
        name = (row["recipe"], "" if row["recipe"] == SEARCH else row["setting"], row["network"])
        found.setdefault(name, []).append(value)
    out: dict[tuple[str, str], list[float]] = {}
    for name in RECIPES:
        for setting in TRIED:
            keys = [(name, setting, network) for network in NETWORKS]
            if any(key in found for key in keys):
                out[name, setting] = [
                    _mean(found.get(key, none)) / _mean(found.get((SEARCH, "", key[2]), none))
                    for key in keys
                ]
    return out


def chosen(found: dict[tuple[str, str], list[float]]) -> dict[str, str]:
    """The setting of each recipe whose geometric mean is least."""
    best: dict[str, str] = {}
    for name in RECIPES:
        means = {setting: _mean(cells) for (of, setting), cells in found.items() if of == name}
        means = {setting: mean for setting, mean in means.items() if not math.isnan(mean)}
        if means:
            best[name] = min(means, key=means.__getitem__)
    return best


def _mean(values: list[float]) -> float:
    """The geometric mean."""
    return math.exp(sum(math.log(value) for value in values) / len(values))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--plans", type=int, default=2000)
    parser.add_argument("--seeds", default="0:1")
    parser.add_argument("--out", type=Path, default=Path("sweep.jsonl"))
    parser.add_argument("--jobs", type=int, default=2, help="0: only print what the file has")
    parser.add_argument("--chosen", type=Path, help="write the chosen settings there")
    parser.add_argument("--recipes", default=",".join(RECIPES))
    parser.add_argument("--networks", default=",".join(NETWORKS))
    parser.add_argument("--settings", nargs="*", default=TRIED, choices=TRIED, metavar="SETTING")
    given = parser.parse_args()
    first, last = (int(part) for part in given.seeds.split(":"))
    recipes, networks = given.recipes.split(","), given.networks.split(",")
    wanted = tries(given.plans, range(first, last), recipes, networks, given.settings)
    rows = run_all(wanted, given.out, given.jobs)
    alike = [row for row in rows if row["plans"] == given.plans and first <= row["seed"] < last]
    found = ratios(alike)
    print(f"| recipe | setting | {' | '.join(NETWORKS)} | mean |")
    print("|" + "---|" * (len(NETWORKS) + 3))
    for (name, setting), cells in found.items():
        values = (*cells, _mean(cells))
        shown = " | ".join("–" if math.isnan(value) else f"{value:.3f}" for value in values)
        print(f"| {name} | {setting} | {shown} |")
    best = chosen(found)
    print(f"chosen: {best}")
    if given.chosen is not None:
        given.chosen.write_text(json.dumps(best))


if __name__ == "__main__":
    main()
