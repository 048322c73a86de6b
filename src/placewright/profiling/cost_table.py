"""Makes a cost Table of what was measured: timings, steps and the runtime's own overhead.

Ops that were not measured are estimated: the roofline's seconds, times the median ratio of measured
to roofline seconds of the ops of their kind. The table marks them (`NOT_MEASURED`).
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field
from statistics import median
from typing import TYPE_CHECKING, Any

import numpy as np

from placewright.costs import NOT_MEASURED, Roofline, Table
from placewright.graph import VIEW

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from placewright.cluster import Cluster
    from placewright.graph import Graph
    from placewright.profiling.timing import Timing
    from placewright.runtime.real_devices import RealDevice

FULL_ROOFLINE = Roofline(compute=1.0, memory=1.0)


@dataclass(frozen=True)
class OpTimings:
    """Timings of a graph's ops on models of hardware.

    Args:
        groups: The positions of equal ops, by signature.
        models: A device of each model.
        estimates: Ops × models: the roofline's seconds.
        timings: By signature and model, where they are known.
    """

    graph: Graph
    groups: Mapping[str, Sequence[int]]
    models: Mapping[str, RealDevice]
    estimates: np.ndarray[Any, np.dtype[np.float64]]
    timings: dict[tuple[str, str], Timing] = field(default_factory=dict)


def roofline_seconds(
    graph: Graph, cluster: Cluster, devices: Sequence[RealDevice]
) -> np.ndarray[Any, np.dtype[np.float64]]:
    """Ops × devices: the roofline's seconds; a view takes a launch."""
    seconds = FULL_ROOFLINE.op_seconds(graph, cluster)
    view = np.array([op.kind == VIEW for op in graph.ops])
    columns = []
    for device in devices:
        index = cluster.position[device.name]
        launch = cluster.devices[index].launch_overhead
        columns.append(np.where(view, launch, seconds[:, index]))
    return np.stack(columns, axis=1)


def build_table(
    measured: OpTimings,
    machine_key: str,
    overhead: Mapping[str, float],
    gpu_steps: Mapping[str, float],
) -> Table:
    """The cost table of all ops on all models.

    Args:
        overhead: Seconds that the runtime takes for an op, by model.
        gpu_steps: Seconds of a whole step, by model of a GPU; 0 where that is not known.
    """
    graph, groups, timings = measured.graph, measured.groups, measured.timings
    shape = (len(graph), len(measured.models))
    seconds, issue, spread = np.zeros(shape), np.zeros(shape), np.zeros(shape)
    op_positions = [position for positions in groups.values() for position in positions]
    for column, (model, device) in enumerate(measured.models.items()):
        estimate = _CostEstimator(measured, model)
        for signature, positions in groups.items():
            timing = timings.get((signature, model))
            for position in positions:
                if timing is not None:
                    seconds[position, column] = timing.seconds
                    issue[position, column] = timing.issue
                    spread[position, column] = timing.spread
                else:
                    seconds[position, column], issue[position, column] = estimate(position)
                    spread[position, column] = NOT_MEASURED
        if device.is_gpu:
            if gpu_steps.get(model) and seconds[op_positions, column].sum() > 0:
                seconds[op_positions, column] *= (
                    gpu_steps[model] / seconds[op_positions, column].sum()
                )
            issue[op_positions, column] += overhead[model]  # of the host, which issues to all GPUs
        else:  # a step that was run says it op by op
            seconds[op_positions, column] += np.where(
                issue[op_positions, column], issue[op_positions, column], overhead[model]
            )
            issue[:, column] = 0
    workspace = np.zeros(len(graph), dtype=np.int64)
    for (signature, _), timing in timings.items():
        rows = list(groups[signature])
        workspace[rows] = np.maximum(workspace[rows], timing.workspace)
    return Table(
        tuple(op.name for op in graph.ops),
        tuple(measured.models),
        seconds,
        issue=issue if issue.any() else None,
        spread=spread,
        machine=machine_key,
        workspace=workspace if workspace.any() else None,
    )


class _CostEstimator:
    """Estimates the seconds of ops on one model from those that were measured there."""

    def __init__(self, measured: OpTimings, model: str) -> None:
        self.graph = measured.graph
        self.estimates = measured.estimates[:, list(measured.models).index(model)]
        ratios: dict[str, list[float]] = defaultdict(list)
        issues: dict[str, list[float]] = defaultdict(list)
        for signature, positions in measured.groups.items():
            timing = measured.timings.get((signature, model))
            kind = self.graph.ops[positions[0]].kind
            if timing is not None and self.estimates[positions[0]] > 0:
                ratios[kind].append(timing.seconds / float(self.estimates[positions[0]]))
                issues[kind].append(timing.issue)
        self.ratio = {kind: median(values) for kind, values in ratios.items()}
        self.issue = {kind: median(values) for kind, values in issues.items()}
        self.default_ratio = median(
            [value for values in ratios.values() for value in values] or [1.0]
        )
        self.default_issue = median(
            [value for values in issues.values() for value in values] or [0.0]
        )

    def __call__(self, position: int) -> tuple[float, float]:
        kind = self.graph.ops[position].kind
        seconds = float(self.estimates[position]) * self.ratio.get(kind, self.default_ratio)
        return seconds, self.issue.get(kind, self.default_issue)
