"""`placewright profile`: measures this machine, and a model's ops on it."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from placewright.cli import options, panels
from placewright.cli.model_loading import check_training, parse_spec
from placewright.cli.paths import check_json, check_writable, is_this_machine
from placewright.cli.problem_options import parse_budget, parse_sizes
from placewright.cli.progress import Progress
from placewright.errors import ConfigError
from placewright.units import format_bytes, format_seconds

if TYPE_CHECKING:
    from placewright.profiling.machine_profile import MachineProfile
    from placewright.profiling.op_costs import OpProfile


def profile_machine(
    model: Annotated[
        str | None,
        typer.Argument(
            metavar="MODEL",
            help="model.py:build or a built-in model; without one only the machine is measured.",
            show_default=False,
        ),
    ] = None,
    on: Annotated[
        str,
        typer.Option(
            "--on",
            metavar="here",
            help="This machine; here:workers=2 is --workers 2.",
            rich_help_panel=panels.PROBLEM,
        ),
    ] = "here",
    workers: Annotated[
        int | None,
        typer.Option(
            "--workers",
            metavar="N",
            min=1,
            help="CPU devices to make of the cores. [default: 1 next to GPUs, else 2]",
            rich_help_panel=panels.RUN,
        ),
    ] = None,
    budget: Annotated[
        str,
        typer.Option(
            "--budget",
            metavar="TIME",
            help="Time budget for measuring ops.",
            rich_help_panel=panels.RUN,
        ),
    ] = "60s",
    refresh: Annotated[
        bool,
        typer.Option(
            "--refresh", help="Measure again what was measured before.", rich_help_panel=panels.RUN
        ),
    ] = False,
    limit: options.Limit = None,
    training: options.Training = False,
    optimizer: options.Optimizer = None,
    output: Annotated[
        Path | None,
        typer.Option(
            "-o",
            "--output",
            metavar="FILE",
            help="Write the table of op times for --costs; without a model, the cluster.",
            rich_help_panel=panels.OUTPUT,
        ),
    ] = None,
    json: options.Json = False,
) -> None:
    """Measure this machine's devices and links, and a model's ops on each device."""
    from placewright import files
    from placewright.cli.render import tables
    from placewright.cli.render.json_output import print_json
    from placewright.profiling import machine_profile
    from placewright.profiling.model_profile import profile as profile_model
    from placewright.runtime.distributed.launched_ranks import (
        is_launched,
        join_ranks,
        leave_ranks,
    )

    check_writable(output)
    if model is not None:
        check_json(output, "a table of op times")
        check_training(parse_spec(model), training, optimizer)
    if not is_this_machine(on):
        raise ConfigError(f"--on {on!r}: only this machine can be measured: expected here")
    named_workers = machine_profile.parse_workers(on)
    if workers is not None and named_workers is not None and workers != named_workers:
        raise ConfigError(f"--on {on} and --workers {workers} do not agree: give one of them")
    seconds = parse_budget(budget)
    worker_count = workers if named_workers is None else named_workers
    ops: OpProfile | None = None
    is_on_ranks = is_launched()
    if is_on_ranks and model is not None:
        raise ConfigError(
            f"ops of {model} are measured in one process: under torchrun leave the model out, and "
            "measure it on one host of each kind"
        )
    with Progress("measuring this machine") as progress:
        if is_on_ranks:
            rank = join_ranks()
            profile = machine_profile.profile_ranks(
                worker_count, refresh, progress=lambda text: progress.update(text, None)
            )
            leave_ranks()
            if rank != 0:
                return  # rank 0 has the whole cluster
        elif model is None:
            profile = machine_profile.profile_machine(
                worker_count, refresh, progress=lambda text: progress.update(text, None)
            )
        else:
            progress.update(f"reading {model}", None)
            model_profile = profile_model(
                model,
                training=training,
                optimizer=optimizer,
                limits=lambda cluster: parse_sizes("--limit", limit, cluster),
                workers=worker_count,
                budget=seconds or 0.0,
                refresh=refresh,
                progress=progress.update,
            )
            profile, ops = model_profile.machine, model_profile.ops
    if output is not None:
        files.save(profile.cluster if ops is None else ops.table, output)
    if json:
        print_json(profile_data(profile, ops))
        return
    _print_machine(profile)
    lines = [] if ops is None else ["", *_op_lines(model or "", ops, output)]
    if output is not None:
        kind = "cluster" if ops is None else "op times"
        lines.append(f"{kind} written to {output}")
    tables.print_lines(lines)


def profile_data(profile: "MachineProfile", ops: "OpProfile | None") -> dict[str, Any]:
    """The profile in seconds and bytes."""
    from placewright import files

    data: dict[str, Any] = {
        "cluster": files.to_data(profile.cluster),
        "facts": profile.facts,
        "fresh": profile.fresh,
    }
    if ops is not None:
        data["ops"] = {
            "different": ops.distinct,
            "measured": ops.measured,
            "known": ops.cached,
            "worked_out": ops.estimated,
            "failed": ops.failed,
            "seconds": ops.seconds,
            "columns": list(ops.table.columns),
            "totals": [float(total) for total in ops.table.seconds.sum(axis=0)],
        }
    return data


def _print_machine(profile: "MachineProfile") -> None:
    from placewright.cli.render import tables

    when = "measured now" if profile.fresh else f"measured {profile.facts.get('day')}, cached"
    tables.print_lines([f"{profile.machine}: {when}"])
    cluster = profile.cluster
    dtypes = list(dict.fromkeys(dtype for entry in cluster.devices for dtype in entry.rates))
    tables.print_table(
        ("device", "model", "memory", *dtypes, "GB/s", "launch"),
        [
            (
                entry.name,
                entry.model,
                format_bytes(entry.memory),
                *(_format_rate(entry.rates.get(dtype)) for dtype in dtypes),
                f"{entry.memory_bandwidth / 1e9:,.4g}",
                format_seconds(entry.launch_overhead),
            )
            for entry in cluster.devices
        ],
        text_columns=2,
    )
    pageable = {(entry["from"], entry["to"]): entry for entry in profile.facts.get("links", ())}
    if cluster.links:
        rows = []
        for (source, target), link in cluster.links.items():
            pageable_rate = pageable.get((source, target), {}).get("pageable")
            rows.append(
                (
                    f"{source} -> {target}",
                    "shared" if link.bandwidth == float("inf") else f"{link.bandwidth / 1e9:.4g}",
                    "–" if pageable_rate is None else f"{pageable_rate / 1e9:.4g}",
                    format_seconds(link.latency),
                )
            )
        tables.print_table(("link", "GB/s", "pageable", "latency"), rows)


def _format_rate(rate: float | None) -> str:
    return "–" if rate is None else f"{rate / 1e12:.3g} T"


def _op_lines(model: str, ops: "OpProfile", output: Path | None) -> list[str]:
    count = len(ops.table.ops)
    lines = [
        f"{model}: {count:,} ops, {ops.distinct:,} distinct; {ops.measured:,} measured in "
        f"{format_seconds(ops.seconds)}, {ops.cached:,} from the cache, {ops.estimated:,} "
        "estimated from ops of their kind"
    ]
    for column, total in zip(ops.table.columns, ops.table.seconds.sum(axis=0), strict=True):
        lines.append(f"all of them on {column}, one after the other: {format_seconds(total)}")
    if ops.failed:
        name, why = next(iter(ops.failed.items()))
        lines.append(f"{len(ops.failed)} could not be run, e.g. {name}: {why}")
    if output is None:
        lines.append(
            "to use these times, write them with -o costs.json and give --costs costs.json"
        )
    return lines
