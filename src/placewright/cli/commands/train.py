"""`placewright train`: a recipe, a model and a cluster in, a policy and its best plan out."""

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from placewright.cli import options
from placewright.cli.problem_options import Asked
from placewright.cli.progress import Progress
from placewright.cli.resolve import check_json, check_writable
from placewright.cli.saved_options import asked_again, words_of
from placewright.errors import ConfigError
from placewright.units import format_seconds

if TYPE_CHECKING:
    from collections.abc import Callable

    from placewright.problem import Problem
    from placewright.result import Result
    from placewright.training import Recipe, Row, Trainer

PLANS = 5000
"""Plans that a run judges if nobody says how many."""

_CURVE = 10  # rows of the learning curve that are shown
_OWN = ("recipe", "plans", "seed", "groups", "hidden", "rule", "graphs", "times")
_LATER = {"graphs": None, "times": False}  # of those, what runs of older releases do not say


def train_policy(
    recipe: Annotated[
        str | None,
        typer.Argument(
            metavar="RECIPE",
            help="colocrl, hierarchical, or one of the papers' own: see docs/learning.md.",
            show_default=False,
        ),
    ] = None,
    graph: Annotated[
        str | None,
        typer.Option("--graph", metavar="MODEL", help="A network's name or a file, as in `place`."),
    ] = None,
    graphs: Annotated[
        str | None,
        typer.Option(
            "--graphs",
            metavar="FAMILY",
            help="Train on all training graphs of a family (cifar10, ptb, nmt) instead.",
        ),
    ] = None,
    on: options.On = None,
    plans: Annotated[
        int | None,
        typer.Option("--plans", metavar="N", min=1, help=f"Plans to judge. [default: {PLANS}]"),
    ] = None,
    seed: Annotated[
        int | None,
        typer.Option("--seed", metavar="N", min=0, help="For all that is random. [default: 0]"),
    ] = None,
    groups: Annotated[
        int | None, typer.Option("--groups", metavar="N", help="The most groups of ops.")
    ] = None,
    hidden: Annotated[
        int | None, typer.Option("--hidden", metavar="N", help="Size of the placer's states.")
    ] = None,
    rule: Annotated[
        str | None,
        typer.Option("--grouping", metavar="NAME", help="Of ColocRL: colocation, coarse, module."),
    ] = None,
    times: Annotated[
        bool,
        typer.Option("--times", help="Of Placeto: tell it when groups start, simulated each step."),
    ] = False,
    run: Annotated[
        Path | None,
        typer.Option(
            "--run", metavar="FOLDER", help="Where to keep checkpoints. [default: runs/NAME]"
        ),
    ] = None,
    resume: Annotated[
        Path | None,
        typer.Option("--resume", metavar="FOLDER", help="Go on with the run kept there."),
    ] = None,
    track: Annotated[
        bool, typer.Option("--track", help="Also write TensorBoard's logs into the run's folder.")
    ] = False,
    objective: options.Goal = None,
    discipline: options.Rule = None,
    use: options.Use = None,
    reserve: options.Reserve = None,
    limit: options.Limit = None,
    pin: options.Pin = None,
    forbid: options.Forbid = None,
    colocate: options.Colocate = None,
    costs: options.Costs = None,
    training: options.Training = False,
    optimizer: options.Optimizer = None,
    dims: options.Dims = None,
    output: Annotated[
        Path | None,
        typer.Option("-o", "--output", metavar="FILE", help="Write the best plan and its figures."),
    ] = None,
    report: options.Report = None,
    json: options.Json = False,
) -> None:
    """Train a policy to place a network; Ctrl-C saves, and --resume goes on."""
    typed = {**locals(), "model": graph or graphs}
    from placewright.cli import answer
    from placewright.cli.render import tables
    from placewright.cli.render.json_output import (
        answer_data,
        print_json,
        save,
        save_report,
    )
    from placewright.training import Environment, Trainer, result_of
    from placewright.training import recipe as find_recipe
    from placewright.training.run import Run

    check_writable(output, report)
    check_json(output, "a result")
    if graph is not None and graphs is not None:
        raise ConfigError("--graph and --graphs are both given: keep one")
    kept = {} if resume is None else _kept(resume, typed)
    asked = _asked(kept, typed)
    own = {**_own(typed), **kept.get("own", {})}
    folder = resume or run or _fresh(Path("runs"), own["recipe"], asked.model)
    if resume is None and (folder / "checkpoint.json").exists():
        raise ConfigError(f"{folder} keeps a run already: go on with --resume {folder}")
    chosen = find_recipe(own["recipe"], own["groups"], own["hidden"], own["rule"])
    if own["times"]:
        chosen = _told_times(chosen)
    if own["graphs"] is not None:
        if output is not None or report is not None:
            raise ConfigError("several graphs have no one plan: leave out --output and --report")
        _train_several(asked, own, chosen, folder, resume is not None, track, json)
        return
    with Progress(f"reading {asked.model}") as progress:
        problem = asked.problem()
        trainer = Trainer([Environment(problem)], chosen, own["seed"], own["plans"])
        going = Run(trainer, folder, {"asked": _listed(words_of(asked)), "own": own})
        if resume is not None:
            going.resume()
        done, watch = _watching(trainer, progress, folder if track else None)
        ended = going.train(watch)
        done()
        result = replace(result_of(trainer), asked=words_of(asked))
        found = answer.Answer(asked.model, problem, result, answer.best_single(problem), not ended)
    said = save(found, output, None)
    if report is not None:
        from placewright.reporting import Learning, gather

        learned = Learning(chosen.name, trainer.rows)
        others = _held_to(problem)
        content = gather(asked.model, problem, [result, *others], (), not ended, learning=learned)
        said += save_report(content, report)
    curve = _curve(trainer.rows)
    if json:
        rows = [{each: getattr(row, each) for each in _COLUMNS} for row in curve]
        print_json({**answer_data(found), "run": str(folder), "recipe": chosen.name, "rows": rows})
    else:
        tables.print_table(*_table(curve))
        tables.print_lines([""])
        tables.print_answer(found)
        said.append(f"policy and checkpoint kept in {folder}")
        if not ended:
            said.append(_how_to_go_on(trainer, folder))
        tables.print_lines(["", *said])
    if not ended:
        raise typer.Exit(answer.INTERRUPTED)


