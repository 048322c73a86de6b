"""`placewright train`: trains a policy to place a network."""

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from placewright.cli import options
from placewright.cli.paths import check_json, check_writable
from placewright.cli.problem_options import ProblemOptions
from placewright.cli.progress import Progress
from placewright.errors import ConfigError
from placewright.units import format_seconds

if TYPE_CHECKING:
    from collections.abc import Callable

    from placewright.problem import Problem
    from placewright.result import Result
    from placewright.training import Recipe, Trainer, UpdateLog

DEFAULT_PLANS = 5000
"""Plans that a run judges if nobody says how many."""

_CURVE_ROWS = 10  # rows of the learning curve that are shown
_TRAINING_OPTIONS = ("recipe", "plans", "seed", "groups", "hidden", "rule", "graphs", "times")
_LATER_DEFAULTS = {
    "graphs": None,
    "times": False,
}  # of those, what runs of older releases do not say


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
        typer.Option(
            "--plans", metavar="N", min=1, help=f"Plans to judge. [default: {DEFAULT_PLANS}]"
        ),
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
    objective: options.ObjectiveOption = None,
    discipline: options.DisciplineOption = None,
    devices: options.Devices = None,
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
    arguments = {**locals(), "model": graph or graphs}
    from placewright.cli.render import tables
    from placewright.cli.render.json_output import (
        answer_data,
        print_json,
        save_report,
        save_result,
    )
    from placewright.cli.render.text import INTERRUPTED_STATUS
    from placewright.solvers import Comparison
    from placewright.training import Environment, Trainer, training_result
    from placewright.training import find_recipe as find_recipe
    from placewright.training.run import TrainingRun

    check_writable(output, report)
    check_json(output, "a result")
    if graph is not None and graphs is not None:
        raise ConfigError("--graph and --graphs are both given: keep one")
    saved_run = {} if resume is None else _saved_run(resume, arguments)
    problem_options = _problem_options(saved_run, arguments)
    training_options = {**_training_options(arguments), **saved_run.get("own", {})}
    folder = (
        resume
        or run
        or _new_folder(Path("runs"), training_options["recipe"], problem_options.model)
    )
    if resume is None and (folder / "checkpoint.json").exists():
        raise ConfigError(f"{folder} keeps a run already: go on with --resume {folder}")
    chosen_recipe = find_recipe(
        training_options["recipe"],
        training_options["groups"],
        training_options["hidden"],
        training_options["rule"],
    )
    if training_options["times"]:
        chosen_recipe = _with_start_times(chosen_recipe)
    if training_options["graphs"] is not None:
        if output is not None or report is not None:
            raise ConfigError("several graphs have no one plan: leave out --output and --report")
        _train_on_family(
            problem_options,
            training_options,
            chosen_recipe,
            folder,
            resume is not None,
            track,
            json,
        )
        return
    with Progress(f"reading {problem_options.model}") as progress:
        problem = problem_options.problem()
        trainer = Trainer(
            [Environment(problem)],
            chosen_recipe,
            training_options["seed"],
            training_options["plans"],
        )
        training_run = TrainingRun(
            trainer,
            folder,
            {"asked": _tuples_to_lists(problem_options.to_dict()), "own": training_options},
        )
        if resume is not None:
            training_run.resume()
        finish, watch = _training_callbacks(trainer, progress, folder if track else None)
        ended = training_run.train(watch)
        finish()
        result = replace(training_result(trainer), options=problem_options.to_dict())
        comparison = Comparison(
            problem, (result,), interrupted=not ended, name=problem_options.model
        )
    messages = save_result(result, output)
    if report is not None:
        from placewright.reporting import LearningCurve

        learning = LearningCurve(chosen_recipe.name, trainer.log)
        everything = replace(comparison, results=(result, *_baseline_results(problem)), labels=())
        messages += save_report(everything, report, learning_curve=learning)
    curve = _sample_rows(trainer.log)
    if json:
        rows = [{each: getattr(row, each) for each in _LOG_FIELDS} for row in curve]
        print_json(
            {
                **answer_data(comparison),
                "run": str(folder),
                "recipe": chosen_recipe.name,
                "rows": rows,
            }
        )
    else:
        tables.print_table(*_curve_table(curve))
        tables.print_lines([""])
        tables.print_result(comparison)
        messages.append(f"policy and checkpoint kept in {folder}")
        if not ended:
            messages.append(_resume_hint(trainer, folder))
        tables.print_lines(["", *messages])
    if not ended:
        raise typer.Exit(INTERRUPTED_STATUS)


