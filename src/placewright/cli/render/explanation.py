"""Renders op explanations as sentences, tables or JSON."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from placewright.cli.render import text
from placewright.cli.render.json_output import problem_data
from placewright.units import format_bytes, format_change, format_percent, format_seconds

if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import TypeAlias

    from placewright.explanations import Explanation, Neighbours, OpExplanation, OpMove
    from placewright.explanations.op_explanation import TensorTransfer
    from placewright.explanations.policy_preferences import PolicyPreference
    from placewright.plan import Plan
    from placewright.problem import Problem
    from placewright.simulator import CriticalPath

    TableData: TypeAlias = tuple[Sequence[str], list[Sequence[str]], int]

_MAX_NAMES = 4  # names or transfers in a line
_MAX_SEGMENTS = 10  # segments of the critical path in JSON; all of them would be a trace


def op_lines(
    model: str,
    problem: Problem,
    explanation: OpExplanation,
    preferences: Sequence[PolicyPreference],
    unavailable: Sequence[str],
) -> list[str]:
    """What an op does in the step, line by line."""
    op, device = problem.graph.ops[explanation.op], _device_name(problem, explanation.device)
    lines = [text.problem_line(model, problem)]
    if explanation.slack is None:
        lines.append(f"{op.name!r} ({op.kind}) is on {device} before the step begins")
    else:
        lines.append(
            f"{op.name!r} ({op.kind}) runs on {device} from {format_seconds(explanation.start)} to "
            f"{format_seconds(explanation.end)}{_fusion_text(problem, explanation)}"
        )
    lines.append(_critical_text(problem, explanation))
    lines += [
        f"  receives {_transfer_text(problem, each)}" for each in explanation.incoming[:_MAX_NAMES]
    ]
    lines += [
        f"  sends {_transfer_text(problem, each)}" for each in explanation.outgoing[:_MAX_NAMES]
    ]
    more = max(0, len(explanation.incoming) - _MAX_NAMES) + max(
        0, len(explanation.outgoing) - _MAX_NAMES
    )
    lines += [f"  and {text.format_count(more, 'more transfer')}"] if more else []
    if explanation.followers:
        lines.append(f"moves with {_op_names(problem, explanation.followers)}")
    for each in preferences:
        best, confidence = each.best_device(explanation.op)
        sure = f"{format_percent(confidence)} sure"
        line = f"policy {each.policy} would leave it on {device}, {sure}"
        if best != explanation.device:
            target = _device_name(problem, best)
            current = format_percent(float(each.probabilities[explanation.op, explanation.device]))
            line = f"policy {each.policy} would put it on {target}, {sure}; {current} for {device}"
        lines.append(line)
    return [*lines, *unavailable]


def op_table(
    problem: Problem, explanation: OpExplanation, preferences: Sequence[PolicyPreference]
) -> TableData:
    """What becomes of the objective on every device, the present one first."""
    what = "step time" if problem.objective == "step" else "period"
    columns = ["device", what, "change", "fits", *(each.policy for each in preferences)]

    def sure(device: int) -> list[str]:
        return [
            format_percent(float(each.probabilities[explanation.op, device]))
            for each in preferences
        ]

    rows: list[Sequence[str]] = []
    if explanation.moves:
        over, value = explanation.moves[0].current_key
        now = f"{_device_name(problem, explanation.device)} (now)"
        rows.append([now, format_seconds(value), "–", _fits_text(over), *sure(explanation.device)])
    for move in explanation.moves:
        cells = ["not allowed", "–", "–"]
        if move.value is not None:
            cells = [format_seconds(move.value), _change_text(move), _fits_text(move.overflow)]
        rows.append([_device_name(problem, move.device), *cells, *sure(move.device)])
    return columns, rows, 1


def op_data(
    problem: Problem,
    explanation: OpExplanation,
    preferences: Sequence[PolicyPreference],
    unavailable: Sequence[str],
) -> dict[str, Any]:
    """An op explained in seconds and bytes."""
    ops = problem.graph.ops
    over, value = explanation.moves[0].current_key if explanation.moves else (None, None)
    return {
        **problem_data(problem),
        "op": ops[explanation.op].name,
        "kind": ops[explanation.op].kind,
        "device": _device_name(problem, explanation.device),
        "start": explanation.start,
        "end": explanation.end,
        "critical": explanation.on_path != "no",
        "on_path": explanation.on_path,
        "slack": explanation.slack,
        "moves_with": [ops[each].name for each in explanation.followers],
        "fused_with": [ops[each].name for each in explanation.fused_with],
        "arriving": [_transfer_data(problem, each) for each in explanation.incoming],
        "leaving": [_transfer_data(problem, each) for each in explanation.outgoing],
        "value": value,
        "overflow": over,
        "moves": [_move_data(problem, move) for move in explanation.moves],
        "policies": [
            {
                "policy": each.policy,
                "prefers": _device_name(problem, each.best_device(explanation.op)[0]),
                "sure": each.best_device(explanation.op)[1],
                "likely": {
                    _device_name(problem, at): float(share)
                    for at, share in enumerate(each.probabilities[explanation.op])
                },
            }
            for each in preferences
        ],
        "silent": list(unavailable),
    }


def moves_lines(model: str, problem: Problem, neighbours: Neighbours, shown: int) -> list[str]:
    """What was tried, and what came of it."""
    whole = (
        ""
        if neighbours.tried_ops == neighbours.binding_ops
        else f", the longest of {neighbours.binding_ops:,}"
    )
    lines = [
        text.problem_line(model, problem),
        f"moved each of {text.format_count(neighbours.tried_ops, 'op')} {neighbours.location}"
        f"{whole}, alone, to every other device",
    ]
    gaining = len(neighbours.improving_moves)
    if not gaining:
        return [*lines, "no such move gains"]
    most = f"; the {shown} that gain most" if gaining > shown else ""
    verb = "gains" if gaining == 1 else "gain"
    return [*lines, f"{gaining:,} of them {verb} by moving{most}:"]


def moves_table(problem: Problem, plan: Plan, shown: Sequence[OpMove]) -> TableData:
    """The moves that gain most."""
    what = "step time" if problem.objective == "step" else "period"
    rows: list[Sequence[str]] = [
        [
            problem.graph.ops[move.op].name,
            _device_name(problem, int(plan.placement[move.op])),
            _device_name(problem, move.device),
            format_seconds(move.value or 0.0),
            _change_text(move),
            _fits_text(move.overflow),
        ]
        for move in shown
    ]
    return ("op", "from", "to", what, "change", "fits"), rows, 3


def moves_data(
    problem: Problem, plan: Plan, neighbours: Neighbours, shown: Sequence[OpMove]
) -> dict[str, Any]:
    """The moves that gain most, in seconds and bytes."""
    return {
        **problem_data(problem),
        "where": neighbours.location,
        "tried": neighbours.tried_ops,
        "of": neighbours.binding_ops,
        "moves": moves_rows(problem, plan, shown),
    }


def moves_rows(problem: Problem, plan: Plan, shown: Sequence[OpMove]) -> list[dict[str, Any]]:
    """Moves in seconds and bytes."""
    return [
        {
            "op": problem.graph.ops[move.op].name,
            "from": _device_name(problem, int(plan.placement[move.op])),
            **_move_data(problem, move),
        }
        for move in shown
    ]


def reason_lines(explanation: Explanation) -> list[str]:
    """What binds, and what would help."""
    lines = [f"why: {explanation.sentence}"]
    improvements = "; ".join(str(improvement) for improvement in explanation.best_improvements)
    return [*lines, f"what would help: {improvements}"] if improvements else lines


def explanation_data(problem: Problem, explanation: Explanation) -> dict[str, Any]:
    """An explanation in seconds and bytes."""
    return {
        "sentence": explanation.sentence,
        "shares": [
            {
                "kind": each.kind,
                "where": each.location,
                "seconds": each.seconds,
                "share": each.fraction,
            }
            for each in explanation.shares
        ],
        "waits": {}
        if explanation.critical_path is None
        else dict(explanation.critical_path.waits()),
        "longest": []
        if explanation.critical_path is None
        else _longest_segments(problem, explanation.critical_path),
        "helps": [
            {
                "change": each.change,
                "kind": each.kind,
                "where": each.location,
                "before": each.before,
                "after": each.after,
                "gain": each.gain,
                "overflow_before": each.overflow_before,
                "overflow_after": each.overflow_after,
                "same_plan": each.same_plan,
            }
            for each in explanation.improvements
        ],
    }


def _longest_segments(problem: Problem, path: CriticalPath) -> list[dict[str, Any]]:
    names = [device.name for device in problem.cluster.devices]
    segments = sorted(path.segments, key=lambda segment: (-segment.seconds, segment.start))[
        :_MAX_SEGMENTS
    ]
    return [
        {
            "kind": segment.kind,
            "op": path.op_names[segment.op],
            "from": names[segment.source],
            "to": names[segment.device],
            "start": segment.start,
            "seconds": segment.seconds,
            "held": segment.wait_reason,
        }
        for segment in segments
    ]


def _critical_text(problem: Problem, explanation: OpExplanation) -> str:
    what = "step" if problem.objective == "step" else "period"
    path = {
        "runs": "on the critical path",
        "sent": "what it makes is sent on the critical path",
        "no": "not on the critical path",
    }[explanation.on_path]
    if explanation.slack is None:
        return path
    if explanation.slack == float("inf"):
        return f"{path}; it could take a whole {what} longer and nothing would be late"
    if explanation.slack == 0:
        return f"{path}; the {what} grows with it at once"
    return (
        f"{path}; it could take {format_seconds(explanation.slack)} longer before the {what} does"
    )


def _fusion_text(problem: Problem, explanation: OpExplanation) -> str:
    return (
        f", fused with {_op_names(problem, explanation.fused_with)}"
        if explanation.fused_with
        else ""
    )


def _transfer_text(problem: Problem, transfer: TensorTransfer) -> str:
    what = "streamed weight " if transfer.is_streamed else ""
    return (
        f"{what}{problem.graph.ops[transfer.op].name!r} ({format_bytes(transfer.bytes)}) from "
        f"{_device_name(problem, transfer.source)} to {_device_name(problem, transfer.target)}, "
        f"{format_seconds(transfer.start)} to {format_seconds(transfer.end)}"
    )


def _transfer_data(problem: Problem, transfer: TensorTransfer) -> dict[str, Any]:
    return {
        "op": problem.graph.ops[transfer.op].name,
        "from": _device_name(problem, transfer.source),
        "to": _device_name(problem, transfer.target),
        "start": transfer.start,
        "end": transfer.end,
        "bytes": transfer.bytes,
        "streamed": transfer.is_streamed,
    }


def _move_data(problem: Problem, move: OpMove) -> dict[str, Any]:
    return {
        "device": _device_name(problem, move.device),
        "allowed": move.value is not None,
        "value": move.value,
        "change": None if move.value is None else move.relative_change,
        "overflow": move.overflow,
        "moves_along": move.follower_count,
        "fused_no_more": move.unfused_count,
    }


def _change_text(move: OpMove) -> str:
    return format_change(move.relative_change)


def _fits_text(overflow: int) -> str:
    return "yes" if overflow == 0 else f"{format_bytes(overflow)} over"


def _op_names(problem: Problem, ops: Sequence[int]) -> str:
    shown = ", ".join(repr(problem.graph.ops[op].name) for op in ops[:_MAX_NAMES])
    return shown if len(ops) <= _MAX_NAMES else f"{shown} and {len(ops) - _MAX_NAMES} more"


def _device_name(problem: Problem, position: int) -> str:
    return problem.cluster.devices[position].name
