"""`placewright diff`: prints how two plans differ."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from placewright.cli import options, panels
from placewright.cli.paths import load_plan
from placewright.cli.render.text import format_count
from placewright.cli.workloads import holds_workload_plan, load_workload_plan
from placewright.units import format_bytes, format_seconds

if TYPE_CHECKING:
    from collections.abc import Iterator

    from placewright.plan import Plan
    from placewright.plan_diff import PlanDiff
    from placewright.result import Result
    from placewright.workload_plan import WorkloadPlan
    from placewright.workload_result import WorkloadResult

MAX_MODULES = 20  # modules that are shown without --all

FirstPlan = Annotated[
    Path, typer.Argument(metavar="FIRST", help="A plan or result file.", show_default=False)
]
SecondPlan = Annotated[
    Path, typer.Argument(metavar="SECOND", help="Another one.", show_default=False)
]


def diff_plans(
    first: FirstPlan,
    second: SecondPlan,
    every: Annotated[
        bool, typer.Option("--all", help="List every op that moved.", rich_help_panel=panels.OUTPUT)
    ] = False,
    json: options.Json = False,
) -> None:
    """Show what differs between two plans: ops that moved, order, fusion and staging."""
    from placewright.cli.render import tables
    from placewright.cli.render.json_output import print_json
    from placewright.plan_diff import diff

    nouns: tuple[Any, Any] = _load(first), _load(second)
    plan_diff = diff(*nouns)
    if json:
        print_json(
            {
                "first": _result_metrics(first, nouns[0]),
                "second": _result_metrics(second, nouns[1]),
                **_diff_data(plan_diff),
            }
        )
        return
    tables.print_lines(_summary_lines(plan_diff, (first, second), nouns))
    if not plan_diff.moves:
        return
    if every:
        rows = [(move.op, move.source, move.target) for move in plan_diff.moves]
        tables.print_table(("op", "from", "to"), rows, text_columns=3)
        return
    device_rows = [(source, target, f"{ops:,}") for source, target, ops in plan_diff.device_pairs]
    tables.print_table(("from", "to", "ops moved"), device_rows, text_columns=2)
    modules = [(name or "(none)", f"{ops:,}") for name, ops in plan_diff.modules(limit=MAX_MODULES)]
    tables.print_table(("module", "ops moved"), modules[:MAX_MODULES])
    if len(modules) > MAX_MODULES:
        footer = f"and {len(modules) - MAX_MODULES:,} more; --all lists every op"
        tables.print_lines([footer])


def _load(path: Path) -> "Plan | Result | WorkloadPlan | WorkloadResult":
    return load_workload_plan(path) if holds_workload_plan(path) else load_plan(path)


def _summary_lines(
    diff: "PlanDiff", files: tuple[Path, Path], nouns: tuple[Any, Any]
) -> "Iterator[str]":
    metrics = [_result_metrics(file, noun) for file, noun in zip(files, nouns, strict=True)]
    for entry in metrics:
        if "objective_value" in entry:
            value = format_seconds(entry["objective_value"])
            text = f"as saved: all calls {value}, by {entry['method']}"
        elif entry.get("edited"):
            text = "edited since it was saved: placewright simulate shows its step time"
        elif "step_time" in entry:
            text = (
                f"step time {format_seconds(entry['step_time'])}, "
                f"period {format_seconds(entry['period'])}, by {entry['method']}"
            )
            text = text if entry["fits"] else f"does not fit; {text}"
        else:
            text = "a plan without figures"
        yield f"{entry['file']}: {text}"
    if diff.other_graph:
        yield "the plans are for different models or sizes: ops are matched by name"
    if diff.other_cluster:
        yield "the plans are for different clusters: devices are matched by name"
    for file, ops in zip(files, diff.unshared_ops, strict=True):
        if ops:
            shown = ", ".join(map(repr, ops[:3])) + (", ..." if len(ops) > 3 else "")
            verb = "is" if len(ops) == 1 else "are"
            yield f"{format_count(len(ops), 'op')} {verb} in {file} alone: {shown}"
    if diff.is_empty:
        yield "the plans are the same"
        return
    yield f"{len(diff.moves):,} of {diff.shared_ops:,} ops are on another device"
    ranked = [file for file, noun in zip(files, nouns, strict=True) if _has_priorities(noun)]
    if len(ranked) == 1:
        yield f"{ranked[0]} alone sets priorities"
    elif diff.priority_changes is not None:
        yield f"{diff.priority_changes:,} ops have another priority"
    if diff.fusion_changes is not None:
        yield f"{diff.fusion_changes:,} ops are fused with others"
    for name, before, after in diff.staging_changes:
        yield f"staging buffer on {name}: {_staging_text(before)}, then {_staging_text(after)}"


def _has_priorities(noun: "Plan | Result | WorkloadPlan | WorkloadResult") -> bool:
    from placewright.plan_diff import plan_of
    from placewright.workload_plan import WorkloadPlan
    from placewright.workload_result import WorkloadResult

    if isinstance(noun, WorkloadPlan | WorkloadResult):
        plan = noun if isinstance(noun, WorkloadPlan) else noun.plan
        return any(each.priority is not None for each in plan.plans)
    return plan_of(noun).priority is not None


def _staging_text(size: int) -> str:
    return "none" if size < 0 else format_bytes(size)


def _result_metrics(
    file: Path, noun: "Plan | Result | WorkloadPlan | WorkloadResult"
) -> dict[str, Any]:
    from placewright.result import Result
    from placewright.workload_result import WorkloadResult

    if isinstance(noun, WorkloadResult):
        return {
            "file": str(file),
            "method": noun.solver,
            "objective": noun.objective,
            "objective_value": noun.objective_value,
            "fits": noun.fits,
        }
    if not isinstance(noun, Result):
        return {"file": str(file)}
    if noun.edited:
        return {"file": str(file), "method": noun.solver, "edited": True}
    return {
        "file": str(file),
        "method": noun.solver,
        "objective": noun.objective,
        "step_time": noun.step_time,
        "period": noun.period,
        "fits": noun.fits,
    }


def _diff_data(diff: "PlanDiff") -> dict[str, Any]:
    return {
        "same": diff.is_empty,
        "other_graph": diff.other_graph,
        "other_cluster": diff.other_cluster,
        "ops": diff.shared_ops,
        "only_first": list(diff.unshared_ops[0]),
        "only_second": list(diff.unshared_ops[1]),
        "moved": len(diff.moves),
        "moves": [{"op": move.op, "from": move.source, "to": move.target} for move in diff.moves],
        "modules": [{"module": name, "moved": ops} for name, ops in diff.modules()],
        "priorities_changed": diff.priority_changes,
        "fusions_changed": diff.fusion_changes,
        "staging": [
            {"device": name, "from": before, "to": after}
            for name, before, after in diff.staging_changes
        ],
    }