def _train_on_family(
    problem_options: ProblemOptions,
    training_options: dict[str, Any],
    recipe: "Recipe",
    folder: Path,
    resume: bool,
    track: bool,
    json: bool,
) -> None:
    """Train on several graphs that take turns, and place those of the family that are for tests."""
    from placewright import policies
    from placewright.cli.commands import train_family
    from placewright.cli.render import tables
    from placewright.cli.render.json_output import print_json
    from placewright.cli.render.text import INTERRUPTED_STATUS
    from placewright.training import Environment, Trainer
    from placewright.training.recipes.registry import multi_graph_recipe
    from placewright.training.run import TrainingRun

    with Progress(f"reading {problem_options.model}") as progress:
        environments = [
            Environment(each) for each in train_family.family_problems(problem_options, "train")
        ]
        recipe = multi_graph_recipe(recipe)
        trainer = Trainer(environments, recipe, training_options["seed"], training_options["plans"])
        training_run = TrainingRun(
            trainer,
            folder,
            {"asked": _tuples_to_lists(problem_options.to_dict()), "own": training_options},
        )
        if resume:
            training_run.resume()
        finish, watch = _training_callbacks(trainer, progress, folder if track else None)
        ended = training_run.train(watch)
        finish()
        policies.save(trainer.policy, folder / train_family.POLICY_FILE)
        test_problems = train_family.family_problems(problem_options, "test") if ended else []
        tests = list(train_family.test_results(trainer, test_problems))
    curve = train_family.round_summaries(trainer)
    if json:
        print_json({"run": str(folder), "recipe": recipe.name, "rounds": curve, "tests": tests})
    else:
        train_family.print_family(curve, tests, folder)
        if not ended:
            tables.print_lines([_resume_hint(trainer, folder)])
    if not ended:
        raise typer.Exit(INTERRUPTED_STATUS)


def _with_start_times(recipe: "Recipe") -> "Recipe":
    shape: Any = recipe.policy_config
    if not hasattr(shape, "times"):
        raise ConfigError(f"recipe {recipe.name!r} knows no start times: leave out --times")
    return replace(recipe, policy_config=replace(shape, times=True))


def _resume_hint(trainer: "Trainer", folder: Path) -> str:
    return (
        f"stopped after {trainer.evaluations:,} of {trainer.max_evaluations:,} plans: "
        f"go on with placewright train --resume {folder}"
    )


def _baseline_results(problem: "Problem") -> "list[Result]":
    """What a learning curve is drawn with: methods that take no search, where they answer."""
    from placewright.solvers import METHODS, solve
    from placewright.solvers.baselines import constructive_solvers

    available = {
        solver.name
        for group in constructive_solvers(problem, with_partitioners=True)
        for solver in group
    }
    baseline_names = ("single", "expert", "mincut-repaired", "scotch-repaired", "heft", "m-etf")
    return [solve(problem, METHODS[name]()) for name in baseline_names if name in available]


def _training_options(arguments: dict[str, Any]) -> dict[str, Any]:
    """The options that say how to train."""
    options_dict = {name: arguments[name] for name in _TRAINING_OPTIONS}
    if options_dict["recipe"] is None and arguments["resume"] is None:
        from placewright.training import RECIPES

        raise ConfigError(f"no recipe is named: name one of {', '.join(RECIPES)}")
    return {
        **options_dict,
        "plans": options_dict["plans"] or DEFAULT_PLANS,
        "seed": options_dict["seed"] or 0,
    }


