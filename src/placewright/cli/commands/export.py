"""`placewright export`: writes a plan in another runtime's format."""

import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from placewright.cli import options, panels
from placewright.cli.completion import complete_target
from placewright.cli.names import TARGET_NAMES
from placewright.cli.paths import check_writable, load_plan
from placewright.cli.problem_options import ProblemOptions, with_saved_problem_options
from placewright.cli.progress import Progress
from placewright.errors import ConfigError, PlanError, nearest, printable
from placewright.units import format_bytes, format_percent, format_seconds

if TYPE_CHECKING:
    from placewright.exporters import ExportedPlan, PlanMetrics
    from placewright.problem import Problem

_MODEL_SUFFIXES = (".onnx", ".pb", ".pbtxt")  # models that a target may write again


@with_saved_problem_options
def export_plan(
    plan: Annotated[
        Path, typer.Argument(metavar="PLAN", help="A plan or result file.", show_default=False)
    ],
    problem_options: ProblemOptions,
    to: Annotated[
        str,
        typer.Option(
            "--to",
            metavar="TARGET",
            help=f"{', '.join(TARGET_NAMES[:-1])} or {TARGET_NAMES[-1]}.",
            autocompletion=complete_target,
            show_default=False,
            rich_help_panel=panels.OUTPUT,
        ),
    ],
    output: Annotated[
        Path | None,
        typer.Option(
            "-o",
            "--output",
            metavar="FILE",
            help="Write it to a file.",
            rich_help_panel=panels.OUTPUT,
        ),
    ] = None,
    device: Annotated[
        list[str] | None,
        typer.Option(
            "--device",
            metavar="NAME=NAME",
            help="What the target calls a device: gpu0=1.",
            rich_help_panel=panels.OUTPUT,
        ),
    ] = None,
    json: options.Json = False,
) -> None:
    """Write a plan for another runtime, and show what is lost.

    A result file has the options of its problem; those given here replace them.
    """
    from placewright.cli.render import tables
    from placewright.cli.render.json_output import print_json
    from placewright.exporters import (
        TARGETS,
        WRITE_MODELS,
        export,
    )
    from placewright.result import Result
    from placewright.runtime.distributed.caller_problem import without_caller

    check_writable(output)
    if to not in TARGETS:
        raise ConfigError(f"--to {to!r}: {nearest(to, TARGETS)}")
    if to in WRITE_MODELS and output is None:
        raise ConfigError(f"--to {to} writes a model: name its file with --output")
    names = _parse_names(device)
    noun = load_plan(plan)
    problem_options = ProblemOptions.from_files([plan], [noun], problem_options)
    problem_options = replace(problem_options, caller=False)  # other runtimes have none
    with Progress(f"reading {problem_options.model}"):
        problem = problem_options.problem()
        reading = problem_options.model_options()
        rows = {name: (size,) for name, size in reading.dims.items()} if to == "tensorflow" else {}
        try:
            exported = export(
                problem,
                without_caller(noun.plan if isinstance(noun, Result) else noun),
                to,
                model=problem_options.model
                if problem_options.model.endswith(_MODEL_SUFFIXES)
                else None,
                names=names,
                dims=reading.dims,
                shapes={**rows, **reading.shapes},
            )
        except PlanError as error:
            raise PlanError(f"{plan}: {error}") from None
    files = [] if output is None else [str(path) for path in exported.save(output)]
    if json:
        print_json(_export_data(exported, files))
        return
    lines = [*_export_lines(problem, exported), *(f"written to {path}" for path in files)]
    if output is None:
        print(exported.text, end="")  # a file's content: its formats escape names
        print("\n".join(["", *map(printable, lines)]), file=sys.stderr)
    else:
        tables.print_lines(lines)


def _parse_names(texts: list[str] | None) -> dict[str, str]:
    names: dict[str, str] = {}
    for text in texts or ():
        name, _, word = (part.strip() for part in text.partition("="))
        if not (name and word):
            raise ConfigError(f"--device {text!r}: expected such as gpu0=1")
        names[name] = word
    return names


def _export_lines(problem: "Problem", exported: "ExportedPlan") -> list[str]:
    """How to use the export, what is lost, and what that costs."""
    cost = exported.cost
    lines = [f"usage: {exported.usage}"]
    lines += [f"lost in export: {note}" for note in exported.notes]
    if cost.moved_time or cost.moved_bytes:
        lines.append(
            f"on another device than planned: {format_percent(cost.moved_time)} of the computing "
            f"time, {format_percent(cost.moved_bytes)} of the weights"
        )
    else:
        lines.append("every op and weight is where the plan has it")
    for what in ("step time", "period"):
        if what == "step time" or problem.objective == "period":
            key = what.replace(" ", "_")
            lines.append(
                f"{what}, simulated: {format_seconds(getattr(cost.planned, key))} as planned, "
                f"{format_seconds(getattr(cost.exported, key))} as exported"
            )
    if cost.exported.overflow:
        lines.append(
            f"does not fit as exported: out of memory by {format_bytes(cost.exported.overflow)} "
            f"({format_bytes(cost.planned.overflow)} as planned)"
        )
    return lines


def _export_data(exported: "ExportedPlan", files: list[str]) -> dict[str, Any]:
    return {
        "target": exported.target,
        "export": exported.data,
        "usage": exported.usage,
        "notes": list(exported.notes),
        "time_elsewhere": exported.cost.moved_time,
        "bytes_elsewhere": exported.cost.moved_bytes,
        "planned": _figures_data(exported.cost.planned),
        "exported": _figures_data(exported.cost.exported),
        "files": files,
    }


def _figures_data(figures: "PlanMetrics") -> dict[str, float]:
    return {
        "step_time": figures.step_time,
        "period": figures.period,
        "overflow": figures.overflow,
    }
