"""`placewright execute`: a plan and its model in, the steps it really takes out."""

from pathlib import Path
from typing import Annotated

import typer

from placewright.cli import options
from placewright.errors import ConfigError


def execute_plan(
    plan: Annotated[
        Path, typer.Argument(metavar="PLAN", help="A plan or result file.", show_default=False)
    ],
    model: Annotated[
        str,
        typer.Option(
            "--model",
            metavar="MODEL",
            help="model.py:build, or a network's name such as inception-v3:training=false.",
            show_default=False,
        ),
    ],
    training: options.Training = False,
    optimizer: options.Optimizer = None,
    steps: Annotated[int, typer.Option("--steps", metavar="N", min=1, help="Steps to run.")] = 20,
    in_flight: Annotated[
        int,
        typer.Option("--in-flight", metavar="N", min=1, help="Steps under way at once."),
    ] = 1,
    verify: Annotated[
        bool,
        typer.Option("--verify", help="Check outputs, gradients, devices and memory first."),
    ] = False,
    where: Annotated[
        list[str] | None,
        typer.Option(
            "--where", metavar="DEVICE=PLACE", help="Where a device is: gpu0=cuda:1, gpu0=cpu."
        ),
    ] = None,
    json: options.Json = False,
) -> None:
    """Run a plan on this machine's devices, and time its steps."""
    from placewright.cli.progress import Progress
    from placewright.cli.render.json_output import print_json
    from placewright.cli.render.tables import print_lines
    from placewright.cli.resolve import load_plan, refuse_training, step_of
    from placewright.result import Result
    from placewright.runtime.executor import Executor
    from placewright.runtime.meter import build, time_steps
    from placewright.runtime.program import program as torch_program
    from placewright.runtime.verification import verify as check
    from placewright.units import format_bytes, format_seconds

    places = read_places(where)
    refuse_training(model, training, optimizer)
    loaded = load_plan(plan)
    found = loaded.plan if isinstance(loaded, Result) else loaded
    if isinstance(loaded, Result):  # which knows what it was made for
        training = training or loaded.asked.get("training") is True
        rule = loaded.asked.get("optimizer")
        optimizer = optimizer or (rule if isinstance(rule, str) else None)
    training, optimizer = step_of(model, training, optimizer)
    with Progress(f"reading {model}"):
        built, args, kwargs = build(model)
        program = torch_program.program_of(built, args, kwargs, training, optimizer)
    said: dict[str, object] = {}
    lines = []
    if verify:
        with Progress("verifying"):
            seen = check(program, built, found, args, kwargs, places)
        said["verified"] = {
            "difference": seen.difference,
            "ops": seen.ops,
            "peak": dict(seen.peak),
        }
        lines.append(
            f"verified: {seen.ops:,} ops ran where the plan has them, outputs "
            f"{'and gradients ' if training else ''}differ by {seen.difference:.2g} at most"
        )
        lines += [f"  {name} held {format_bytes(most)}" for name, most in seen.peak.items()]
    dropped = min(5, steps - 1)
    with Progress("running"), Executor(program, built, found, places) as run:
        measured = time_steps(run, args, kwargs, steps, dropped, in_flight)
        issued = run.issued
    what = "step time" if in_flight == 1 else "period"
    said |= {what.replace(" ", "_"): measured.seconds, "spread": measured.spread, "steps": steps}
    predicted = ""
    if isinstance(loaded, Result):
        promised = loaded.step_time if in_flight == 1 else loaded.period
        said["predicted"] = promised
        predicted = f", predicted {format_seconds(promised)}"
    lines.insert(
        0,
        f"{what} {format_seconds(measured.seconds)} measured (median of {steps - dropped} steps, "
        f"spread {measured.spread:.0%}){predicted}",
    )
    if issued:
        said["issued"] = issued
        lines.insert(1, f"  how GPUs were given their ops: {issued}")
    if json:
        print_json(said)
    else:
        print_lines(lines)


def read_places(where: list[str] | None) -> dict[str, str]:
    """The places that are given for devices."""
    places = {}
    for text in where or ():
        name, equals, place = text.partition("=")
        if not (name and equals and place):
            raise ConfigError(f"--where {text!r}: expected such as gpu0=cuda:1")
        places[name] = place
    return places
