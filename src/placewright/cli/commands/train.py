"""`placewright train`: trains a policy to place a model."""

from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from placewright.cli import options, panels
from placewright.cli.commands.train_session import TrainingSession
from placewright.cli.completion import complete_recipe
from placewright.cli.names import RECIPE_NAMES
from placewright.cli.paths import check_json, check_writable
from placewright.cli.problem_options import (
    ProblemOptions,
    parse_budget,
    with_training_problem_options,
)
from placewright.cli.render.measured import with_measured_costs
from placewright.cli.training_options import DEFAULT_EVALUATIONS, TrainingOptions, saved_run
from placewright.errors import ConfigError


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
    episodes: Annotated[
        int | None,
        typer.Option(
            "--episodes",
            metavar="N",
            min=1,
            help="Episodes of a problem per update, instead of the recipe's; more keep more "
            "workers busy.",
            rich_help_panel=panels.SEARCH,
        ),
    ] = None,
    workers: options.WorkersOption = None,
    micro_batch: Annotated[
        int | None,
        typer.Option(
            "--micro-batch",
            metavar="N",
            min=1,
            help="Episodes of a micro-batch. [default: with --workers 8, or an eighth of all]",
            rich_help_panel=panels.RUN,
        ),
    ] = None,
    asynchronous: Annotated[
        str | None,
        typer.Option(
            "--asynchronous",
            metavar="C:K",
            help="(colocrl, hierarchical) C controllers sample K plans each and update shared "
            "weights as they finish, as ColocRL's did; faster, and no two runs are the same.",
            rich_help_panel=panels.RUN,
        ),
    ] = None,
    simulator: Annotated[
        str | None,
        typer.Option(
            "--simulator",
            metavar="NAME",
            help="What evaluates plans: cpu, or gpu for lanes on a GPU, in float32; the best plan "
            "is evaluated exactly. [default: cpu]",
            rich_help_panel=panels.RUN,
        ),
    ] = None,
    measure: Annotated[
        bool,
        typer.Option(
            "--measure",
            help="Run every plan on this machine, and learn from measured step times. With --on "
            "here, ops are measured first.",
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
        episodes,
        micro_batch,
        asynchronous,
        simulator,
        measure,
    )
    if resume is None:
        training_options = typed.for_new_run()
        problem_options = _new_problem(problem_options, training_options)
        if measure:
            problem_options = with_measured_costs(problem_options)
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
    from placewright.workers import as_workers

    single = training_options.family is None and training_options.demonstrations is None
    if not single and (output is not None or report is not None):
        raise ConfigError("several graphs have no single plan: leave out --output and --report")
    if not single and training_options.measure:
        raise ConfigError("--measure is for one model: leave out --family and --demonstrations")
    found_recipe = training_options.find_recipe()
    with as_workers(training_options.worker_spec(workers, resume)) as opened:
        session = TrainingSession(
            problem_options,
            training_options,
            found_recipe,
            folder,
            resume is not None,
            tensorboard,
            json,
            opened,
        )
        if single:
            session.train_on_model(output, report)
        else:
            session.train_on_family()


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


def _plain_name(model: str) -> str:
    return "".join(c if c.isalnum() or c in "-._" else "-" for c in Path(model).name)


def _new_folder(parent: Path, name: str) -> Path:
    """A folder of that name that does not exist yet."""
    folder, count = parent / name, 2
    while folder.exists():
        folder, count = parent / f"{name}-{count}", count + 1
    return folder
