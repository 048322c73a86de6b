"""Train GO on many graphs: its graphs, its demonstrations, its training, each a command.

    python -m benchmarks.train.train_go graphs   --graphs FOLDER
    python -m benchmarks.train.train_go teachers --graphs FOLDER --teachers FILE --workers 2
    python -m benchmarks.train.train_go train    --graphs FOLDER --teachers FILE --fold a

`graphs` captures the networks once (it needs PyTorch, and minutes) into a folder that can be copied
to a machine with a GPU; `teachers` makes demonstrations, which are `auto`'s plans, on `--workers`,
continues where it was stopped, and needs no torch. `train` needs both, evaluates plans
on `--threads` threads and does all else on the GPU; it writes a checkpoint per minute (`--resume`
continues), and at the end the policy and a report of every problem.

Folds: `a` = RNNLM, NMT, WaveNet; `b` = Transformer-XL, Inception-V3, AmoebaNet; `all` = both. A
policy is tested on the other fold. Graphs of more than 5,000 units are merged to that many.
"""

from __future__ import annotations

import json
import math
import time
from concurrent.futures import as_completed
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from benchmarks.common import add_seed, make_parser
from benchmarks.train.training_record import training_record
from placewright import files, zoo
from placewright.training.go.demonstrations import (
    DemonstrationTask,
    MakeDemonstrations,
    graph_file,
    read_demonstrations,
    read_records,
)
from placewright.workers import open_workers

if TYPE_CHECKING:
    import argparse
    from collections.abc import Sequence

MOST = 5000
"""Units of a graph in training."""
EVALUATIONS = (1000, 5000)
"""`auto`'s plans after these numbers of evaluations are demonstrations too, weaker ones."""

FOLDS: dict[str, tuple[str, ...]] = {
    "a": (
        *("rnnlm-2:steps=8", "rnnlm-2:steps=16,batch=128", "rnnlm-2", "rnnlm-4:steps=6"),
        *("rnnlm-4:steps=12,width=1024", "rnnlm-4", "rnnlm-8:steps=6", "rnnlm-8:steps=16"),
        *("nmt-2:steps=6", "nmt-2:steps=12,batch=128", "nmt-2:steps=20", "nmt-4:steps=6"),
        *("nmt-4:steps=12", "nmt-8:steps=6", "nmt-8:steps=12"),
        *("wavenet-2x18", "wavenet-2x18:batch=8", "wavenet-4x36", "wavenet-4x36:batch=2"),
        *("wavenet-2x18:layers=12", "wavenet-4x36:layers=24,width=128"),
        *(f"ptb:graph={at}" for at in range(0, 16, 2)),
        *(f"nmt:graph={at}" for at in range(0, 16, 2)),
    ),
    "b": (
        *("transformer-xl-2", "transformer-xl-2:batch=16", "transformer-xl-4"),
        *("transformer-xl-4:batch=64", "transformer-xl-8", "transformer-xl-8:steps=256"),
        *("transformer-xl-4:layers=6", "transformer-xl-8:layers=12,width=256"),
        *("inception-v3:batch=16", "inception-v3", "inception-v3:batch=64"),
        *("inception-v3:batch=128", "inception-v3:batch=32,channels=64"),
        *("amoebanet-d:cells=6", "amoebanet-d:cells=9,filters=104", "amoebanet-d"),
        *("amoebanet-d:cells=12,batch=64", "amoebanet-d:cells=3"),
        *(f"cifar10:graph={at}" for at in range(0, 32, 2)),
    ),
}
"""Networks of each fold, at sizes that differ; families of the zoo stand beside those they are
like."""
CLUSTERS = (
    *("2xP100+cpu", "2xP100+cpu", "4xP100+cpu", "4xP100+cpu", "8xP100+cpu", "3xP100+cpu"),
    *("4xK80+cpu", "2xK80+2xP100+cpu", "6xP100+cpu", "2xV100+2xP100+cpu"),
)
READY = 0.7  # the share of problems whose devices take whatever is ready, as in the paper
TIGHT = 0.4  # the share of problems with little memory
EACH = 3  # problems of each network


def tasks(fold: str, each: int = EACH, seed: int = 0, only: str = "") -> list[DemonstrationTask]:
    """The problems of a fold: each network on some clusters, with much memory or little.

    Args:
        only: Beginnings of networks' names, with commas between; all of them if there is none.
    """
    made: list[DemonstrationTask] = []
    for letter, networks in FOLDS.items():
        if fold not in (letter, "all"):
            continue
        rng = np.random.default_rng([seed, ord(letter)])
        for network in networks:
            for cluster in rng.choice(sorted(set(CLUSTERS)), size=each, replace=False):
                discipline: Any = "ready" if rng.random() < READY else "in order"
                slack = float(np.round(rng.uniform(1.2, 2.0), 2)) if rng.random() < TIGHT else 0.0
                made.append(DemonstrationTask(network, str(cluster), discipline, slack))
    beginnings = tuple(only.split(",")) if only else ("",)
    return [task for task in made if task.network.startswith(beginnings)]


