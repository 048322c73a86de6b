"""`placewright execute`: runs a plan on this machine and times its steps."""

from pathlib import Path
from typing import Annotated

import typer

from placewright.cli import options, panels
from placewright.errors import ConfigError

LARGE_FACTOR = 2.0  # between measured and predicted times, from which on it is remarked on


def execute_plan(
    plan: Annotated[
        Path, typer.Argument(metavar="PLAN", help="A plan or result file.", show_default=False)
    ],
    model: Annotated[
        str,
        typer.Option(
            "--model",
            metavar="MODEL",
            help="model.py:build, or a built-in model such as inception-v3:training=false.",
            show_default=False,
            rich_help_panel=panels.PROBLEM,
        ),
    ],
    training: options.Training = False,
    optimizer: options.Optimizer = None,
    steps: Annotated[
        int,
        typer.Option(
            "--steps", metavar="N", min=1, help="Steps to run.", rich_help_panel=panels.RUN
        ),
    ] = 20,
    in_flight: Annotated[
        int,
        typer.Option(
            "--in-flight",
            metavar="N",
            min=1,
            help="Pipelined steps at once.",
            rich_help_panel=panels.RUN,
        ),
    ] = 1,
    verify: Annotated[
        bool,
        typer.Option(
            "--verify",
            help="Check outputs, gradients, devices and memory first.",
            rich_help_panel=panels.RUN,
        ),
    ] = False,
    device_map: Annotated[
        list[str] | None,
        typer.Option(
            "--device-map",
            metavar="DEVICE=TORCH",
            help="The PyTorch device of a plan's device: gpu0=cuda:1, gpu0=cpu.",
            rich_help_panel=panels.RUN,
        ),
    ] = None,
    rank_map: Annotated[
        list[str] | None,
        typer.Option(
            "--rank-map",
            metavar="HOST=RANK",
            help="Under torchrun, the rank of a host or device. [default: in the plan's order]",
            rich_help_panel=panels.RUN,
        ),
    ] = None,
    json: options.Json = False,
    store: options.StoreLocation = None,
) -> None:
    """Run a plan on this machine's devices, and time its steps; under torchrun on several hosts."""
    from placewright.cli.model_loading import check_training, parse_spec, training_mode
    from placewright.cli.paths import load_plan
    from placewright.cli.progress import Progress
    from placewright.cli.render.json_output import print_json
    from placewright.cli.render.tables import print_lines
    from placewright.cli.render.text import format_count
    from placewright.result import Result
    from placewright.runtime.distributed.caller_problem import CALLER, without_caller
    from placewright.runtime.distributed.launched_ranks import (
        is_launched,
        join_ranks,
        leave_ranks,
        time_on_ranks,
    )
    from placewright.runtime.distributed.rank_model import RankOptions
    from placewright.runtime.executor import Executor
    from placewright.runtime.machine import this_machine
    from placewright.runtime.meter import WARMUP_STEPS, time_steps
    from placewright.runtime.program import program as torch_program
    from placewright.runtime.sample_model import load_model
    from placewright.runtime.verification import verify as check
    from placewright.store import open_store
    from placewright.store.measured_plans import store_measurement
    from placewright.units import format_bytes, format_percent, format_seconds

    torch_devices = parse_device_map(device_map)
    plan_store = open_store(store)
    rank_options = RankOptions(parse_rank_map(rank_map))
    is_on_ranks = is_launched()
    if rank_map and not is_on_ranks:
        raise ConfigError("--rank-map needs ranks: start the command with torchrun --no-python")
    check_training(parse_spec(model), training, optimizer)
    loaded = load_plan(plan)
    loaded_plan = loaded.plan if isinstance(loaded, Result) else loaded
    counts_outputs = CALLER in loaded_plan.ops
    loaded_plan = without_caller(loaded_plan)
    if isinstance(loaded, Result):  # which knows its options
        training = training or loaded.options.get("training") is True
        saved_optimizer = loaded.options.get("optimizer")
        optimizer = optimizer or (saved_optimizer if isinstance(saved_optimizer, str) else None)
    training, optimizer = training_mode(model, training, optimizer)
    with Progress(f"reading {model}"):
        built, args, kwargs = load_model(model)
        program = torch_program.build_program(built, args, kwargs, training, optimizer)
    data: dict[str, object] = {}
    lines = []
    if verify and not is_on_ranks:
        with Progress("verifying"):
            verification = check(program, built, loaded_plan, args, kwargs, torch_devices)
        data["verified"] = {
            "difference": verification.difference,
            "ops": verification.ops,
            "peak": dict(verification.peak),
        }
        lines.append(
            f"verified: {verification.ops:,} ops ran where the plan has them, outputs "
            f"{'and gradients ' if training else ''}differ by {verification.difference:.2g} at most"
        )
        lines += [f"  {name} held {format_bytes(peak)}" for name, peak in verification.peak.items()]
    dropped = WARMUP_STEPS if in_flight == 1 else min(WARMUP_STEPS, steps - 1)
    total = steps + dropped if in_flight == 1 else steps
    if is_on_ranks:
        join_ranks()
        timed = time_on_ranks(
            program,
            built,
            loaded_plan,
            args,
            kwargs,
            total,
            dropped,
            in_flight,
            rank_options,
            torch_devices,
            verify,
        )
        leave_ranks()
        if timed is None:
            return  # rank 0 has the results
        measured, issued = timed.measurement, ""
        if timed.difference is not None:
            data["verified"] = {"difference": timed.difference}
            what = "loss, gradients and updated weights" if training else "outputs"
            lines.append(
                f"verified: {what} of the ranks differ from the model's by "
                f"{timed.difference:.2g} at most"
            )
    else:
        with Progress("running"), Executor(program, built, loaded_plan, torch_devices) as run:
            measured = time_steps(run, args, kwargs, total, dropped, in_flight)
            issued = run.issue_mode
        if in_flight == 1:
            figures = this_machine().key, measured.seconds, measured.spread
            store_measurement(plan_store, model, loaded_plan, *figures)
    metric = "step time" if in_flight == 1 else "period"
    data |= {metric.replace(" ", "_"): measured.seconds, "spread": measured.spread, "steps": steps}
    predicted = ""
    if isinstance(loaded, Result) and not loaded.edited:
        predicted_seconds = loaded.step_time if in_flight == 1 else loaded.period
        data["predicted"] = predicted_seconds
        predicted = f", predicted {format_seconds(predicted_seconds)}"
    seconds = format_seconds(measured.seconds)
    count = format_count(steps if in_flight == 1 else steps * in_flight, "step")
    spread = f"median of {count}, spread {format_percent(measured.spread, decimal_below=0)}"
    lines.insert(0, f"{metric} {seconds} measured ({spread}){predicted}")
    remark = _prediction_remark(measured.seconds, data.get("predicted"), model)
    lines += [remark] if remark else []
    if is_on_ranks and predicted and not counts_outputs:
        lines.append(
            "the prediction leaves outputs where they are made, and rank 0 received them: place "
            "with --caller to plan for that"
        )
    if issued:
        data["issued"] = issued
        lines.insert(1, f"  how ops were launched on GPUs: {issued}")
    if json:
        print_json(data)
    else:
        print_lines(lines)


