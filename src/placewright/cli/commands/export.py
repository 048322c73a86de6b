"""`placewright export`: a plan in, the same plan in another runtime's own words out."""

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from placewright.cli import options
from placewright.cli.progress import Progress
from placewright.cli.render.text import percent
from placewright.cli.resolve import check_writable, load_plan
from placewright.cli.saved_options import asked_again
from placewright.errors import ConfigError, PlanError, nearest
from placewright.units import format_bytes, format_seconds

if TYPE_CHECKING:
    from placewright.cli.problem_options import Asked
    from placewright.exporters import Exported, Figures
    from placewright.plan import Plan
    from placewright.problem import Problem
    from placewright.result import Result

_FILES = (".onnx", ".pb", ".pbtxt")  # models that a target may write anew


def export_plan(
    plan: Annotated[
        Path, typer.Argument(metavar="PLAN", help="A plan or result file.", show_default=False)
    ],
    to: Annotated[
        str,
        typer.Option(
            "--to",
            metavar="TARGET",
            help="accelerate, pipelining, onnxruntime, onnx, openvino, llama.cpp, vllm or "
            "tensorflow.",
            show_default=False,
        ),
    ],
    output: Annotated[
        Path | None,
        typer.Option("-o", "--output", metavar="FILE", help="Write it to a file."),
    ] = None,
    device: Annotated[
        list[str] | None,
        typer.Option(
            "--device", metavar="NAME=NAME", help="What the target calls a device: gpu0=1."
        ),
    ] = None,
    model: options.PlanModel = None,
    on: options.On = None,
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
    json: options.Json = False,
) -> None:
    """Write a plan in another runtime's own words, and say what is lost.

    A result file says with which options its problem was asked for; those given here replace them.
    """
    typed = locals()
    from placewright.cli.render import tables
    from placewright.cli.render.json_output import print_json
    from placewright.exporters import (
        TARGETS,
        WRITE_MODELS,
        export,
    )
    from placewright.result import Result

    check_writable(output)
    if to not in TARGETS:
        raise ConfigError(f"--to {to!r}: {nearest(to, TARGETS)}")
    if to in WRITE_MODELS and output is None:
        raise ConfigError(f"--to {to} writes a model: name its file with --output")
    names = _names(device)
    noun = load_plan(plan)
    asked = _asked(plan, noun, typed)
    with Progress(f"reading {asked.model}"):
        problem = asked.problem()
        reading = asked.reading()
        rows = {name: (size,) for name, size in reading.dims.items()} if to == "tensorflow" else {}
        try:
            found = export(
                problem,
                noun.plan if isinstance(noun, Result) else noun,
                to,
                model=asked.model if asked.model.endswith(_FILES) else None,
                names=names,
                dims=reading.dims,
                shapes={**rows, **reading.shapes},
            )
        except PlanError as error:
            raise PlanError(f"{plan}: {error}") from None
    files = [] if output is None else [str(path) for path in found.save(output)]
    if json:
        print_json(_data(found, files))
        return
    lines = [*_lines(problem, found), *(f"written to {path}" for path in files)]
    if output is None:
        print(found.text, end="")
        print("\n".join(["", *lines]), file=sys.stderr)
    else:
        tables.print_lines(lines)


def _asked(path: Path, noun: "Plan | Result", typed: dict[str, Any]) -> "Asked":
    """What the problem is: as the file says, but for what is typed now."""
    from placewright.result import Result

    words = noun.asked if isinstance(noun, Result) else {}
    if not words and typed["model"] is None:
        raise ConfigError(
            f"{path}: does not say which problem it is of: name the model with --model and "
            "the cluster with --on, as when it was made"
        )
    return asked_again(words, typed)


def _names(texts: list[str] | None) -> dict[str, str]:
    found: dict[str, str] = {}
    for text in texts or ():
        name, _, word = (part.strip() for part in text.partition("="))
        if not (name and word):
            raise ConfigError(f"--device {text!r}: expected such as gpu0=1")
        found[name] = word
    return found


def _lines(problem: "Problem", found: "Exported") -> list[str]:
    """What it takes to use it, what is lost, and what that costs."""
    cost = found.cost
    lines = [f"use it: {found.usage}"]
    lines += [f"not said: {note}" for note in found.notes]
    if cost.time or cost.bytes:
        lines.append(
            f"on another device than planned: {percent(cost.time)} of the computing time, "
            f"{percent(cost.bytes)} of the weights"
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
            f"does not fit as exported: {format_bytes(cost.exported.overflow)} over the memory "
            f"({format_bytes(cost.planned.overflow)} as planned)"
        )
    return lines


def _data(found: "Exported", files: list[str]) -> dict[str, Any]:
    return {
        "target": found.target,
        "export": found.data,
        "usage": found.usage,
        "notes": list(found.notes),
        "time_elsewhere": found.cost.time,
        "bytes_elsewhere": found.cost.bytes,
        "planned": _figures(found.cost.planned),
        "exported": _figures(found.cost.exported),
        "files": files,
    }


def _figures(figures: "Figures") -> dict[str, float]:
    return {
        "step_time": figures.step_time,
        "period": figures.period,
        "overflow": figures.overflow,
    }
