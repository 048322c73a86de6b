"""`placewright train`: trains a policy to place a model."""

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from placewright.cli import options, panels
from placewright.cli.completion import complete_recipe
from placewright.cli.names import RECIPE_NAMES
from placewright.cli.output_files import OutputFiles
from placewright.cli.paths import check_json, check_writable, print_note
from placewright.cli.problem_options import (
    ProblemOptions,
    parse_budget,
    with_training_problem_options,
)
from placewright.cli.progress import Progress
from placewright.cli.training_options import DEFAULT_EVALUATIONS, TrainingOptions, saved_run
from placewright.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Callable

    from placewright.problem import Problem
    from placewright.result import Result
    from placewright.training import Recipe, Trainer, UpdateLog

_CURVE_ROWS = 10  # rows of the learning curve that are printed
_LOG_FIELDS = ("update", "plans", "best", "mean", "greedy", "entropy", "infeasible")


@with_training_problem_options
def train_policy(
    *,
    recipe: Annotated[
        str | None,
        typer.Argument(
            metavar="RECIPE",
            help=f"One of {', '.join(RECIPE_NAMES)}.",
            show_default=False,
            autocompletion=complete_recipe,
        ),
    ] = None,
    problem_options: ProblemOptions,
    family: Annotated[
        str | None,
        typer.Option(
            "--family",
            metavar="NAME",
            help="Train on all training graphs of a family (cifar10, ptb, nmt) instead of MODEL.",
            rich_help_panel=panels.PROBLEM,
        ),
    ] = None,
    demonstrations: Annotated[
        Path | None,
        typer.Option(
            "--demonstrations",
            metavar="FILE",
            help="(go only) Train on the problems of this file and imitate its plans; graphs are "
            "read from its folder, if they are there.",
            rich_help_panel=panels.PROBLEM,
        ),
    ] = None,
    evaluations: Annotated[
        int | None,
        typer.Option(
            "--evaluations",
            metavar="N",
            min=1,
            help="Plans to evaluate in all; with --resume more than before, to train further. "
            f"[default: {DEFAULT_EVALUATIONS}, or no limit with --budget]",
            rich_help_panel=panels.SEARCH,
        ),
    ] = None,
    budget: Annotated[
        str | None,
        typer.Option(
            "--budget",
            metavar="TIME",
            help="Time to train in all: 5min, 2h.",
            rich_help_panel=panels.SEARCH,
        ),
    ] = None,
    seed: Annotated[
        int | None,
        typer.Option(
            "--seed",
            metavar="N",
            min=0,
            help="Random seed. [default: 0]",
            rich_help_panel=panels.SEARCH,
        ),
    ] = None,
    groups: Annotated[
        int | None,
        typer.Option(
            "--groups",
            metavar="N",
            help="Largest number of groups of ops.",
            rich_help_panel=panels.SEARCH,
        ),
    ] = None,
    hidden: Annotated[
        int | None,
        typer.Option(
            "--hidden",
            metavar="N",
            help="Size of the hidden states.",
            rich_help_panel=panels.SEARCH,
        ),
    ] = None,
    grouping: Annotated[
        str | None,
        typer.Option(
            "--grouping",
            metavar="NAME",
            help="How ops are grouped: colocation, coarse, module, op, forward.",
            rich_help_panel=panels.SEARCH,
        ),
    ] = None,
    start_times: Annotated[
        bool,
        typer.Option(
            "--start-times",
            help="(placeto only) Let the policy read when groups start, simulated at each step.",
            rich_help_panel=panels.SEARCH,
        ),
    ] = False,
    run_dir: Annotated[
        Path | None,
        typer.Option(
            "--run-dir",
            metavar="DIR",
            help="Folder of the run. [default: runs/RECIPE-MODEL]",
            rich_help_panel=panels.OUTPUT,
        ),
    ] = None,
    resume: Annotated[
        Path | None,
        typer.Option(
            "--resume",
            metavar="DIR",
            help="Continue the run in this folder.",
            rich_help_panel=panels.RUN,
        ),
    ] = None,
    tensorboard: Annotated[
        bool,
        typer.Option(
            "--tensorboard",
            help="Write TensorBoard logs into the run's folder.",
            rich_help_panel=panels.OUTPUT,
        ),
    ] = False,
    output: Annotated[
        Path | None,
        typer.Option(
            "-o",
            "--output",
            metavar="FILE",
            help="Write the best plan and its figures.",
            rich_help_panel=panels.OUTPUT,
        ),
    ] = None,
    report: options.Report = None,
    json: options.Json = False,
    graph: Annotated[str | None, typer.Option("--graph", hidden=True)] = None,
) -> None:
    """Train a policy to place a model. Ctrl-C saves the run; --resume continues it.

    The trained policy is a method: `placewright place MODEL --method DIR`.
    """
    check_writable(output, report)
    check_json(output, "a result")
    if graph is not None:
        from placewright.cli.renamed_options import warn_renamed

        warn_renamed("--graph MODEL", "the argument MODEL")
        problem_options = replace(problem_options, model=problem_options.model or graph)
    typed = TrainingOptions(
        recipe,
        evaluations,
        parse_budget(budget),
        seed,
        groups,
        hidden,
        grouping,
        family,
        start_times,
        None if demonstrations is None else str(demonstrations),
    )
    if resume is None:
        training_options = typed.for_new_run()
        problem_options = _new_problem(problem_options, training_options)
    else:
        saved_problem, saved_options = saved_run(resume)
        training_options = typed.for_resumed_run(saved_options, resume)
        problem_options = ProblemOptions.from_dict(
            saved_problem, problem_options, f"the arguments {training_options.recipe} "
        )
    name = f"{training_options.recipe}-{_plain_name(problem_options.model)}"
    folder = resume or run_dir or _new_folder(Path("runs"), name)
    if resume is None and (folder / "checkpoint.json").exists():
        raise ConfigError(f"{folder} keeps a run already: continue it with --resume {folder}")
    session = _Session(
        problem_options,
        training_options,
        training_options.find_recipe(),
        folder,
        resume is not None,
        tensorboard,
        json,
    )
    if training_options.family is None and training_options.demonstrations is None:
        session.train_on_model(output, report)
        return
    if output is not None or report is not None:
        raise ConfigError("several graphs have no single plan: leave out --output and --report")
    session.train_on_family()