def fold_networks(fold: str) -> list[str]:
    """The networks of a fold, or of `all` folds."""
    return [name for letter, names in FOLDS.items() if fold in (letter, "all") for name in names]


def data_of(fold: str) -> str:
    """What a fold's policy is trained on, in words."""
    return f"{len(tasks(fold))} problems of {len(fold_networks(fold))} networks, fold {fold}"


def keep_graphs(given: argparse.Namespace) -> None:
    given.graphs.mkdir(parents=True, exist_ok=True)
    for network in dict.fromkeys(task.network for task in tasks(given.fold, only=given.only)):
        path = graph_file(network, given.graphs)
        if not path.exists():
            began = time.perf_counter()
            graph = zoo.load(network)
            files.save(graph, path)
            print(f"{network}: {len(graph):,} ops, {time.perf_counter() - began:.0f} s", flush=True)


def make_teachers(given: argparse.Namespace) -> None:
    known = {
        DemonstrationTask(row["network"], row["cluster"], row["discipline"], row["slack"]).key
        for row in read_records(given.teachers)
    }
    waiting = [
        task for task in tasks(given.fold, given.each, only=given.only) if task.key not in known
    ]
    print(f"{len(known)} problems are done, {len(waiting)} wait", flush=True)
    label = MakeDemonstrations(EVALUATIONS, given.effort, given.seconds, given.graphs.resolve())
    with open_workers(given.workers, timeout=math.inf) as workers:
        jobs = {workers.submit(label, [task]): task for task in waiting}
        for done in as_completed(jobs):
            (row,) = done.result()
            with given.teachers.open("a") as file:
                file.write(json.dumps(row) + "\n")
            first = row["plans"][0] if row["plans"] else {"value": math.nan, "by": "no method"}
            print(f"{jobs[done].key}: {first['value']:.4g} by {first['by']}", flush=True)


def train(given: argparse.Namespace) -> None:
    from placewright import policies
    from placewright.policies.go.config import GoConfig
    from placewright.training import Trainer
    from placewright.training.go.hooks import training_report
    from placewright.training.recipes.go import go_recipe
    from placewright.training.run import TrainingRun

    wanted = tasks(given.fold, given.each, only=given.only)
    lessons = read_demonstrations(given.teachers, given.graphs, wanted)
    if given.lessons:
        lessons = lessons[: given.lessons]
    print(f"{len(lessons)} problems", flush=True)
    config = GoConfig(
        hidden=given.hidden,
        tasks=tuple(given.tasks.split(",")),
        max_groups=given.most,
        starts=given.starts,
        timed="times" not in given.without,
        passes=tuple(given.passes.split(",")),
        attention="attention" not in given.without,
        modulation="modulation" not in given.without,
    )
    shares = {"imitation_share": given.imitated}
    if "imitation" in given.without:
        shares = {"imitation_share": 0.0, "imitation_steps": 0}
    recipe = go_recipe(config, given.samples, **shares)
    policy: Any = None
    if given.begin is not None:
        policy = policies.load(given.begin)
        policy.config = replace(policy.config, max_groups=config.max_groups)
    trainer = Trainer(
        [
            recipe.environment(lesson.problem, demonstration=lesson, threads=given.threads)
            for lesson in lessons
        ],
        recipe,
        given.seed,
        None,
        policy,
        given.device,
        max_updates=given.steps,
        max_seconds=given.minutes * 60,
    )
    run = TrainingRun(trainer, given.run, {}, save_interval=60.0)
    if given.resume and run.path.exists():
        run.resume()
        print(f"goes on after {trainer.seconds:.0f} s", flush=True)
    shown = time.perf_counter()

    def watch(trainer: Trainer) -> None:
        nonlocal shown
        if time.perf_counter() - shown > given.every:
            print(line(trainer), flush=True)
            shown = time.perf_counter()

    run.train(watch)
    out = given.out or given.run
    out.mkdir(parents=True, exist_ok=True)
    name = "go" if given.fold == "all" else f"go-{given.fold}"
    rows = training_report(trainer)
    trained: Any = trainer.policy
    trained.config = replace(trained.config, max_groups=GoConfig().max_groups)  # whole graphs
    words = f"--fold {given.fold} --minutes {given.minutes:g} --imitated {given.imitated:g}"
    words += f" --samples {given.samples} --hidden {given.hidden} --seed {given.seed}"
    made_by = f"python -m benchmarks.train.train_go graphs, then teachers, then train {words}"
    record = training_record(given.seed, data_of(given.fold), fold_networks(given.fold))
    policies.save(trained.cpu(), out / f"{name}.json", made_by, record)
    figures = {
        "fold": given.fold,
        "seconds": trainer.seconds,
        "steps": trainer.updates,
        "plans": trainer.evaluations,
    }
    each = ",\n".join(json.dumps(row).replace("Infinity", "null") for row in rows)  # does not fit
    text = f'{json.dumps(figures)[:-1]}, "rows": [\n{each}\n]}}\n'
    (out / f"{name}-report.json").write_text(text)
    ratios = [row["likeliest"] for row in rows if math.isfinite(row["likeliest"])]
    mean = math.exp(sum(map(math.log, ratios)) / max(len(ratios), 1))
    print(f"argmax over teacher: {mean:.4f} in geometric mean, {len(ratios)} of {len(rows)} fit")


