"""The tables of ColocRL and the Hierarchical Planner on our simulator.

    python -m benchmarks.learning.paper_tables --rows rnnlm,nmt-2 --seeds 2:5

Step times in seconds, simulated as TensorFlow's executor runs (`ready`), on the GPUs of the
Hierarchical paper. A learned cell is the median of the seeds and their range, each the best plan
that the policy itself sampled or that is its greedy plan; training starts from no other plan. Local
search moves ColocRL's groups with the same number of plans and the same seeds.

Sections: `table`; `curves` (best after fewer plans); `large` (256 groups, hidden 512: wants a GPU);
`papers` (the papers' own values, learning rate 0.1 included, and their sizes too on a GPU);
`groupings`; `infeasible` (two rewards for plans that do not fit, GPUs cut to a quarter).
"""

from __future__ import annotations

import json
import statistics
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

import placewright as pw
from benchmarks.common import (
    Table,
    add_jobs,
    add_results,
    chosen,
    make_parser,
    name_list,
    seed_range,
)
from benchmarks.learning.runs import SEARCH, Run, key_of, run_all
from placewright import solvers
from placewright.errors import ConfigError, MissingDependency

if TYPE_CHECKING:
    from collections.abc import Sequence

    Rows = list[dict[str, Any]]


@dataclass(frozen=True)
class Line:
    """One row of the papers' tables.

    Args:
        split: Whether the Hierarchical paper's expert splits it; its others use one GPU.
        colocrl, hierarchical: What the papers print: best other method, theirs, in seconds.
    """

    name: str
    network: str
    cluster: str
    split: bool
    colocrl: str
    hierarchical: str


LINES = (
    Line("rnnlm", "rnnlm-2", "2xK40+Haswell", False, "1.57 / 1.57", "1.57 / 1.57"),
    Line("nmt-2", "nmt-2", "2xK40+Haswell", True, "4.99 / 4.04", "2.13 / 0.84"),
    Line("nmt-4", "nmt-4", "4xK40+Haswell", True, "–", "3.64 / 1.69"),
    Line("nmt-8", "nmt-8", "8xK40+Haswell", True, "–", "3.88 / 4.07"),
    Line("inception-v3", "inception-v3", "2xK40+Haswell", False, "4.60 / 4.60", "0.15 / 0.13"),
    Line("resnet-152", "resnet-152", "2xK40+Haswell", False, "–", "1.18 / 1.18"),
)
POLICIES = ("colocrl", "hierarchical")
PAPERS = ("colocrl-paper", "hierarchical-paper", "hierarchical-open")
GROUPINGS = ("colocrl:colocation", "colocrl:coarse", "colocrl:module")
TIGHT = 0.25
"""The share of its memory that a GPU may use in section `infeasible`."""
MARKS = (500, 1000, 2000, 5000)


@dataclass(frozen=True)
class Settings:
    """What the command line says."""

    lines: tuple[Line, ...]
    seeds: range
    plans: int
    device: str
    chosen: dict[str, str]

    def run(self, line: Line, name: str, seed: int, **how: Any) -> Run:
        setting = how.pop("setting", self.chosen.get(name.partition(":")[0], "as it is"))
        return Run(line.network, line.cluster, name, seed, self.plans, setting, **how)


def runs(section: str, settings: Settings) -> list[Run]:
    """What a section needs."""
    few = [line for line in settings.lines if line.name in ("rnnlm", "inception-v3", "nmt-2")]
    every = [(line, seed) for seed in settings.seeds for line in settings.lines]
    some = [(line, seed) for seed in settings.seeds for line in few]
    if section in ("table", "curves"):
        return [
            settings.run(line, name, seed)
            if name != SEARCH
            else settings.run(line, name, seed, setting="as it is")
            for line, seed in every
            for name in (*POLICIES, SEARCH)
        ]
    size: dict[str, Any] = {"groups": 256, "hidden": 512}
    if section == "large":
        trained = [
            settings.run(line, name, settings.seeds[0], device=settings.device, **size)
            for line in few
            for name in POLICIES
        ]
        return trained + [
            settings.run(line, SEARCH, settings.seeds[0], setting="as it is", groups=256)
            for line in few
        ]
    if section == "papers":
        size = size if settings.device != "cpu" else {}
        return [
            settings.run(line, name, settings.seeds[0], device=settings.device, **size)
            for line in few
            for name in PAPERS
        ]
    if section == "groupings":
        return [settings.run(line, name, seed) for line, seed in some for name in GROUPINGS]
    if section == "infeasible":
        tight = [line for line in settings.lines if line.name in ("nmt-2", "rnnlm")]
        return [
            settings.run(line, name, seed, setting=setting, limit=TIGHT)
            for line in tight
            for seed in settings.seeds
            for name, setting in (
                ("colocrl", "graded, batch"),
                ("colocrl", "constant, moving average"),
                (SEARCH, "as it is"),
            )
        ]
    raise ConfigError(f"no section is named {section!r}")