def _train_several(
    asked: Asked,
    own: dict[str, Any],
    chosen: "Recipe",
    folder: Path,
    again: bool,
    track: bool,
    json: bool,
) -> None:
    """Train on several graphs that take turns, and place those of the family that are for tests."""
    from placewright import policies
    from placewright.cli import answer
    from placewright.cli.commands import train_family
    from placewright.cli.render import tables
    from placewright.cli.render.json_output import print_json
    from placewright.training import Environment, Trainer
    from placewright.training.recipes.registry import of_several
    from placewright.training.run import Run

    with Progress(f"reading {asked.model}") as progress:
        environments = [Environment(each) for each in train_family.problems_of(asked, "train")]
        chosen = of_several(chosen)
        trainer = Trainer(environments, chosen, own["seed"], own["plans"])
        going = Run(trainer, folder, {"asked": _listed(words_of(asked)), "own": own})
        if again:
            going.resume()
        done, watch = _watching(trainer, progress, folder if track else None)
        ended = going.train(watch)
        done()
        policies.save(trainer.policy, folder / train_family.POLICY)
        unseen = train_family.problems_of(asked, "test") if ended else []
        tests = list(train_family.tried(trainer, unseen))
    curve = train_family.rounds(trainer)
    if json:
        print_json({"run": str(folder), "recipe": chosen.name, "rounds": curve, "tests": tests})
    else:
        train_family.show(curve, tests, folder)
        if not ended:
            tables.print_lines([_how_to_go_on(trainer, folder)])
    if not ended:
        raise typer.Exit(answer.INTERRUPTED)


def _told_times(chosen: "Recipe") -> "Recipe":
    shape: Any = chosen.shape
    if not hasattr(shape, "times"):
        raise ConfigError(f"recipe {chosen.name!r} knows no start times: leave out --times")
    return replace(chosen, shape=replace(shape, times=True))


def _how_to_go_on(trainer: "Trainer", folder: Path) -> str:
    return (
        f"stopped after {trainer.evaluations:,} of {trainer.plans:,} plans: "
        f"go on with placewright train --resume {folder}"
    )


