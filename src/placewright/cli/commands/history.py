"""`placewright history`: lists the stored plans, shows one, and prunes them."""

from pathlib import Path
from typing import Annotated

import typer

from placewright.cli import options, panels
from placewright.cli.completion import complete_key
from placewright.cli.output_files import OutputFiles
from placewright.cli.paths import check_json, check_writable
from placewright.errors import ConfigError
from placewright.units import parse_seconds


def show_history(
    key: Annotated[
        str | None,
        typer.Argument(
            metavar="[KEY]",
            help="A plan to show: the first characters of its key.",
            show_default=False,
            autocompletion=complete_key,
        ),
    ] = None,
    output: Annotated[
        Path | None,
        typer.Option(
            "-o",
            "--output",
            metavar="FILE",
            help="(with KEY) Write the plan and its figures.",
            rich_help_panel=panels.OUTPUT,
        ),
    ] = None,
    prune: Annotated[
        bool,
        typer.Option(
            "--prune",
            help="Remove plans, as --older-than and --keep say.",
            rich_help_panel=panels.RUN,
        ),
    ] = False,
    older_than: Annotated[
        str | None,
        typer.Option(
            "--older-than",
            metavar="TIME",
            help="(with --prune) Remove plans that were not used for this long: 30d, 12h.",
            rich_help_panel=panels.RUN,
        ),
    ] = None,
    keep: Annotated[
        int | None,
        typer.Option(
            "--keep",
            metavar="N",
            min=0,
            help="(with --prune) Remove all but the N plans that were used last.",
            rich_help_panel=panels.RUN,
        ),
    ] = None,
    json: options.Json = False,
    store: options.StoreLocation = None,
) -> None:
    """List the plans that were stored, show one, or prune them."""
    from placewright.cli.render import history, json_output, tables
    from placewright.store import open_store

    _check_options(key, output, prune, older_than, keep)
    check_writable(output)
    check_json(output, "a result")
    plan_store = open_store(store)
    if prune:
        removed = plan_store.prune(_parse_age(older_than), keep)
        if json:
            json_output.print_json({"store": plan_store.name, "removed": removed})
        else:
            tables.print_lines([history.removed_line(removed, plan_store.name)])
        return
    if key is None:
        records = plan_store.list_plans()
        if json:
            json_output.print_json(
                {"store": plan_store.name, "plans": [history.record_data(each) for each in records]}
            )
        else:
            history.print_records(plan_store.name, records)
        return
    record = plan_store.find_plan(key)
    measurements = plan_store.list_measurements(record.digest) if record.digest else []
    written = OutputFiles()
    written.write(history.save_plan, record, output)
    if json:
        json_output.print_json(history.plan_data(record, measurements))
    else:
        history.print_plan(record, measurements)
        tables.print_lines(["", *written.lines] if written.lines else [])
    written.check()


def _check_options(
    key: str | None,
    output: Path | None,
    prune: bool,
    older_than: str | None,
    keep: int | None,
) -> None:
    if prune and (key is not None or (older_than is None and keep is None)):
        raise ConfigError("--prune: expected --older-than or --keep, and no key")
    if not prune and (older_than is not None or keep is not None):
        raise ConfigError("--older-than and --keep say what to remove: add --prune")
    if output is not None and key is None:
        raise ConfigError("-o writes one plan: add its key; placewright history lists them")


def _parse_age(text: str | None) -> float | None:
    if text is None:
        return None
    try:
        return parse_seconds(text)
    except ConfigError as error:
        raise ConfigError(f"--older-than: {error}") from None