def line(trainer: Any) -> str:
    """Where training stands: means over the last 200 rows of the log."""
    rows = trainer.log[-200:]
    words = [f"{trainer.seconds:6.0f} s, update {trainer.updates:,}"]
    for name in ("pass 0", "pass 1", "repair", "loss", "kl"):
        figures = [row.stats[name] for row in rows if name in row.stats]
        if figures:
            words.append(f"{name} {np.mean(figures):.3f}")
    references = trainer.hooks.references
    for name in ("greedy", "best", "mean"):
        figures = [getattr(row, name) / references.get(row.problem, math.nan) for row in rows]
        figures = [figure for figure in figures if math.isfinite(figure)]
        if figures:
            words.append(f"{name}/teacher {np.exp(np.mean(np.log(figures))):.4f}")
    for name in ("infeasible", "entropy"):
        figures = [getattr(row, name) for row in rows if math.isfinite(getattr(row, name))]
        if figures:
            words.append(f"{name} {np.mean(figures):.3f}")
    return ", ".join(words)


def main(argv: Sequence[str] | None = None) -> None:
    parser = make_parser(__doc__, __spec__.name)
    option = parser.add_argument
    option("what", choices=["graphs", "teachers", "train"], help="the command")
    option("--graphs", type=Path, required=True, help="folder of captured graphs")
    option("--teachers", type=Path, help="file of demonstrations")
    option("--fold", choices=["a", "b", "all"], default="all", help="networks to train on")
    option("--each", type=int, default=EACH, help="problems of each network")
    option("--only", default="", help="networks whose names begin with one of these, with commas")
    option("--workers", default="2", help="teachers: workers, as in `placewright place --workers`")
    option("--effort", type=float, default=2e7, help="teachers: evaluations × ops of `auto`")
    option("--seconds", type=float, default=120.0, help="teachers: seconds of `auto` at most")
    option("--minutes", type=float, default=20.0, help="train: time budget")
    option("--steps", type=int, help="train: end after this many steps instead")
    option("--run", type=Path, default=Path("runs/go"), help="train: folder of the run")
    option("--out", type=Path, help="train: folder of the policy; else that of the run")
    option("--begin", type=Path, help="train: file of a policy to start from")
    option("--resume", action="store_true", help="train: continue from the run's checkpoint")
    option("--device", default="auto", help="train: torch device of the policy")
    option("--threads", type=int, default=16, help="train: threads that evaluate plans")
    option("--every", type=float, default=15.0, help="train: seconds between log lines")
    option("--hidden", type=int, default=64, help="train: size of hidden states")
    option("--starts", type=int, default=3, help="train: initial plans, 1 to 3")
    option("--passes", default="module,part,unit", help="train: levels that are decided in turn")
    option("--imitated", type=float, default=0.3, help="train: share of imitation alone")
    option("--samples", type=int, default=16, help="train: episodes per update")
    option("--most", type=int, default=MOST, help="train: units of a graph at most")
    option("--lessons", type=int, help="train: use the first N problems only")
    option("--tasks", default="device,priority", help="train: what the policy decides")
    option("--without", default="", help="train: leave out attention, modulation, imitation, times")
    add_seed(parser)
    given = parser.parse_args(argv)
    if given.what == "graphs":
        keep_graphs(given)
        return
    if given.teachers is None:
        parser.error("--teachers names the file of demonstrations")
    make_teachers(given) if given.what == "teachers" else train(given)


if __name__ == "__main__":
    main()
