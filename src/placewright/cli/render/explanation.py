"""Ops explained in, sentences, tables or JSON out."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from placewright.cli.render import text
from placewright.cli.render.json_output import problem_data
from placewright.units import format_bytes, format_seconds

if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import TypeAlias

    from placewright.explanations import Move, Neighbours, OneOp
    from placewright.explanations.op_explanation import Sent
    from placewright.explanations.policy_preferences import Preferred
    from placewright.plan import Plan
    from placewright.problem import Problem

    Table: TypeAlias = tuple[Sequence[str], list[Sequence[str]], int]

_FEW = 4  # names or transfers in a line


def op_lines(
    model: str,
    problem: Problem,
    found: OneOp,
    preferred: Sequence[Preferred],
    silent: Sequence[str],
) -> list[str]:
    """What an op does in the step, line by line."""
    op, device = problem.graph.ops[found.op], _device(problem, found.device)
    lines = [text.describe(model, problem)]
    if found.slack is None:
        lines.append(f"{op.name!r} ({op.kind}) is on {device} before the step begins")
    else:
        lines.append(
            f"{op.name!r} ({op.kind}) runs on {device} from {format_seconds(found.start)} to "
            f"{format_seconds(found.end)}{_fused(problem, found)}"
        )
    lines.append(_critical(problem, found))
    lines += [f"  receives {_sent(problem, each)}" for each in found.arriving[:_FEW]]
    lines += [f"  sends {_sent(problem, each)}" for each in found.leaving[:_FEW]]
    more = max(0, len(found.arriving) - _FEW) + max(0, len(found.leaving) - _FEW)
    lines += [f"  and {text.count(more, 'more transfer')}"] if more else []
    if found.along:
        lines.append(f"moves with {_names(problem, found.along)}")
    for each in preferred:
        best, sure = each.best(found.op)
        likes = (
            f"would leave it on {device}"
            if best == found.device
            else (f"would put it on {_device(problem, best)}")
        )
        here = (
            ""
            if best == found.device
            else (f"; {text.percent(float(each.likely[found.op, found.device]))} for {device}")
        )
        lines.append(f"policy {each.policy} {likes}, {text.percent(sure)} sure{here}")
    return [*lines, *silent]


def op_table(problem: Problem, found: OneOp, preferred: Sequence[Preferred]) -> Table:
    """What becomes of the objective on every device, the present one first."""
    what = "step time" if problem.objective == "step" else "period"
    columns = ["device", what, "change", "fits", *(each.policy for each in preferred)]

    def sure(device: int) -> list[str]:
        return [text.percent(float(each.likely[found.op, device])) for each in preferred]

    rows: list[Sequence[str]] = []
    if found.moves:
        over, value = found.moves[0].before
        now = f"{_device(problem, found.device)} (now)"
        rows.append([now, format_seconds(value), "–", _fits(over), *sure(found.device)])
    for move in found.moves:
        cells = ["not allowed", "–", "–"]
        if move.value is not None:
            cells = [format_seconds(move.value), _change(move), _fits(move.overflow)]
        rows.append([_device(problem, move.device), *cells, *sure(move.device)])
    return columns, rows, 1


def op_data(
    problem: Problem, found: OneOp, preferred: Sequence[Preferred], silent: Sequence[str]
) -> dict[str, Any]:
    """An op explained in seconds and bytes."""
    ops = problem.graph.ops
    over, value = found.moves[0].before if found.moves else (None, None)
    return {
        **problem_data(problem),
        "op": ops[found.op].name,
        "kind": ops[found.op].kind,
        "device": _device(problem, found.device),
        "start": found.start,
        "end": found.end,
        "critical": found.on_path != "no",
        "on_path": found.on_path,
        "slack": found.slack,
        "moves_with": [ops[each].name for each in found.along],
        "fused_with": [ops[each].name for each in found.fused_with],
        "arriving": [_sent_data(problem, each) for each in found.arriving],
        "leaving": [_sent_data(problem, each) for each in found.leaving],
        "value": value,
        "overflow": over,
        "moves": [_move_data(problem, move) for move in found.moves],
        "policies": [
            {
                "policy": each.policy,
                "prefers": _device(problem, each.best(found.op)[0]),
                "sure": each.best(found.op)[1],
                "likely": {
                    _device(problem, at): float(share)
                    for at, share in enumerate(each.likely[found.op])
                },
            }
            for each in preferred
        ],
        "silent": list(silent),
    }


def moves_lines(model: str, problem: Problem, found: Neighbours, shown: int) -> list[str]:
    """What was tried, and what came of it."""
    whole = "" if found.tried == found.ops else f", the longest of {found.ops:,}"
    lines = [
        text.describe(model, problem),
        f"moved each of {text.count(found.tried, 'op')} {found.where}{whole}, alone, "
        "to every other device",
    ]
    gaining = len(found.gaining)
    if not gaining:
        return [*lines, "no such move gains"]
    most = f"; the {shown} that gain most" if gaining > shown else ""
    verb = "gains" if gaining == 1 else "gain"
    return [*lines, f"{gaining:,} of them {verb} by moving{most}:"]


def moves_table(problem: Problem, plan: Plan, shown: Sequence[Move]) -> Table:
    """The moves that gain most."""
    what = "step time" if problem.objective == "step" else "period"
    rows: list[Sequence[str]] = [
        [
            problem.graph.ops[move.op].name,
            _device(problem, int(plan.device[move.op])),
            _device(problem, move.device),
            format_seconds(move.value or 0.0),
            _change(move),
            _fits(move.overflow),
        ]
        for move in shown
    ]
    return ("op", "from", "to", what, "change", "fits"), rows, 3


def moves_data(
    problem: Problem, plan: Plan, found: Neighbours, shown: Sequence[Move]
) -> dict[str, Any]:
    """The moves that gain most, in seconds and bytes."""
    return {
        **problem_data(problem),
        "where": found.where,
        "tried": found.tried,
        "of": found.ops,
        "moves": [
            {
                "op": problem.graph.ops[move.op].name,
                "from": _device(problem, int(plan.device[move.op])),
                **_move_data(problem, move),
            }
            for move in shown
        ],
    }


def _critical(problem: Problem, found: OneOp) -> str:
    what = "step" if problem.objective == "step" else "period"
    path = {
        "runs": "on the critical path",
        "sent": "what it makes is sent on the critical path",
        "no": "not on the critical path",
    }[found.on_path]
    if found.slack is None:
        return path
    if found.slack == float("inf"):
        return f"{path}; it could take a whole {what} longer and nothing would be late"
    if found.slack == 0:
        return f"{path}; the {what} grows with it at once"
    return f"{path}; it could take {format_seconds(found.slack)} longer before the {what} does"


def _fused(problem: Problem, found: OneOp) -> str:
    return f", fused with {_names(problem, found.fused_with)}" if found.fused_with else ""


def _sent(problem: Problem, each: Sent) -> str:
    what = "streamed weight " if each.streamed else ""
    return (
        f"{what}{problem.graph.ops[each.op].name!r} ({format_bytes(each.bytes)}) from "
        f"{_device(problem, each.source)} to {_device(problem, each.target)}, "
        f"{format_seconds(each.start)} to {format_seconds(each.end)}"
    )


def _sent_data(problem: Problem, each: Sent) -> dict[str, Any]:
    return {
        "op": problem.graph.ops[each.op].name,
        "from": _device(problem, each.source),
        "to": _device(problem, each.target),
        "start": each.start,
        "end": each.end,
        "bytes": each.bytes,
        "streamed": each.streamed,
    }


def _move_data(problem: Problem, move: Move) -> dict[str, Any]:
    return {
        "device": _device(problem, move.device),
        "allowed": move.value is not None,
        "value": move.value,
        "change": None if move.value is None else move.change,
        "overflow": move.overflow,
        "moves_along": move.along,
        "fused_no_more": move.parted,
    }


def _change(move: Move) -> str:
    return f"{move.change * 100:+.2f} %"


def _fits(overflow: int) -> str:
    return "yes" if overflow == 0 else f"{format_bytes(overflow)} over"


def _names(problem: Problem, ops: Sequence[int]) -> str:
    shown = ", ".join(repr(problem.graph.ops[op].name) for op in ops[:_FEW])
    return shown if len(ops) <= _FEW else f"{shown} and {len(ops) - _FEW} more"


def _device(problem: Problem, at: int) -> str:
    return problem.cluster.devices[at].name