def shown(rows: Rows) -> str:
    """The median of some runs and their range; how many fit, if not all do."""
    fitting = [row["best"] for row in rows if not row["over"]]
    if not rows:
        return "–"
    if len(fitting) < len(rows):
        return f"{len(fitting)} of {len(rows)} fit"
    if len(fitting) == 1:
        return f"{fitting[0]:.3f}"
    return f"{statistics.median(fitting):.3f} ({min(fitting):.3f}–{max(fitting):.3f})"


def of(rows: Rows, runs_wanted: list[Run], **how: Any) -> Rows:
    """The rows of some runs that have these values."""
    wanted = {key_of(asdict(run)) for run in runs_wanted}
    return [
        row
        for row in rows
        if key_of(row) in wanted and all(row[key] == value for key, value in how.items())
    ]


def cell(problem: pw.Problem, solver: solvers.Solver) -> str:
    """What a method finds."""
    try:
        result = pw.solve(problem, solver)
    except (ConfigError, MissingDependency) as error:
        return str(error)[:20]
    over = f"{result.overflow / 2**30:.1f} GiB over"
    return f"{result.objective_value:.3f}" if result.fits else over


def single(problem: pw.Problem, kind: str) -> tuple[str, float]:
    """Everything on the best device of a kind; its seconds, infinite if it does not fit."""
    at = [n for n, device in enumerate(problem.cluster.devices) if device.kind == kind]
    everything = np.repeat(np.array(at)[:, None], len(problem.graph), axis=1)
    verdict = pw.judge(problem, problem.legalize(everything))
    best = verdict.best()
    value, over = float(verdict.value[best]), int(verdict.overflow[best])
    if over:
        return f"{over / 2**30:.1f} GiB over", float("inf")
    return f"{value:.3f}", value


def print_rows(columns: list[str], lines: list[list[str]]) -> None:
    table = Table(*columns)
    for line in lines:
        table.row(*line)
    print()


def print_table(rows: Rows, settings: Settings) -> None:
    """The papers' table; each policy against one device and local search in the same groups."""
    wanted, lines = runs("table", settings), []
    for line in settings.lines:
        mine = of(rows, wanted, network=line.network)
        problem = Run(line.network, line.cluster, SEARCH, 0, 1).problem()
        (cpu, slow), (gpu, fast) = single(problem, "cpu"), single(problem, "gpu")
        expert = cell(problem, solvers.Expert())
        cells = [line.name, line.cluster, cpu, gpu, expert, expert if line.split else gpu]
        cells += [cell(problem, solvers.Scotch()), cell(problem, solvers.MinCut())]
        by = {name: [row for row in mine if row["recipe"] == name] for name in (*POLICIES, SEARCH)}
        cells += [shown(by[name]) for name in (*POLICIES, SEARCH)]
        against = []
        for name in POLICIES:
            if by[name] and by[SEARCH] and not any(row["over"] for row in by[name]):
                best = statistics.median(row["best"] for row in by[name])
                other = statistics.median(row["best"] for row in by[SEARCH])
                against.append(f"{best / min(slow, fast):.2f}, {best / other:.3f}")
        seconds = [
            f"{statistics.mean(row['seconds'] for row in by[name]):.0f}"
            for name in POLICIES
            if by[name]
        ]
        cells += [" / ".join(against), f"{solvers.bound(problem).seconds:.3f}", " / ".join(seconds)]
        lines.append([*cells, line.colocrl, line.hierarchical])
    columns = ["row", "cluster", "CPU only", "one GPU", "ColocRL's expert", "Hierarchical's expert"]
    columns += ["Scotch", "MinCut", *POLICIES, "local search, same groups"]
    columns += ["policies / one device, / local search", "bound", "seconds per run"]
    columns += ["ColocRL printed (best other / it)", "Hierarchical printed"]
    print_rows(columns, lines)


