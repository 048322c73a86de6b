"""The Typer application: registers every command."""

from collections.abc import Callable
from typing import Annotated

import typer

from placewright.cli.command_classes import MAX_WIDTH, PanelCommand, PanelGroup
from placewright.cli.commands.clusters import list_clusters
from placewright.cli.commands.compare import compare_methods
from placewright.cli.commands.diff import diff_plans
from placewright.cli.commands.execute import execute_plan
from placewright.cli.commands.explain import explain_plan
from placewright.cli.commands.export import export_plan
from placewright.cli.commands.fits import check_fit
from placewright.cli.commands.history import show_history
from placewright.cli.commands.models import list_models
from placewright.cli.commands.place import place_model
from placewright.cli.commands.profile import profile_machine
from placewright.cli.commands.report import report_results
from placewright.cli.commands.simulate import simulate_plan
from placewright.cli.commands.train import train_policy
from placewright.cli.general_options import (
    META_KEY,
    Config,
    LogLevelOption,
    Quiet,
    Verbose,
    with_general_options,
)

# Without markup the help comes from typer alone, in a third of the time that rich takes to load.
app = typer.Typer(
    name="placewright",
    cls=PanelGroup,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": MAX_WIDTH},
)
_PLANS, _POLICIES, _NAMES = "Plans", "Policies and machines", "Names"
_COMMANDS: tuple[tuple[str, str, Callable[..., None], str], ...] = (
    ("place", "Find a plan.", place_model, _PLANS),
    ("fits", "Show whether a model fits.", check_fit, _PLANS),
    ("compare", "Show every method side by side.", compare_methods, _PLANS),
    ("simulate", "Evaluate an existing plan.", simulate_plan, _PLANS),
    ("execute", "Run a plan on this machine.", execute_plan, _PLANS),
    ("report", "Show saved results on one page.", report_results, _PLANS),
    ("diff", "Show what differs between two plans.", diff_plans, _PLANS),
    ("explain", "Show what moving an op would do.", explain_plan, _PLANS),
    ("export", "Write a plan for another runtime.", export_plan, _PLANS),
    ("history", "List plans that were stored.", show_history, _PLANS),
    ("train", "Train a policy that places a network.", train_policy, _POLICIES),
    ("profile", "Measure this machine, and a model on it.", profile_machine, _POLICIES),
    ("models", "List the built-in models.", list_models, _NAMES),
    ("clusters", "List devices and links of clusters.", list_clusters, _NAMES),
)
for _name, _help, _command, _panel in _COMMANDS:
    app.command(_name, cls=PanelCommand, short_help=_help, rich_help_panel=_panel)(
        with_general_options(_command)
    )


def _print_version(requested: bool) -> None:
    if requested:
        from placewright.version import __version__

        print(f"placewright {__version__}")
        raise typer.Exit


@app.callback()
def root_command(
    context: typer.Context,
    version: Annotated[
        bool,
        typer.Option(
            "-V", "--version", callback=_print_version, is_eager=True, help="Show the version."
        ),
    ] = False,
    verbose: Verbose = 0,
    quiet: Quiet = False,
    log_level: LogLevelOption = None,
    config: Config = None,
) -> None:
    """Find the fastest placement of a neural network on a set of devices.

    \b
    placewright models                             built-in models
    placewright clusters                           devices and links
    placewright fits transformer --on A100         does it fit, and if not?
    placewright compare branches --on 2xP100+cpu   every method, side by side
    placewright place branches --on 2xP100+cpu -o plan.json --report report.html
    placewright simulate branches --on 2xP100+cpu --plan plan.json
    """
    context.meta[META_KEY] = {
        "verbose": verbose,
        "quiet": quiet,
        "log_level": log_level,
        "config": config,
    }
