"""`placewright profile`: this machine and a model in, what each op takes on each device out."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from placewright.cli import options
from placewright.cli.problem_options import sizes
from placewright.cli.progress import Progress
from placewright.cli.resolve import check_json, check_writable, is_here, refuse_training
from placewright.errors import ConfigError
from placewright.units import format_bytes, format_seconds, parse_seconds

if TYPE_CHECKING:
    from placewright.profiling.machine_profile import Profile
    from placewright.profiling.op_costs import OpProfile


def profile_machine(
    model: Annotated[
        str | None,
        typer.Argument(
            metavar="[MODEL]",
            help="model.py:build or a network's name; without one the machine alone is measured.",
            show_default=False,
        ),
    ] = None,
    on: Annotated[
        str,
        typer.Option("--on", metavar="here", help="This machine; here:workers=2 is --workers 2."),
    ] = "here",
    workers: Annotated[
        int | None,
        typer.Option(
            "--workers",
            metavar="N",
            min=1,
            help="CPU devices to make of the cores. [default: 1 beside GPUs, else 2]",
        ),
    ] = None,
    budget: Annotated[
        str,
        typer.Option("--budget", metavar="TIME", help="How long measuring the ops may take."),
    ] = "60s",
    again: Annotated[
        bool, typer.Option("--again", help="Measure also what was measured before.")
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
        ),
    ] = None,
    json: options.Json = False,
) -> None:
    """Measure this machine's devices and links, and a model's ops on each device."""
    from placewright import files
    from placewright.cli.render import tables
    from placewright.cli.render.json_output import print_json
    from placewright.profiling.machine_profile import here, parse_here
    from placewright.profiling.sites import sites_of

    check_writable(output)
    if model is not None:
        check_json(output, "a table of op times")
        refuse_training(model, training, optimizer)
    if not is_here(on):
        raise ConfigError(f"--on {on!r}: only this machine can be measured: expected here")
    asked = parse_here(on)
    if workers is not None and asked is not None and workers != asked:
        raise ConfigError(f"--on {on} and --workers {workers} do not agree: give one of them")
    try:
        seconds = parse_seconds(budget)
    except ConfigError as error:
        raise ConfigError(f"--budget: {error}") from None
    count = workers if asked is None else asked
    ops: OpProfile | None = None
    with Progress("measuring this machine") as progress:
        program = None
        if model is not None:  # first: its file may change settings that the machine's key has
            from placewright.runtime.models import find_program

            progress.say(f"reading {model}", None)
            program = find_program(model, training, optimizer)
        profile = here(count, again=again, said=lambda text: progress.say(text, None))
        if program is not None:
            from placewright.profiling.op_costs import profile_ops

            chosen = sites_of(profile.machine, count)
            ops = profile_ops(
                program,
                profile.machine,
                profile.cluster,
                chosen,
                seconds,
                again,
                progress.say,
                sizes("--limit", limit, profile.cluster),
            )
    if output is not None:
        files.save(profile.cluster if ops is None else ops.table, output)
    if json:
        print_json(profile_data(profile, ops))
        return
    _print_machine(profile)
    lines = [] if ops is None else ["", *_ops_lines(model or "", ops, output)]
    if output is not None:
        what = "cluster" if ops is None else "op times"
        lines.append(f"{what} written to {output}")
    tables.print_lines(lines)


def profile_data(profile: "Profile", ops: "OpProfile | None") -> dict[str, Any]:
    """All of it in seconds and bytes."""
    from placewright import files

    data: dict[str, Any] = {
        "cluster": files.to_data(profile.cluster),
        "facts": profile.facts,
        "fresh": profile.fresh,
    }
    if ops is not None:
        data["ops"] = {
            "different": ops.different,
            "measured": ops.measured,
            "known": ops.known,
            "worked_out": ops.worked_out,
            "failed": ops.failed,
            "seconds": ops.seconds,
            "columns": list(ops.table.columns),
            "totals": [float(total) for total in ops.table.seconds.sum(axis=0)],
        }
    return data


def _print_machine(profile: "Profile") -> None:
    from placewright.cli.render import tables

    when = "measured now" if profile.fresh else f"measured {profile.facts.get('day')}, kept"
    tables.print_lines([f"{profile.machine}: {when}"])
    cluster = profile.cluster
    dtypes = list(dict.fromkeys(dtype for each in cluster.devices for dtype in each.rates))
    tables.print_table(
        ("device", "model", "memory", *dtypes, "GB/s", "launch"),
        [
            (
                each.name,
                each.model,
                format_bytes(each.memory),
                *(_rate(each.rates.get(dtype)) for dtype in dtypes),
                f"{each.bandwidth / 1e9:,.4g}",
                format_seconds(each.launch),
            )
            for each in cluster.devices
        ],
        left=2,
    )
    pageable = {(each["from"], each["to"]): each for each in profile.facts.get("links", ())}
    if cluster.links:
        rows = []
        for (source, target), link in cluster.links.items():
            other = pageable.get((source, target), {}).get("pageable")
            rows.append(
                (
                    f"{source} -> {target}",
                    "shared" if link.bandwidth == float("inf") else f"{link.bandwidth / 1e9:.4g}",
                    "–" if other is None else f"{other / 1e9:.4g}",
                    format_seconds(link.latency),
                )
            )
        tables.print_table(("link", "GB/s", "not pinned", "latency"), rows)


def _rate(rate: float | None) -> str:
    return "–" if rate is None else f"{rate / 1e12:.3g} T"


def _ops_lines(model: str, ops: "OpProfile", output: Path | None) -> list[str]:
    count = len(ops.table.ops)
    lines = [
        f"{model}: {count:,} ops, {ops.different:,} different times; {ops.measured:,} measured in "
        f"{format_seconds(ops.seconds)}, {ops.known:,} known from before, {ops.worked_out:,} "
        "worked out from those of their kind"
    ]
    for column, total in zip(ops.table.columns, ops.table.seconds.sum(axis=0), strict=True):
        lines.append(f"all of them on {column}, one after the other: {format_seconds(total)}")
    if ops.failed:
        name, why = next(iter(ops.failed.items()))
        lines.append(f"{len(ops.failed)} could not be run, such as {name}: {why}")
    if output is None:
        lines.append(
            "to use these times, write them with -o costs.json and give --costs costs.json"
        )
    return lines
