"""Plans and a way to measure them in, how far predictions are off out, and where it comes from.

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
from placewright.profiling.host_sensitivity import lean
from placewright.simulator import simulate

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from pathlib import Path

    from placewright.plan import Plan
    from placewright.problem import Problem
    from placewright.timeline import Timeline

Span = tuple[float, float]
"""When an op or a transfer began and ended, in seconds from the start of its step."""


@dataclass(frozen=True)
class Run:
    """What running a plan for real gave.

    Args:
        step_time: Seconds; infinite where it could not be run.
        spread: Between the quartiles, as a share of the median.
        peak: The most bytes that each device held at once, by name, where it is known.
        ops: When each op ran in one step, by name, where it is known.
        error: Why it could not be run.
        pace: Seconds of the host's ops at that time, times those it was profiled with: others that
            share a processor come and go.
        issued: How GPUs were given their ops (`Executor.issued`).
    """

    step_time: float
    spread: float = 0.0
    peak: Mapping[str, int] = field(default_factory=dict)
    ops: Mapping[str, Span] = field(default_factory=dict)
    error: str = ""
    pace: float = 1.0
    issued: str = ""


Measure = Callable[["Plan"], Run]


@dataclass(frozen=True)
class Row:
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
    def off(self) -> float:
        """Predicted less measured, as a share of measured."""
        return (self.predicted - self.measured) / self.measured


@dataclass(frozen=True)
class Fidelity:
    """How well step times of many plans were predicted.

    Args:
        error: The median of the predictions' relative errors, without their signs.
        rank: Spearman's rank correlation of predicted and measured.
        memory: The median relative error of peaks, of the devices whose peak was measured.
        paced: As `error`, with the host at the pace that it had while each plan was measured.
    """

    plans: int
    failed: int
    error: float
    rank: float
    memory: float | None
    paced: float = math.nan


def compare(
    problem: Problem,
    plans: Iterable[tuple[str, Plan]],
    measure: Measure,
    path: Path | None = None,
    said: Callable[[str], None] = lambda text: None,
) -> list[Row]:
    """Predict and measure each plan; rows of these plans that the file holds are taken from there.

    Raises:
        FileError: The file holds something else, or cannot be written.
    """
    known = {} if path is None else {row.key: row for row in read_rows(path)}
    rows = []
    for name, plan in plans:
        key = row_key(problem, plan)
        if key not in known:
            said(f"measuring {problem.graph.name}: {name}")
            known[key] = row_of(problem, name, plan, measure(plan))
            if path is not None:
                append(known[key], path)
        rows.append(known[key])
    return rows


def row_of(problem: Problem, name: str, plan: Plan, run: Run) -> Row:
    """What a plan was predicted to take, and took."""
    timeline = simulate(problem, plan)
    names = [device.name for device in problem.cluster.devices]
    peak = dict(zip(names, (int(one) for one in timeline.peak), strict=True))
    return Row(
        problem.graph.name,
        name,
        row_key(problem, plan),
        timeline.step_time,
        run.step_time,
        run.spread,
        peak,
        dict(run.peak),
        blame(problem, timeline, run) if run.ops else (),
        run.error,
        run.pace,
        simulate(lean(problem, run.pace), plan).step_time,
        run.issued,
    )


def row_key(problem: Problem, plan: Plan) -> str:
    """What decides a prediction: graph, cluster, costs and plan."""
    digest = hashlib.blake2b(digest_size=12)
    digest.update(f"{problem.graph.fingerprint}{problem.cluster.fingerprint}".encode())
    digest.update(problem.arrays.compute.tobytes())
    for part in (plan.device, plan.priority, plan.fusion, plan.staging):
        digest.update(b"-" if part is None else part.tobytes())
    return digest.hexdigest()


def summary(rows: Sequence[Row]) -> Fidelity:
    """How well these plans were predicted; those that could not be run are counted apart."""
    sound = [row for row in rows if math.isfinite(row.measured)]
    predicted = np.array([row.predicted for row in sound])
    measured = np.array([row.measured for row in sound])
    paced = np.array([row.predicted if row.paced is None else row.paced for row in sound])
    memory = [
        abs(row.predicted_peak[name] - peak) / peak
        for row in sound
        for name, peak in row.measured_peak.items()
        if peak > 0 and name in row.predicted_peak
    ]
    return Fidelity(
        len(sound),
        len(rows) - len(sound),
        float(np.median(np.abs(predicted - measured) / measured)) if sound else math.nan,
        spearman(predicted, measured) if len(sound) > 1 else math.nan,
        float(np.median(memory)) if memory else None,
        float(np.median(np.abs(paced - measured) / measured)) if sound else math.nan,
    )


def spearman(one: np.ndarray[Any, Any], other: np.ndarray[Any, Any]) -> float:
    """The rank correlation of two rows of numbers; equal numbers share their mean rank."""
    ranks = [_ranks(one), _ranks(other)]
    if any(rank.std() == 0 for rank in ranks):
        return math.nan
    return float(np.corrcoef(ranks[0], ranks[1])[0, 1])


def _ranks(values: np.ndarray[Any, Any]) -> np.ndarray[Any, np.dtype[np.float64]]:
    _, which, count = np.unique(values, return_inverse=True, return_counts=True)
    mean = np.cumsum(count) - (count + 1) / 2
    return mean[which].astype(np.float64)


def blame(problem: Problem, timeline: Timeline, run: Run, most: int = 10) -> list[dict[str, Any]]:
    """Where the error comes from: seconds by device and kind of op, gaps, and single ops.

    A gap is time in a device's step, up to its last op, in which it runs nothing: it waits for a
    tensor, for a weight, or for the host.
    """
    names = [device.name for device in problem.cluster.devices]
    kinds: dict[tuple[str, str], list[float]] = defaultdict(lambda: [0.0, 0.0, 0.0])
    ends = {name: [0.0, 0.0] for name in names}
    single = []
    for at, op in enumerate(problem.graph.ops):
        if op.name not in run.ops:
            continue
        device = names[timeline.plan.device[at]]
        start, end = run.ops[op.name]
        predicted = float(timeline.end[at] - timeline.start[at])
        row = kinds[device, op.kind]
        row[0], row[1], row[2] = row[0] + predicted, row[1] + end - start, row[2] + 1
        ends[device][0] = max(ends[device][0], float(timeline.end[at]))
        ends[device][1] = max(ends[device][1], end)
        single.append((abs(predicted - (end - start)), op.name, device, predicted, end - start))
    rows = [
        _blamed("kind", kind, device, row[0], row[1], int(row[2]))
        for (device, kind), row in kinds.items()
    ]
    for name in names:
        busy = [sum(row[which] for (d, _), row in kinds.items() if d == name) for which in (0, 1)]
        if ends[name][1]:
            gaps = [ends[name][which] - busy[which] for which in (0, 1)]
            rows.append(_blamed("gaps", "", name, gaps[0], gaps[1], 1))
    rows.sort(key=lambda row: -abs(row["predicted"] - row["measured"]))
    single.sort(reverse=True)
    worst = [
        _blamed("op", name, device, predicted, measured, 1)
        for _, name, device, predicted, measured in single[:most]
    ]
    return rows + worst


def _blamed(
    what: str, name: str, device: str, predicted: float, measured: float, ops: int
) -> dict[str, Any]:
    return {
        "what": what,
        "name": name,
        "device": device,
        "predicted": predicted,
        "measured": measured,
        "ops": ops,
    }


def read_rows(path: Path) -> list[Row]:
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
            rows.append(Row(**data))
        except (ValueError, TypeError, KeyError):
            if number == len(lines):
                break
            raise FileError(f"{path}: line {number} is no row of a fidelity report") from None
    return rows


def append(row: Row, path: Path) -> None:
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
            held = file.read()
            file.truncate(held.rfind(b"\n") + 1)  # a line that was cut off
            file.write(json.dumps(data, allow_nan=False).encode() + b"\n")
    except OSError as error:
        raise FileError(f"{path}: cannot be written: {error.strerror}") from None