def _prediction_remark(measured: float, predicted: object, model: str) -> str:
    """A line where the prediction is off by a factor."""
    if not (isinstance(predicted, float) and predicted > 0 and measured > 0):
        return ""
    ratio = measured / predicted
    if 1 / LARGE_FACTOR < ratio < LARGE_FACTOR:
        return ""
    size = max(ratio, 1 / ratio)
    times = f"{size:,.0f}" if size >= 10 else f"{size:.1f}"
    factor = f"{times}× as long as predicted" if ratio > 1 else f"1/{times} of the time predicted"
    return (
        f"the step took {factor}: was the machine busy, or are op times estimates? measure them "
        f"with placewright profile {model} --refresh, and place with --on here --costs here"
    )


def parse_device_map(texts: list[str] | None) -> dict[str, str]:
    """The PyTorch devices of a plan's devices."""
    device_map = {}
    for text in texts or ():
        name, equals, torch_device = text.partition("=")
        if not (name and equals and torch_device):
            raise ConfigError(f"--device-map {text!r}: expected e.g. gpu0=cuda:1")
        device_map[name] = torch_device
    return device_map


def parse_rank_map(texts: list[str] | None) -> dict[str, int]:
    """The ranks of a plan's hosts or devices."""
    rank_map = {}
    for text in texts or ():
        name, equals, rank = text.rpartition("=")
        if not (name and equals and rank.isdecimal()):
            raise ConfigError(f"--rank-map {text!r}: expected e.g. node1=0")
        rank_map[name] = int(rank)
    return rank_map
