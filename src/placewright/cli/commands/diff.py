"""`placewright diff`: two plan or result files in, what differs between the plans out."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from placewright.cli import options
from placewright.cli.render.text import count
from placewright.cli.resolve import load_plan
from placewright.units import format_bytes, format_seconds

if TYPE_CHECKING:
    from collections.abc import Iterator

    from placewright.plan import Plan
    from placewright.plan_diff import Difference
    from placewright.result import Result

FEW = 20  # modules that are shown without --all

File = Annotated[
    Path, typer.Argument(metavar="FILE", help="A plan or result file.", show_default=False)
]


def diff_plans(
    first: File,
    second: File,
    every: Annotated[bool, typer.Option("--all", help="List every op that moved.")] = False,
    json: options.Json = False,
) -> None:
    """Say what differs between two plans: ops that moved, order, fusion and staging."""
    from placewright.cli.render import tables
    from placewright.cli.render.json_output import print_json
    from placewright.plan_diff import difference

    nouns = load_plan(first), load_plan(second)
    found = difference(*nouns)
    if json:
        print_json(
            {
                "first": _figures(first, nouns[0]),
                "second": _figures(second, nouns[1]),
                **_data(found),
            }
        )
        return
    tables.print_lines(_lines(found, (first, second), nouns))
    if not found.moves:
        return
    if every:
        rows = [(move.op, move.source, move.target) for move in found.moves]
        tables.print_table(("op", "from", "to"), rows, left=3)
        return
    ways = [(source, target, f"{ops:,}") for source, target, ops in found.ways]
    tables.print_table(("from", "to", "ops moved"), ways, left=2)
    modules = [(name or "(none)", f"{ops:,}") for name, ops in found.modules(most=FEW)]
    tables.print_table(("module", "ops moved"), modules[:FEW])
    if len(modules) > FEW:
        more = f"and {len(modules) - FEW:,} more; --all lists every op"
        tables.print_lines([more])


def _lines(
    found: "Difference", files: tuple[Path, Path], nouns: "tuple[Plan | Result, Plan | Result]"
) -> "Iterator[str]":
    figures = [_figures(file, noun) for file, noun in zip(files, nouns, strict=True)]
    for each in figures:
        time = each.get("step_time")
        yield f"{each['file']}: " + (
            "a plan without figures"
            if time is None
            else f"step time {format_seconds(time)}, period {format_seconds(each['period'])}, "
            f"by {each['method']}"
        )
    for file, ops in zip(files, found.only, strict=True):
        if ops:
            shown = ", ".join(map(repr, ops[:3])) + (", ..." if len(ops) > 3 else "")
            verb = "is" if len(ops) == 1 else "are"
            yield f"{count(len(ops), 'op')} {verb} in {file} alone: {shown}"
    if found.same:
        yield "the plans are the same"
        return
    yield f"{len(found.moves):,} of {found.shared:,} ops are on another device"
    ranked = [file for file, noun in zip(files, nouns, strict=True) if _ranks(noun)]
    if len(ranked) == 1:
        yield f"{ranked[0]} alone sets priorities"
    elif found.priorities is not None:
        yield f"{found.priorities:,} ops have another priority"
    if found.fusions is not None:
        yield f"{found.fusions:,} ops are fused with others"
    for name, before, after in found.staging:
        yield f"staging room on {name}: {_room(before)}, then {_room(after)}"


def _ranks(noun: "Plan | Result") -> bool:
    from placewright.plan_diff import plan_of

    return plan_of(noun).priority is not None


def _room(size: int) -> str:
    return "none" if size < 0 else format_bytes(size)


def _figures(file: Path, noun: "Plan | Result") -> dict[str, Any]:
    from placewright.result import Result

    if not isinstance(noun, Result):
        return {"file": str(file)}
    return {
        "file": str(file),
        "method": noun.solver,
        "objective": noun.objective,
        "step_time": noun.step_time,
        "period": noun.period,
        "fits": noun.fits,
    }


def _data(found: "Difference") -> dict[str, Any]:
    return {
        "same": found.same,
        "ops": found.shared,
        "only_first": list(found.only[0]),
        "only_second": list(found.only[1]),
        "moved": len(found.moves),
        "moves": [{"op": each.op, "from": each.source, "to": each.target} for each in found.moves],
        "modules": [{"module": name, "moved": ops} for name, ops in found.modules()],
        "priorities_changed": found.priorities,
        "fusions_changed": found.fusions,
        "staging": [
            {"device": name, "from": before, "to": after} for name, before, after in found.staging
        ],
    }
