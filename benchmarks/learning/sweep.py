"""The sweep behind the default recipes, on networks that `paper_tables` does not report on.

    python -m benchmarks.learning.sweep --recipes colocrl --settings "noise 1" "noise 2"

A cell is the best step time that a policy found, as a ratio to local search over ColocRL's groups
with the same number of plans; the last column is their geometric mean. The setting with the lowest
mean is chosen, of those that were run on all networks.
"""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks.common import (
    Table,
    add_jobs,
    add_results,
    chosen,
    geometric_mean,
    make_parser,
    name_list,
    seed_range,
)
from benchmarks.learning.runs import SEARCH, SETTINGS, Run, change_recipe, run_all
from placewright.training import find_recipe

if TYPE_CHECKING:
    from collections.abc import Sequence

NETWORKS = {
    "rnnlm-4": "4xK40+Haswell",
    "transformer-xl-2": "2xK40+Haswell",
    "resnet-50": "2xK40+Haswell",
    "wavenet-2x18": "2xK40+Haswell",
}
"""The networks that settings are chosen on; none is a row of the papers' tables."""

RECIPES = ("colocrl", "hierarchical")
TRIED = [name for name in SETTINGS if name.startswith(("no noise", "noise", "patches"))]


def sweep_runs(
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
                        change_recipe(find_recipe(name), setting)
                    except TypeError:  # ColocRL has no locality
                        continue
                    runs.append(Run(network, cluster, name, seed, plans, setting))
    return runs


def ratios(rows: list[dict[str, Any]]) -> dict[tuple[str, str], list[float]]:
    """For each recipe and setting the ratio to local search on each network, means over seeds.

    A ratio is not a number where there is no run.
    """
    none = [math.nan]
    values: dict[tuple[str, str, str], list[float]] = {}
    for row in rows:
        value = math.inf if row["over"] else row["best"]
        name = (row["recipe"], "" if row["recipe"] == SEARCH else row["setting"], row["network"])
        values.setdefault(name, []).append(value)
    out: dict[tuple[str, str], list[float]] = {}
    for name in RECIPES:
        for setting in TRIED:
            keys = [(name, setting, network) for network in NETWORKS]
            if any(key in values for key in keys):
                out[name, setting] = [
                    geometric_mean(values.get(key, none))
                    / geometric_mean(values.get((SEARCH, "", key[2]), none))
                    for key in keys
                ]
    return out


def best_settings(cells_of: dict[tuple[str, str], list[float]]) -> dict[str, str]:
    """The setting of each recipe whose geometric mean is lowest."""
    best: dict[str, str] = {}
    for name in RECIPES:
        means = {
            setting: geometric_mean(cells)
            for (recipe, setting), cells in cells_of.items()
            if recipe == name
        }
        means = {setting: mean for setting, mean in means.items() if not math.isnan(mean)}
        if means:
            best[name] = min(means, key=means.__getitem__)
    return best


def main(argv: Sequence[str] | None = None) -> None:
    parser = make_parser(__doc__, __spec__.name)
    parser.add_argument("--plans", type=int, default=2000, help="evaluations per run")
    parser.add_argument("--seeds", type=seed_range, default=range(1), help="first:last + 1")
    parser.add_argument("--recipes", type=name_list, default=RECIPES, help="recipes to try")
    parser.add_argument("--networks", type=name_list, default=[*NETWORKS], help="networks to try")
    parser.add_argument(
        "--settings", nargs="*", choices=TRIED, metavar="SETTING", help="settings to try; else all"
    )
    parser.add_argument("--chosen", type=Path, help="write the chosen settings to this file")
    add_results(parser, "out/sweep.jsonl")
    add_jobs(parser)
    arguments = parser.parse_args(argv)
    recipes = chosen(parser, arguments.recipes, RECIPES)
    networks = chosen(parser, arguments.networks, NETWORKS)
    plans, seeds = arguments.plans, arguments.seeds
    runs = sweep_runs(plans, seeds, recipes, networks, arguments.settings or TRIED)
    rows = run_all(runs, arguments.out, arguments.jobs)
    cells_of = ratios([row for row in rows if row["plans"] == plans and row["seed"] in seeds])
    table = Table("recipe", "setting", *NETWORKS, "mean")
    for (name, setting), cells in cells_of.items():
        values = (*cells, geometric_mean(cells))
        shown = ["–" if math.isnan(value) else f"{value:.3f}" for value in values]
        table.row(name, setting, *shown)
    best = best_settings(cells_of)
    print(f"\nchosen: {best}")
    if arguments.chosen is not None:
        arguments.chosen.write_text(json.dumps(best))


if __name__ == "__main__":
    main()