def print_curves(rows: Rows, settings: Settings) -> None:
    """The best after fewer plans: ColocRL against Hierarchical at equal evaluations."""
    wanted, lines = runs("curves", settings), []
    marks = [mark for mark in MARKS if mark <= settings.plans]
    for line in settings.lines:
        for name in (*POLICIES, SEARCH):
            mine = of(rows, wanted, network=line.network, recipe=name)
            cells = [_after([row["curve"] for row in mine], mark) for mark in marks]
            lines.append([line.name, name, *cells])
    print_rows(["row", "method", *(f"after {mark:,} plans" for mark in marks)], lines)


def _after(curves: list[list[list[float]]], mark: int) -> str:
    found = [[best for count, best in curve if count <= mark] for curve in curves]
    return f"{statistics.median(best[-1] for best in found):.3f}" if all(found) else "–"


def print_plain(rows: Rows, settings: Settings, section: str) -> None:
    """One row per kind of run."""
    wanted, lines = runs(section, settings), []
    keys = dict.fromkeys((run.network, run.recipe, run.setting, run.groups) for run in wanted)
    for network, name, setting, groups in keys:
        mine = of(rows, wanted, network=network, recipe=name, setting=setting, groups=groups)
        curves = [row["learned"] for row in mine if "learned" in row]
        halfway = [each[len(each) // 2][3] for each in curves]
        invalid = [point[4] for each in curves for point in each]
        middle = [f"{statistics.mean(each):.0%}" if each else "–" for each in (halfway, invalid)]
        seconds = f"{statistics.mean(row['seconds'] for row in mine):.0f}" if mine else "–"
        lines.append([network, name, setting, str(groups), shown(mine), *middle, seconds])
    columns = ["network", "method", "setting", "groups", "best step time"]
    print_rows([*columns, "entropy halfway", "do not fit", "seconds"], lines)
    if section == "papers":
        for row in of(rows, wanted):
            print(f"{row['recipe']} on {row['network']}: plans, mean, argmax, entropy, do not fit")
            for each in row["learned"][:: max(1, len(row["learned"]) // 12)]:
                print(f"  {each[0]:>6,} {each[1]:.3f} {each[2]:.3f} {each[3]:.0%} {each[4]:.0%}")


SECTIONS = ("table", "curves", "large", "papers", "groupings", "infeasible")


def main(argv: Sequence[str] | None = None) -> None:
    parser = make_parser(__doc__, __spec__.name)
    known = {line.name: line for line in LINES}
    parser.add_argument(
        "--sections", type=name_list, default=["table", "curves"], help="sections to run"
    )
    parser.add_argument("--rows", type=name_list, default=[*known], help="rows of the tables")
    parser.add_argument("--plans", type=int, default=5000, help="evaluations per run")
    parser.add_argument("--seeds", type=seed_range, default=range(2, 5), help="first:last + 1")
    parser.add_argument("--device", default="cpu", help="of the large policies: cpu or cuda")
    parser.add_argument("--chosen", type=Path, help="settings that the sweep chose")
    add_results(parser, "out/learning.jsonl")
    add_jobs(parser)
    arguments = parser.parse_args(argv)
    lines = tuple(known[name] for name in chosen(parser, arguments.rows, known))
    sections = chosen(parser, arguments.sections, SECTIONS)
    best = json.loads(arguments.chosen.read_text()) if arguments.chosen else {}
    settings = Settings(lines, arguments.seeds, arguments.plans, arguments.device, best)
    needed = [run for section in sections for run in runs(section, settings)]
    # the longest first
    needed.sort(key=lambda run: (-run.groups, run.recipe == SEARCH, -int(run.cluster[0])))
    rows = run_all(needed, arguments.out, arguments.jobs)
    for section in sections:
        print(f"\n## {section}\n")
        if section == "table":
            print_table(rows, settings)
        elif section == "curves":
            print_curves(rows, settings)
        else:
            print_plain(rows, settings, section)


if __name__ == "__main__":
    main()
