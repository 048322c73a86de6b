"""One call of `train`: trains in the folder of a run, and prints what came of it."""

from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from placewright.cli.output_files import OutputFiles
from placewright.cli.paths import print_note
from placewright.cli.problem_options import ProblemOptions
from placewright.cli.progress import Progress
from placewright.cli.training_options import TrainingOptions

if TYPE_CHECKING:
    from collections.abc import Callable
    from contextlib import AbstractContextManager

    from placewright.problem import Problem
    from placewright.profiling.selection import MeasuredCandidate
    from placewright.result import Result
    from placewright.runtime import Meter
    from placewright.training import Environment, Recipe, Trainer, UpdateLog
    from placewright.workers import Workers

_CURVE_ROWS = 10  # rows of the learning curve that are printed
_LOG_FIELDS = ("update", "plans", "best", "mean", "greedy", "entropy", "infeasible")


class TrainingSession:
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
        workers: "Workers | None",
    ) -> None:
        self.workers = workers
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
        from placewright.cli.render.measured import measured_data, measured_lines, model_meter
        from placewright.solvers import Comparison
        from placewright.training import training_result

        meter = model_meter(self.problem_options) if self.training_options.measure else None
        with Progress(f"reading {self.problem_options.model}") as progress:
            problem = self.problem_options.problem()
            with self._environment(problem, meter) as environment:
                trainer = self.training_options.trainer([environment], self.recipe, self.workers)
                ended = self._train(trainer, progress)
                if environment.best_placement is None and not (meter and environment.evaluations):
                    self._exit_without_plan(trainer)
                measured = [] if meter is None else _measured_plans(environment, meter)
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
            data = {**answer_data(comparison), **self._names(), "rows": figures}
            if meter is not None:
                data["measured"] = measured_data(measured)
            print_json(data)
        else:
            if meter is not None:
                choice = "the policy's fastest plan"
                tables.print_lines(measured_lines(measured, self.recipe.name, choice))
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
                    self.training_options.environment(recipe, problem)
                    for problem in train_family.family_problems(options, "train")
                ]
            trainer = self.training_options.trainer(environments, recipe, self.workers)
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

    def _environment(
        self, problem: "Problem", meter: "Meter | None"
    ) -> "AbstractContextManager[Environment]":
        if meter is None:
            return nullcontext(self.training_options.environment(self.recipe, problem))
        from placewright.training.plan_measurement import open_measured_environment

        return open_measured_environment(self.recipe, problem, meter, self.folder)

    def _train(self, trainer: "Trainer", progress: Progress) -> bool:
        """Train to the end or to an interrupt; whether it is the end."""
        from placewright.training.run import TrainingRun

        problem = {
            name: list(value) if isinstance(value, tuple) else value
            for name, value in self.problem_options.to_dict().items()
        }
        options = replace(self.training_options, micro_batch=trainer.mode["micro_batch"])
        metadata = {"problem": problem, "training": options.to_dict()}
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


def _measured_plans(environment: "Environment", meter: "Meter") -> "list[MeasuredCandidate]":
    """The best plan and, to compare it with, every single device."""
    from placewright.training.plan_measurement import measured_best, measured_devices

    best = measured_best(environment, meter)
    devices = measured_devices(environment.problem, meter)
    return [best, *(each for each in devices if each.candidate.plan != best.candidate.plan)]


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
