"""Options that several commands share, with their names and help."""

from enum import StrEnum
from pathlib import Path
from typing import Annotated, Literal

import typer

PLACE_BUDGET, COMPARE_BUDGET = "30s", "10s"
"""How long a method may take where neither a time nor a number of plans is given."""


class ObjectiveChoice(StrEnum):
    """What is to be made small."""

    STEP = "step"
    PERIOD = "period"


class DisciplineChoice(StrEnum):
    """How a device chooses its next op."""

    IN_ORDER = "in-order"
    READY = "ready"

    @property
    def problem_value(self) -> Literal["in order", "ready"]:
        """What a problem calls it."""
        return "ready" if self is DisciplineChoice.READY else "in order"


Model = Annotated[
    str,
    typer.Argument(
        metavar="MODEL",
        help="A network's name (`placewright models`); a graph, problem or workload file; "
        "model.py:build; an ONNX file; a TensorFlow GraphDef or SavedModel.",
        show_default=False,
    ),
]
PlanModel = Annotated[
    str | None,
    typer.Option("--model", metavar="MODEL", help="What it is of, where the file does not say."),
]
On = Annotated[
    str | None,
    typer.Option(
        "--on",
        metavar="CLUSTER",
        help="A cluster such as 2xP100+cpu, a cluster file, or here: this machine, measured once. "
        "Workloads and problems bring one.",
    ),
]
ObjectiveOption = Annotated[
    ObjectiveChoice | None,
    typer.Option(
        "--objective",
        help="Time of one step, or time between pipelined steps. [default: step]",
    ),
]
DisciplineOption = Annotated[
    DisciplineChoice | None,
    typer.Option(
        "--discipline",
        help="A device runs its ops in the plan's order, or whatever is ready. [default: in-order]",
    ),
]
UseDevices = Annotated[
    str | None,
    typer.Option("--use", metavar="NAMES", help="These devices alone, such as gpu0,cpu."),
]
Reserve = Annotated[
    list[str] | None,
    typer.Option(
        "--reserve",
        metavar="SIZE",
        help="Memory to keep back: 2GiB on every GPU, or gpu0=2GiB. Presets keep 1 GiB a GPU.",
    ),
]
Limit = Annotated[
    list[str] | None,
    typer.Option(
        "--limit",
        metavar="SIZE",
        help="Memory to use at most, reserve included: 8GiB on every GPU, or gpu0=8GiB.",
    ),
]
Pin = Annotated[
    list[str] | None,
    typer.Option("--pin", metavar="OPS=DEVICE", help="Keep ops on a device: 'blocks.0.*=gpu0'."),
]
Forbid = Annotated[
    list[str] | None,
    typer.Option("--forbid", metavar="OPS=DEVICES", help="Keep ops off devices: '*.norm=cpu'."),
]
Colocate = Annotated[
    list[str] | None,
    typer.Option("--colocate", metavar="OPS,OPS", help="Keep ops together: 'embed,head.*'."),
]
Costs = Annotated[
    Path | None,
    typer.Option(
        "--costs",
        metavar="FILE",
        help="A table of measured times, or a roofline; here: measure the ops on this machine.",
    ),
]
Training = Annotated[
    bool,
    typer.Option("--training", help="Of a Python file's model: a training step, not one call."),
]
Optimizer = Annotated[
    str | None,
    typer.Option("--optimizer", metavar="NAME", help="Of such a step: sgd, momentum or adam."),
]
Dims = Annotated[
    list[str] | None,
    typer.Option(
        "--dims",
        metavar="NAME=SIZE",
        help="What a model file leaves open: a dimension (batch=8) or a tensor's shape (x=8x224).",
    ),
]
Budget = Annotated[
    str | None,
    typer.Option(
        "--budget",
        metavar="TIME",
        help="Stop a method after so long: 5s, 5 min. "
        f"[default: {PLACE_BUDGET} to place, {COMPARE_BUDGET} each to compare]",
    ),
]
Evaluations = Annotated[
    int | None,
    typer.Option("--evaluations", metavar="N", min=1, help="Stop after so many plans."),
]
Seed = Annotated[int, typer.Option("--seed", metavar="N", min=0, help="For all that is random.")]
WarmStart = Annotated[
    Path | None,
    typer.Option("--start", metavar="FILE", help="A plan to start from: the result is no worse."),
]
Trace = Annotated[
    Path | None,
    typer.Option("--trace", metavar="FILE", help="Write a timeline that ui.perfetto.dev opens."),
]
Report = Annotated[
    Path | None,
    typer.Option("--report", metavar="FILE", help="Write a page that shows it: report.html, say."),
]
Json = Annotated[
    bool,
    typer.Option("--json", help="Print one JSON object, in seconds and bytes, and nothing else."),
]
Robust = Annotated[
    bool,
    typer.Option(
        "--robust", help="Of the best few plans take the one that bears wrong costs best."
    ),
]
CostTrials = Annotated[
    int | None,
    typer.Option("--trials", metavar="N", min=1, help="Of --robust: wrong costs to try, 100."),
]
CostNoise = Annotated[
    float | None,
    typer.Option("--spread", metavar="SHARE", help="Of --robust: how wrong they may be, 0.2."),
]