class _Session:
    """One call of `train`: the options, the recipe and the folder of the run."""

    def __init__(
        self,
        problem_options: ProblemOptions,
        training_options: TrainingOptions,
        recipe: "Recipe",
        folder: Path,
        resume: bool,
        tensorboard: bool,
        json: bool,
    ) -> None:
        self.problem_options, self.training_options = problem_options, training_options
        self.recipe, self.folder, self.resume = recipe, folder, resume
        self.tensorboard, self.json = tensorboard, json

    def train_on_model(self, output: Path | None, report: Path | None) -> None:
        """Train on one problem, and print its best plan."""
        from placewright.cli.commands.train_family import learning_rows
        from placewright.cli.render import tables
        from placewright.cli.render.json_output import (
            answer_data,
            print_json,
            save_report,
            save_result,
        )
        from placewright.solvers import Comparison
        from placewright.training import training_result

        with Progress(f"reading {self.problem_options.model}") as progress:
            problem = self.problem_options.problem()
            trainer = self._trainer([self.recipe.environment(problem)], self.recipe)
            ended = self._train(trainer, progress)
            if trainer.environments[0].best_placement is None:
                self._exit_without_plan(trainer)
            result = replace(training_result(trainer), options=self.problem_options.to_dict())
            comparison = Comparison(
                problem, (result,), interrupted=not ended, name=self.problem_options.model
            )
        rows = learning_rows(trainer.log)
        written = OutputFiles()
        written.write(save_result, result, output)
        if report is not None:
            from placewright.reporting import LearningCurve

            curve = LearningCurve(self.recipe.name, rows)
            everything = replace(
                comparison, results=(result, *_baseline_results(problem)), labels=()
            )
            written.write(save_report, everything, report, learning_curve=curve)
        shown = _sample_rows(rows)
        if self.json:
            figures = [{each: getattr(row, each) for each in _LOG_FIELDS} for row in shown]
            print_json({**answer_data(comparison), **self._names(), "rows": figures})
        else:
            tables.print_table(*_curve_table(shown))
            tables.print_lines([""])
            tables.print_result(comparison)
            tables.print_lines(["", *written.lines, *self._hints(trainer)])
        written.check()
        self._exit_if_interrupted(trainer)

    def train_on_family(self) -> None:
        """Train on several problems, and place the test graphs of their family."""
        from placewright.cli.commands import train_family
        from placewright.cli.render import tables
        from placewright.cli.render.json_output import print_json
        from placewright.training.recipes.registry import multi_graph_recipe

        with Progress(f"reading {self.problem_options.model}") as progress:
            recipe = multi_graph_recipe(self.recipe)
            demonstrations, options = self.training_options.demonstrations, self.problem_options
            tests: list[Problem] = []
            if demonstrations is not None:
                environments = train_family.demonstrated(recipe, Path(demonstrations))
            else:
                environments = [
                    recipe.environment(problem)
                    for problem in train_family.family_problems(options, "train")
                ]
            trainer = self._trainer(environments, recipe)
            ended = self._train(trainer, progress)
            if ended and demonstrations is None:
                tests = train_family.family_problems(options, "test")
            results = list(train_family.test_results(trainer, tests))
        rounds = train_family.round_summaries(trainer)
        if self.json:
            print_json({**self._names(), "rounds": rounds, "tests": results})
        else:
            train_family.print_family(rounds, results)
            tables.print_lines(["", *self._hints(trainer)])
        self._exit_if_interrupted(trainer)

    def _trainer(self, environments: "list[Any]", recipe: "Recipe") -> "Trainer":
        from placewright.training import Trainer

        limits = self.training_options
        return Trainer(
            environments,
            recipe,
            limits.seed or 0,
            limits.evaluations,
            max_seconds=limits.seconds,
        )

    def _train(self, trainer: "Trainer", progress: Progress) -> bool:
        """Train to the end or to an interrupt; whether it is the end."""
        from placewright.training.run import TrainingRun

        problem = {
            name: list(value) if isinstance(value, tuple) else value
            for name, value in self.problem_options.to_dict().items()
        }
        metadata = {"problem": problem, "training": self.training_options.to_dict()}
        run = TrainingRun(trainer, self.folder, metadata)
        if self.resume:
            run.resume()
            if trainer.finished:
                print_note(
                    f"{self.folder} is finished after {trainer.evaluations:,} plans: this is its "
                    f"result; to train further add --evaluations, more than "
                    f"{trainer.max_evaluations or trainer.evaluations:,}"
                )
        finish, watch = _training_callbacks(
            trainer, progress, self.folder if self.tensorboard else None
        )
        try:
            return run.train(watch)
        finally:
            finish()

    def _names(self) -> dict[str, str]:
        return {"run": str(self.folder), "recipe": self.recipe.name}

    def _hints(self, trainer: "Trainer") -> list[str]:
        hints = [f"policy and checkpoint are in {self.folder}"]
        if not trainer.finished:
            limit = trainer.max_evaluations
            of_all = "" if limit is None else f" of {limit:,}"
            hints.append(
                f"stopped after {trainer.evaluations:,}{of_all} plans: "
                f"continue with placewright train --resume {self.folder}"
            )
        return hints

    def _exit_without_plan(self, trainer: "Trainer") -> None:
        """End a run that was interrupted before any plan was evaluated."""
        from placewright.cli.render import tables
        from placewright.cli.render.json_output import print_json
        from placewright.cli.render.text import INTERRUPTED_STATUS

        if self.json:
            print_json({**self._names(), "rows": []})
        else:
            tables.print_lines(["no plan was evaluated yet", *self._hints(trainer)])
        raise typer.Exit(INTERRUPTED_STATUS)

    def _exit_if_interrupted(self, trainer: "Trainer") -> None:
        from placewright.cli.render.text import INTERRUPTED_STATUS

        if not trainer.finished:
            raise typer.Exit(INTERRUPTED_STATUS)


