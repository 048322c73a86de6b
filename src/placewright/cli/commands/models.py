"""`placewright models`: lists the built-in models."""

import contextlib
from typing import TYPE_CHECKING, Annotated, Any

import typer

from placewright.cli import options, panels
from placewright.errors import MissingDependency
from placewright.units import format_bytes

if TYPE_CHECKING:
    from placewright.zoo import Entry


def list_models(
    capture: Annotated[
        bool,
        typer.Option(
            "--capture",
            help="Capture every model for its figures; takes minutes.",
            rich_help_panel=panels.OUTPUT,
        ),
    ] = False,
    json: options.Json = False,
) -> None:
    """List the built-in models, with their default sizes."""
    from placewright.cli.render import tables
    from placewright.cli.render.json_output import print_json
    from placewright.zoo import ENTRIES

    models = [_model_data(model, capture) for model in ENTRIES.values()]
    if json:
        print_json({"models": models})
        return
    rows = [
        (
            model["name"],
            model["mode"] or "–",
            _format_count(model["ops"]),
            *(
                "–" if model[key] is None else _format_large(model[key])
                for key in ("parameters", "flops")
            ),
            "–" if model["resident"] is None else format_bytes(model["resident"]),
            "–" if model["activations"] is None else format_bytes(model["activations"]),
        )
        for model in models
    ]
    header = ("model", "mode", "ops", "parameters", "FLOPs", "resident", "activations")
    tables.print_table(header, rows, text_columns=2, blank_line=False)
    about = [
        (model["name"], f"{model['description']}\n{_format_arguments(model)}") for model in models
    ]
    tables.print_table(
        ("model", "description and arguments"), about, text_columns=2, multiline=True
    )
    lines = ["", "Arguments follow a colon: gpt2:training=false,batch=1 or transformer:blocks=8"]
    if any(model["ops"] is None for model in models):
        lines.append("Figures of a model are known once it was captured: --capture does it for all")
    tables.print_lines(lines)


def _model_data(entry: "Entry", capture: bool) -> dict[str, Any]:
    from dataclasses import asdict, fields

    from placewright.zoo.figures import GraphFigures, figures_of, step_mode

    about = {
        "name": entry.name,
        "description": entry.description,
        "mode": None,
        "arguments": dict(entry.defaults),
    }
    figures = None
    with contextlib.suppress(MissingDependency):
        figures = figures_of(entry, capture)
        about["mode"] = step_mode(entry)
    if figures is None:
        return about | dict.fromkeys(field.name for field in fields(GraphFigures))
    return about | asdict(figures)


def _format_count(number: int | None) -> str:
    return "–" if number is None else f"{number:,}"


def _format_large(flops: float) -> str:
    for unit in ("", "k", "M", "G", "T"):
        if flops < 999.5:
            return f"{flops:.3g} {unit}".strip()
        flops /= 1000
    return f"{flops:,.4g} P"


def _format_arguments(model: dict[str, Any], width: int = 58) -> str:
    """As they are typed, in lines that end with a comma."""
    lines = [""]
    for key, value in model["arguments"].items():
        word = f"{key}={str(value).lower()},"
        if len(lines[-1]) + len(word) > width:
            lines.append("")
        lines[-1] += word
    return "\n".join(lines).removesuffix(",")
