"""`placewright models`: the networks that need no file out."""

from typing import TYPE_CHECKING, Annotated, Any

import typer

from placewright.cli import options
from placewright.errors import MissingDependency
from placewright.units import format_bytes

if TYPE_CHECKING:
    from placewright.zoo import Entry


def list_models(
    capture: Annotated[
        bool, typer.Option("--capture", help="Capture what was not yet, for its figures: minutes.")
    ] = False,
    json: options.Json = False,
) -> None:
    """List the networks that need no file, with the sizes that they have by default."""
    from placewright.cli.render import tables
    from placewright.cli.render.json_output import print_json
    from placewright.zoo import ENTRIES

    found = [_data(each, capture) for each in ENTRIES.values()]
    if json:
        print_json({"models": found})
        return
    rows = [
        (
            each["name"],
            _count(each["ops"]),
            _count(each["tensors"]),
            _count(each["parameters"]),
            "–" if each["flops"] is None else _flops(each["flops"]),
            "–" if each["resident"] is None else format_bytes(each["resident"]),
            "–" if each["activations"] is None else format_bytes(each["activations"]),
        )
        for each in found
    ]
    header = ("model", "ops", "tensors", "parameters", "FLOPs", "resident", "activations")
    tables.print_table(header, rows, space=False)
    about = [(each["name"], f"{each['description']}\n{_arguments(each)}") for each in found]
    tables.print_table(("model", "what it is, and its arguments"), about, left=2)
    lines = ["", "Arguments go behind a colon: transformer:blocks=8,tokens=512"]
    if any(each["ops"] is None for each in found):
        lines.append("Figures of a network show up once it was captured: --capture does it for all")
    tables.print_lines(lines)


def _data(entry: "Entry", capture: bool) -> dict[str, Any]:
    from placewright.zoo.capture import captured_before

    about = {
        "name": entry.name,
        "description": entry.description,
        "arguments": dict(entry.defaults),
    }
    graph = None
    try:
        if entry.network is None or capture:
            graph = entry.build()
        else:
            graph = captured_before(entry.network)
    except MissingDependency:
        pass
    figures = ("ops", "tensors", "parameters", "flops", "resident", "activations")
    if graph is None:
        return about | dict.fromkeys(figures)
    weights = [op for op in graph.ops if op.kind in ("weight", "state")]
    made = [op for op in graph.ops if op.kind not in ("weight", "state", "view", "input")]
    return about | {
        "ops": len(graph),
        "tensors": sum(len(op.outputs) for op in graph.ops),
        "parameters": sum(sum(op.outputs) // _BYTES.get(op.dtype, 4) for op in weights),
        "flops": sum(op.flops for op in graph.ops),
        "resident": sum(op.resident for op in graph.ops) + sum(sum(op.outputs) for op in weights),
        "activations": sum(sum(op.outputs) for op in made),
    }


_BYTES = {"float64": 8, "int64": 8, "float32": 4, "int32": 4, "float16": 2, "bfloat16": 2}


def _count(number: int | None) -> str:
    return "–" if number is None else f"{number:,}"


def _flops(flops: float) -> str:
    for unit in ("", "k", "M", "G", "T"):
        if flops < 999.5:
            return f"{flops:.3g} {unit}".strip()
        flops /= 1000
    return f"{flops:,.4g} P"


def _arguments(about: dict[str, Any], width: int = 58) -> str:
    """As they would be typed, in lines that end behind a comma."""
    lines = [""]
    for key, value in about["arguments"].items():
        word = f"{key}={str(value).lower()},"
        if len(lines[-1]) + len(word) > width:
            lines.append("")
        lines[-1] += word
    return "\n".join(lines).removesuffix(",")