def _held_to(problem: "Problem") -> "list[Result]":
    """What a learning curve is drawn with: methods that take no search, where they answer."""
    from placewright.solvers import METHODS, solve
    from placewright.solvers.baselines import baselines

    named = {solver.name for group in baselines(problem, installed=True) for solver in group}
    wanted = ("single", "expert", "mincut-repaired", "scotch-repaired", "heft", "m-etf")
    return [solve(problem, METHODS[name]()) for name in wanted if name in named]


def _own(typed: dict[str, Any]) -> dict[str, Any]:
    """The options that say how to train."""
    own = {name: typed[name] for name in _OWN}
    if own["recipe"] is None and typed["resume"] is None:
        from placewright.training import RECIPES

        raise ConfigError(f"no recipe is named: name one of {', '.join(RECIPES)}")
    return {**own, "plans": own["plans"] or PLANS, "seed": own["seed"] or 0}


def _kept(folder: Path, typed: dict[str, Any]) -> dict[str, Any]:
    """What a run was begun with.

    Raises:
        FileError: It keeps no checkpoint.
        ConfigError: Something else is typed now.
    """
    from placewright.training import read_checkpoint
    from placewright.training.run import CHECKPOINT

    data, _ = read_checkpoint(folder / CHECKPOINT)
    more = data["more"]
    own = more.get("own")
    if isinstance(own, dict):
        own = more["own"] = {**_LATER, **own}
    if (
        not isinstance(own, dict)
        or set(own) != set(_OWN)
        or not isinstance(more.get("asked"), dict)
    ):
        raise ConfigError(f"{folder} keeps a run that the command line did not begin")
    for name in _OWN:
        if typed[name] not in (None, _LATER.get(name)) and typed[name] != own[name]:
            raise ConfigError(
                f"the run in {folder} was begun with {name} {own[name]!r}: to go on leave out "
                f"{typed[name]!r}, or begin a new run"
            )
    return dict(more)


def _asked(kept: dict[str, Any], typed: dict[str, Any]) -> Asked:
    if not kept:
        if typed["model"] is None:
            raise typer.BadParameter("name a network, such as rnnlm-2", param_hint="'--graph'")
        return Asked.of(typed)
    words = {k: tuple(v) if isinstance(v, list) else v for k, v in kept["asked"].items()}
    return asked_again(words, typed)


def _listed(words: dict[str, Any]) -> dict[str, Any]:
    return {key: list(value) if isinstance(value, tuple) else value for key, value in words.items()}


def _fresh(home: Path, recipe: str, model: str) -> Path:
    """A folder that is not there yet, named after the recipe and the model."""
    plain = "".join(c if c.isalnum() or c in "-._" else "-" for c in Path(model).name)
    name, count = f"{recipe}-{plain}", 2
    folder = home / name
    while folder.exists():
        folder, count = home / f"{name}-{count}", count + 1
    return folder


def _watching(
    trainer: "Trainer", progress: Progress, folder: Path | None
) -> "tuple[Callable[[], None], Callable[[Trainer], None]]":
    """What to call at the end, and after each update."""
    from placewright.training.tensorboard_log import Track

    log = None if folder is None else Track(folder, trainer.evaluations)

    def watch(trainer: "Trainer") -> None:
        row = trainer.rows[-1]
        text = (
            f"{trainer.recipe.name}: best {format_seconds(row.best)}, mean "
            f"{format_seconds(row.mean)}, {row.plans:,} plans, entropy {row.entropy:.0%}, "
            f"{row.invalid:.0%} do not fit"
        )
        progress.say(text, trainer.evaluations / trainer.plans)
        if log is not None:
            log(trainer)

    return (lambda: None) if log is None else log.close, watch


_COLUMNS = ("update", "plans", "best", "mean", "likeliest", "entropy", "invalid")


def _curve(rows: "list[Row]") -> "list[Row]":
    """A few rows of all, evenly spaced, the last one included."""
    last = len(rows) - 1
    return [rows[at] for at in sorted({last * k // (_CURVE - 1) for k in range(_CURVE)})]


def _table(curve: "list[Row]") -> tuple[list[str], list[tuple[str, ...]]]:
    columns = ["plans", "best", "mean", "argmax", "entropy", "do not fit"]
    rows: list[tuple[str, ...]] = [
        (
            f"{row.plans:,}",
            format_seconds(row.best),
            format_seconds(row.mean),
            format_seconds(row.likeliest),
            f"{row.entropy:.0%}",
            f"{row.invalid:.0%}",
        )
        for row in curve
    ]
    return columns, rows
