"""`placewright models`: lists the built-in models."""

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
            _format_count(model["ops"]),
            _format_count(model["tensors"]),
            _format_count(model["parameters"]),
            "–" if model["flops"] is None else _format_flops(model["flops"]),
            "–" if model["resident"] is None else format_bytes(model["resident"]),
            "–" if model["activations"] is None else format_bytes(model["activations"]),
        )
        for model in models
    ]
    header = ("model", "ops", "tensors", "parameters", "FLOPs", "resident", "activations")
    tables.print_table(header, rows, blank_line=False)
    about = [
        (model["name"], f"{model['description']}\n{_format_arguments(model)}") for model in models
    ]
    tables.print_table(
        ("model", "description and arguments"), about, text_columns=2, multiline=True
    )
    lines = ["", "Arguments follow a colon: transformer:blocks=8,tokens=512"]
    if any(model["ops"] is None for model in models):
        lines.append("Figures of a model are known once it was captured: --capture does it for all")
    tables.print_lines(lines)


def _model_data(entry: "Entry", capture: bool) -> dict[str, Any]:
    from placewright.zoo.capture import cached_graph

    about = {
        "name": entry.name,
        "description": entry.description,
        "arguments": dict(entry.defaults),
    }
    graph = None
    try:
        is_built = entry.network is None or capture
        graph = entry.build() if is_built or entry.network is None else cached_graph(entry.network)
    except MissingDependency:
        pass
    figures = ("ops", "tensors", "parameters", "flops", "resident", "activations")
    if graph is None:
        return about | dict.fromkeys(figures)
    weights = [op for op in graph.ops if op.kind in ("weight", "state")]
    computed_ops = [op for op in graph.ops if op.kind not in ("weight", "state", "view", "input")]
    return about | {
        "ops": len(graph),
        "tensors": sum(len(op.outputs) for op in graph.ops),
        "parameters": sum(sum(op.outputs) // _DTYPE_BYTES.get(op.dtype, 4) for op in weights),
        "flops": sum(op.flops for op in graph.ops),
        "resident": sum(op.resident for op in graph.ops) + sum(sum(op.outputs) for op in weights),
        "activations": sum(sum(op.outputs) for op in computed_ops),
    }


_DTYPE_BYTES = {"float64": 8, "int64": 8, "float32": 4, "int32": 4, "float16": 2, "bfloat16": 2}


def _format_count(number: int | None) -> str:
    return "–" if number is None else f"{number:,}"


def _format_flops(flops: float) -> str:
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
