"""Fidelity of the simulator: predicted against measured step times, and what differs.

Results append to one file, a JSON object a line, and what is there is not measured again.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections import defaultdict
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from placewright.errors import FileError
from placewright.simulator import simulate
from placewright.solvers.cautious_choice import scale_host

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from pathlib import Path

    from placewright.plan import Plan
    from placewright.problem import Problem
    from placewright.timeline import Timeline

Span = tuple[float, float]
"""When an op or a transfer began and ended, in seconds from the start of its step."""


@dataclass(frozen=True)
class MeasuredRun:
    """What running a plan for real gave.

    Args:
        step_time: Seconds; infinite where it could not be run.
        spread: Between the quartiles, as a share of the median.
        peak: The most bytes that each device held at once, by name, where it is known.
        ops: When each op ran in one step, by name, where it is known.
        error: Why it could not be run.
        pace: Seconds of the host's ops at that time, times those it was profiled with: others that
            share a processor come and go.
        issue_mode: How GPUs were given their ops (`Executor.issued`).
    """

    step_time: float
    spread: float = 0.0
    peak: Mapping[str, int] = field(default_factory=dict)
    ops: Mapping[str, Span] = field(default_factory=dict)
    error: str = ""
    pace: float = 1.0
    issue_mode: str = ""


Measure = Callable[["Plan"], MeasuredRun]


@dataclass(frozen=True)
class FidelityRow:
    """One plan, predicted and measured.

    Args:
        key: What it is a row of: graph, cluster, costs and plan.
        blame: Where predicted and measured differ; see `blame`.
        pace: Of the host while it was measured; see `Run`.
        paced: What is predicted of a host of that pace.
        issued: How GPUs were given their ops.
    """

    model: str
    plan: str
    key: str
    predicted: float
    measured: float
    spread: float = 0.0
    predicted_peak: Mapping[str, int] = field(default_factory=dict)
    measured_peak: Mapping[str, int] = field(default_factory=dict)
    blame: Sequence[Mapping[str, Any]] = ()
    error: str = ""
    pace: float = 1.0
    paced: float | None = None
    issued: str = ""

    @property
    def relative_error(self) -> float:
        """Predicted less measured, as a share of measured."""
        return (self.predicted - self.measured) / self.measured


@dataclass(frozen=True)
class Fidelity:
    """How well step times of many plans were predicted.

    Args:
        error: The median of the predictions' relative errors, without their signs.
        rank_correlation: Spearman's rank correlation of predicted and measured.
        memory_error: The median relative error of peaks, of the devices whose peak was measured.
        adjusted_error: As `error`, with the host at the pace that it had while each plan was measured.
    """

    plans: int
    failed: int
    error: float
    rank_correlation: float
    memory_error: float | None
    adjusted_error: float = math.nan


def compare_plans(
    problem: Problem,
    plans: Iterable[tuple[str, Plan]],
    measure: Measure,
    path: Path | None = None,
    progress: Callable[[str], None] = lambda text: None,
) -> list[FidelityRow]:
    """Predict and measure each plan; rows of these plans that the file holds are taken from there.

    Raises:
        FileError: The file holds something else, or cannot be written.
    """
    known = {} if path is None else {row.key: row for row in read_rows(path)}
    rows = []
    for name, plan in plans:
        key = row_key(problem, plan)
        if key not in known:
            progress(f"measuring {problem.graph.name}: {name}")
            known[key] = fidelity_row(problem, name, plan, measure(plan))
            if path is not None:
                append_row(known[key], path)
        rows.append(known[key])
    return rows


def fidelity_row(problem: Problem, name: str, plan: Plan, run: MeasuredRun) -> FidelityRow:
    """What a plan was predicted to take, and took."""
    timeline = simulate(problem, plan)
    names = [device.name for device in problem.cluster.devices]
    peak = dict(zip(names, (int(size) for size in timeline.peak), strict=True))
    return FidelityRow(
        problem.graph.name,
        name,
        row_key(problem, plan),
        timeline.step_time,
        run.step_time,
        run.spread,
        peak,
        dict(run.peak),
        error_breakdown(problem, timeline, run) if run.ops else (),
        run.error,
        run.pace,
        simulate(scale_host(problem, run.pace), plan).step_time,
        run.issue_mode,
    )


def row_key(problem: Problem, plan: Plan) -> str:
    """What decides a prediction: graph, cluster, costs and plan."""
    digest = hashlib.blake2b(digest_size=12)
    digest.update(f"{problem.graph.fingerprint}{problem.cluster.fingerprint}".encode())
    digest.update(problem.arrays.compute.tobytes())
    for array in (plan.placement, plan.priority, plan.fusion, plan.staging):
        digest.update(b"-" if array is None else array.tobytes())
    return digest.hexdigest()


def summarise(rows: Sequence[FidelityRow]) -> Fidelity:
    """How well these plans were predicted; those that could not be run are counted apart."""
    finished = [row for row in rows if math.isfinite(row.measured)]
    predicted = np.array([row.predicted for row in finished])
    measured = np.array([row.measured for row in finished])
    adjusted = np.array([row.predicted if row.paced is None else row.paced for row in finished])
    memory = [
        abs(row.predicted_peak[name] - peak) / peak
        for row in finished
        for name, peak in row.measured_peak.items()
        if peak > 0 and name in row.predicted_peak
    ]
    return Fidelity(
        len(finished),
        len(rows) - len(finished),
        float(np.median(np.abs(predicted - measured) / measured)) if finished else math.nan,
        spearman(predicted, measured) if len(finished) > 1 else math.nan,
        float(np.median(memory)) if memory else None,
        float(np.median(np.abs(adjusted - measured) / measured)) if finished else math.nan,
    )


def spearman(left: np.ndarray[Any, Any], right: np.ndarray[Any, Any]) -> float:
    """The rank correlation of two rows of numbers; equal numbers share their mean rank."""
    ranks = [_ranks(left), _ranks(right)]
    if any(rank.std() == 0 for rank in ranks):
        return math.nan
    return float(np.corrcoef(ranks[0], ranks[1])[0, 1])


def _ranks(values: np.ndarray[Any, Any]) -> np.ndarray[Any, np.dtype[np.float64]]:
    _, inverse, count = np.unique(values, return_inverse=True, return_counts=True)
    mean_rank = np.cumsum(count) - (count + 1) / 2
    return mean_rank[inverse].astype(np.float64)


def error_breakdown(
    problem: Problem, timeline: Timeline, run: MeasuredRun, max_ops: int = 10
) -> list[dict[str, Any]]:
    """Where the error comes from: seconds by device and kind of op, gaps, and single ops.

    A gap is time in a device's step, up to its last op, in which it runs nothing: it waits for a
    tensor, for a weight, or for the host.
    """
    names = [device.name for device in problem.cluster.devices]
    kinds: dict[tuple[str, str], list[float]] = defaultdict(lambda: [0.0, 0.0, 0.0])
    ends = {name: [0.0, 0.0] for name in names}
    op_errors = []
    for position, op in enumerate(problem.graph.ops):
        if op.name not in run.ops:
            continue
        device = names[timeline.plan.placement[position]]
        start, end = run.ops[op.name]
        predicted = float(timeline.end[position] - timeline.start[position])
        totals = kinds[device, op.kind]
        totals[0], totals[1], totals[2] = (
            totals[0] + predicted,
            totals[1] + end - start,
            totals[2] + 1,
        )
        ends[device][0] = max(ends[device][0], float(timeline.end[position]))
        ends[device][1] = max(ends[device][1], end)
        op_errors.append((abs(predicted - (end - start)), op.name, device, predicted, end - start))
    rows = [
        _breakdown_entry("kind", kind, device, totals[0], totals[1], int(totals[2]))
        for (device, kind), totals in kinds.items()
    ]
    for name in names:
        busy = [
            sum(totals[side] for (owner, _), totals in kinds.items() if owner == name)
            for side in (0, 1)
        ]
        if ends[name][1]:
            gaps = [ends[name][side] - busy[side] for side in (0, 1)]
            rows.append(_breakdown_entry("gaps", "", name, gaps[0], gaps[1], 1))
    rows.sort(key=lambda totals: -abs(totals["predicted"] - totals["measured"]))
    op_errors.sort(reverse=True)
    worst = [
        _breakdown_entry("op", name, device, predicted, measured, 1)
        for _, name, device, predicted, measured in op_errors[:max_ops]
    ]
    return rows + worst


def _breakdown_entry(
    category: str, name: str, device: str, predicted: float, measured: float, ops: int
) -> dict[str, Any]:
    return {
        "what": category,
        "name": name,
        "device": device,
        "predicted": predicted,
        "measured": measured,
        "ops": ops,
    }


def read_rows(path: Path) -> list[FidelityRow]:
    """The rows that a file holds; a last line that was cut off is left out.

    Raises:
        FileError: A line before the last is no row.
    """
    if not path.exists():
        return []
    lines, rows = path.read_text(encoding="utf-8").splitlines(), []
    for number, line in enumerate(lines, start=1):
        try:
            data = json.loads(line)
            for key in ("predicted", "measured"):
                data[key] = math.inf if data[key] is None else data[key]
            rows.append(FidelityRow(**data))
        except (ValueError, TypeError, KeyError):
            if number == len(lines):
                break
            raise FileError(f"{path}: line {number} is no row of a fidelity report") from None
    return rows


def append_row(row: FidelityRow, path: Path) -> None:
    """Add a row to a file, on a line of its own.

    Raises:
        FileError: It cannot be written.
    """
    data = asdict(row)
    data |= {
        key: data[key] if math.isfinite(data[key]) else None for key in ("predicted", "measured")
    }
    try:
        with path.open("a+b") as file:
            file.seek(0)
            content = file.read()
            file.truncate(content.rfind(b"\n") + 1)  # a line that was cut off
            file.write(json.dumps(data, allow_nan=False).encode() + b"\n")
    except OSError as error:
        raise FileError(f"{path}: cannot be written: {error.strerror}") from None
