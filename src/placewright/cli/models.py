"""`placewright models`: the networks that need no file out."""

from typing import TYPE_CHECKING, Any

from placewright.cli import options
from placewright.errors import MissingDependency
from placewright.units import format_bytes

if TYPE_CHECKING:
    from placewright.zoo import Entry


def list_models(json: options.Json = False) -> None:
    """List the networks that need no file, with the sizes that they have by default."""
    from placewright.cli import tables
    from placewright.cli.output import print_json
    from placewright.zoo import ENTRIES

    found = [_data(each) for each in ENTRIES.values()]
    if json:
        print_json({"models": found})
        return
    rows = [
        (
            each["name"],
            _count(each["ops"]),
            _count(each["tensors"]),
            "–" if each["weights"] is None else format_bytes(each["weights"]),
            "–" if each["flops"] is None else _flops(each["flops"]),
        )
        for each in found
    ]
    tables.print_table(("model", "ops", "tensors", "weights", "FLOPs a step"), rows, space=False)
    about = [(each["name"], f"{each['description']}\n{_arguments(each)}") for each in found]
    tables.print_table(("model", "what it is, and its arguments"), about, left=2)
    tables.print_lines(["", "Arguments go behind a colon: transformer:blocks=8,tokens=512"])


def _data(entry: "Entry") -> dict[str, Any]:
    about = {
        "name": entry.name,
        "description": entry.description,
        "arguments": dict(entry.defaults),
    }
    try:
        ops = entry.build().ops
    except MissingDependency:
        return about | dict.fromkeys(("ops", "tensors", "weights", "flops"))
    return about | {
        "ops": len(ops),
        "tensors": sum(len(op.outputs) for op in ops),
        "weights": sum(sum(op.outputs) for op in ops if op.kind == "weight"),
        "flops": sum(op.flops for op in ops),
    }


def _count(number: int | None) -> str:
    return "–" if number is None else f"{number:,}"


def _flops(flops: float) -> str:
    for unit in ("", "k", "M", "G", "T"):
        if flops < 999.5:
            return f"{flops:.3g} {unit}".strip()
        flops /= 1000
    return f"{flops:,.4g} P"


def _arguments(about: dict[str, Any]) -> str:
    """As they would be typed."""
    pairs = about["arguments"].items()
    return ",".join(f"{key}={str(value).lower()}" for key, value in pairs)