def _saved_run(folder: Path, arguments: dict[str, Any]) -> dict[str, Any]:
    """What a run was begun with.

    Raises:
        FileError: It keeps no checkpoint.
        ConfigError: Something else is typed now.
    """
    from placewright.training import read_checkpoint
    from placewright.training.run import CHECKPOINT_FILE

    data, _ = read_checkpoint(folder / CHECKPOINT_FILE)
    saved = data["more"]
    saved_options = saved.get("own")
    if isinstance(saved_options, dict):
        saved_options = saved["own"] = {**_LATER_DEFAULTS, **saved_options}
    if (
        not isinstance(saved_options, dict)
        or set(saved_options) != set(_TRAINING_OPTIONS)
        or not isinstance(saved.get("asked"), dict)
    ):
        raise ConfigError(f"{folder} keeps a run that the command line did not begin")
    for name in _TRAINING_OPTIONS:
        if (
            arguments[name] not in (None, _LATER_DEFAULTS.get(name))
            and arguments[name] != saved_options[name]
        ):
            raise ConfigError(
                f"the run in {folder} was begun with {name} {saved_options[name]!r}: to go on leave out "
                f"{arguments[name]!r}, or begin a new run"
            )
    return dict(saved)


def _problem_options(saved_run: dict[str, Any], arguments: dict[str, Any]) -> ProblemOptions:
    if not saved_run:
        if arguments["model"] is None:
            raise typer.BadParameter("name a network, such as rnnlm-2", param_hint="'--graph'")
        return ProblemOptions.from_arguments(arguments)
    saved_words = {k: tuple(v) if isinstance(v, list) else v for k, v in saved_run["asked"].items()}
    typed = ProblemOptions.from_arguments({**arguments, "model": arguments["model"] or ""})
    return ProblemOptions.from_dict(saved_words, typed)


def _tuples_to_lists(words: dict[str, Any]) -> dict[str, Any]:
    return {key: list(value) if isinstance(value, tuple) else value for key, value in words.items()}


def _new_folder(parent: Path, recipe: str, model: str) -> Path:
    """A folder that is not there yet, named after the recipe and the model."""
    plain = "".join(c if c.isalnum() or c in "-._" else "-" for c in Path(model).name)
    name, count = f"{recipe}-{plain}", 2
    folder = parent / name
    while folder.exists():
        folder, count = parent / f"{name}-{count}", count + 1
    return folder


def _training_callbacks(
    trainer: "Trainer", progress: Progress, folder: Path | None
) -> "tuple[Callable[[], None], Callable[[Trainer], None]]":
    """What to call at the end, and after each update."""
    from placewright.training.tensorboard_log import TensorboardLog

    log = None if folder is None else TensorboardLog(folder, trainer.evaluations)

    def watch(trainer: "Trainer") -> None:
        row = trainer.log[-1]
        text = (
            f"{trainer.recipe.name}: best {format_seconds(row.best)}, mean "
            f"{format_seconds(row.mean)}, {row.plans:,} plans, entropy {row.entropy:.0%}, "
            f"{row.infeasible:.0%} do not fit"
        )
        progress.update(text, trainer.progress)
        if log is not None:
            log(trainer)

    return (lambda: None) if log is None else log.close, watch


_LOG_FIELDS = ("update", "plans", "best", "mean", "greedy", "entropy", "infeasible")


def _sample_rows(rows: "list[UpdateLog]") -> "list[UpdateLog]":
    """A few rows of all, evenly spaced, the last one included."""
    last = len(rows) - 1
    return [rows[at] for at in sorted({last * k // (_CURVE_ROWS - 1) for k in range(_CURVE_ROWS)})]


def _curve_table(curve: "list[UpdateLog]") -> tuple[list[str], list[tuple[str, ...]]]:
    columns = ["plans", "best", "mean", "argmax", "entropy", "do not fit"]
    rows: list[tuple[str, ...]] = [
        (
            f"{row.plans:,}",
            format_seconds(row.best),
            format_seconds(row.mean),
            format_seconds(row.greedy),
            f"{row.entropy:.0%}",
            f"{row.infeasible:.0%}",
        )
        for row in curve
    ]
    return columns, rows
