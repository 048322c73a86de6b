"""The Typer application: registers every command."""

from __future__ import annotations

from typing import Annotated

import typer

from placewright.cli.commands.clusters import list_clusters
from placewright.cli.commands.compare import compare_methods
from placewright.cli.commands.diff import diff_plans
from placewright.cli.commands.execute import execute_plan
from placewright.cli.commands.explain import explain_plan
from placewright.cli.commands.export import export_plan
from placewright.cli.commands.fits import check_fit
from placewright.cli.commands.models import list_models
from placewright.cli.commands.place import place_model
from placewright.cli.commands.profile import profile_machine
from placewright.cli.commands.report import report_results
from placewright.cli.commands.simulate import simulate_plan
from placewright.cli.commands.train import train_policy

# Without markup the help comes from typer alone, in a third of the time that rich takes to load.
app = typer.Typer(
    name="placewright",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)
app.command("place", short_help="Find a plan.")(place_model)
app.command("fits", short_help="Show whether a model fits.")(check_fit)
app.command("compare", short_help="Show every method side by side.")(compare_methods)
app.command("simulate", short_help="Evaluate an existing plan.")(simulate_plan)
app.command("execute", short_help="Run a plan on this machine.")(execute_plan)
app.command("report", short_help="Show saved results on one page.")(report_results)
app.command("diff", short_help="Show what differs between two plans.")(diff_plans)
app.command("explain", short_help="Show what moving an op would do.")(explain_plan)
app.command("export", short_help="Write a plan for another runtime.")(export_plan)
app.command("train", short_help="Train a policy that places a network.")(train_policy)
app.command("profile", short_help="Measure this machine, and a model on it.")(profile_machine)
app.command("models", short_help="List the built-in models.")(list_models)
app.command("clusters", short_help="List devices and links of clusters.")(list_clusters)


def _print_version(requested: bool) -> None:
    if requested:
        from placewright.version import __version__

        print(f"placewright {__version__}")
        raise typer.Exit


@app.callback()
def root_command(
    version: Annotated[
        bool,
        typer.Option("--version", callback=_print_version, is_eager=True, help="Show the version."),
    ] = False,
) -> None:
    """Find the fastest placement of a neural network on a set of devices.

    \b
    placewright models                                   built-in models
    placewright clusters                                 devices and links
    placewright fits transformer --on A100               does it fit, and if not?
    placewright compare branches --on 2xP100+cpu         every method, side by side
    placewright place branches --on 2xP100+cpu -o plan.json --report report.html
    placewright simulate branches --on 2xP100+cpu --plan plan.json
    """