def _new_problem(problem_options: ProblemOptions, limits: TrainingOptions) -> ProblemOptions:
    sources = {
        "MODEL": problem_options.model,
        "--family": limits.family,
        "--demonstrations": limits.demonstrations,
    }
    named = [name for name, value in sources.items() if value]
    if not named:
        raise typer.BadParameter("name a model, e.g. rnnlm-2", param_hint="'MODEL'")
    if len(named) > 1:
        raise ConfigError(f"{' and '.join(named)} are both given: keep one")
    return replace(problem_options, model=str(sources[named[0]]))


def _baseline_results(problem: "Problem") -> "list[Result]":
    """Results to draw next to a learning curve: constructive methods, where they apply."""
    from placewright.solvers import METHODS, solve
    from placewright.solvers.baselines import constructive_solvers

    available = {
        solver.name
        for group in constructive_solvers(problem, with_partitioners=True)
        for solver in group
    }
    baseline_names = ("single", "expert", "mincut-repaired", "scotch-repaired", "heft", "m-etf")
    return [solve(problem, METHODS[name]()) for name in baseline_names if name in available]


def _plain_name(model: str) -> str:
    return "".join(c if c.isalnum() or c in "-._" else "-" for c in Path(model).name)


def _new_folder(parent: Path, name: str) -> Path:
    """A folder of that name that does not exist yet."""
    folder, count = parent / name, 2
    while folder.exists():
        folder, count = parent / f"{name}-{count}", count + 1
    return folder


def _training_callbacks(
    trainer: "Trainer", progress: Progress, folder: Path | None
) -> "tuple[Callable[[], None], Callable[[Trainer], None]]":
    """What to call at the end, and after each update."""
    from placewright.cli.commands.train_family import format_figure, format_share
    from placewright.training.tensorboard_log import TensorboardLog

    log = None if folder is None else TensorboardLog(folder, trainer.evaluations)

    def watch(trainer: "Trainer") -> None:
        if not trainer.log:
            return
        row = trainer.log[-1]
        text = (
            f"{trainer.recipe.name}: best {format_figure(row.best)}, mean "
            f"{format_figure(row.mean)}, {row.plans:,} plans, entropy "
            f"{format_share(row.entropy)}, {format_share(row.infeasible)} out of memory"
        )
        if row.phase == trainer.hooks.pretraining:
            text = f"{trainer.recipe.name}: {row.phase}, update {row.update:,}"
        progress.update(text, trainer.progress)
        if log is not None:
            log(trainer)

    return (lambda: None) if log is None else log.close, watch


def _sample_rows(rows: "list[UpdateLog]") -> "list[UpdateLog]":
    """A few rows, evenly spaced, the last one included."""
    last = len(rows) - 1
    positions = {last * at // (_CURVE_ROWS - 1) for at in range(_CURVE_ROWS)} if rows else set()
    return [rows[position] for position in sorted(positions)]


def _curve_table(curve: "list[UpdateLog]") -> tuple[list[str], list[tuple[str, ...]]]:
    from placewright.cli.commands.train_family import format_figure, format_share

    columns = ["plans", "best", "mean", "argmax", "entropy", "out of memory"]
    rows: list[tuple[str, ...]] = [
        (
            f"{row.plans:,}",
            format_figure(row.best),
            format_figure(row.mean),
            format_figure(row.greedy),
            format_share(row.entropy),
            format_share(row.infeasible),
        )
        for row in curve
    ]
    return columns, rows
