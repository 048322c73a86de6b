"""Options that several commands share, with their names and help."""

from enum import StrEnum
from pathlib import Path
from typing import Annotated, Literal

import typer

from placewright.cli import panels
from placewright.cli.completion import complete_cluster, complete_model


class ObjectiveChoice(StrEnum):
    """What is minimised."""

    STEP = "step"
    PERIOD = "period"


class DisciplineChoice(StrEnum):
    """The order in which a device runs its ops."""

    IN_ORDER = "in-order"
    READY = "ready"

    @property
    def problem_value(self) -> Literal["in order", "ready"]:
        """The problem's word for it."""
        return "ready" if self is DisciplineChoice.READY else "in order"


def _check_workers(text: str | None) -> str | None:
    """Read the text once, so that a wrong one is found before anything else is done."""
    if text is not None:
        from placewright.workers import WorkerSpec

        WorkerSpec.parse(text)
    return text


Model = Annotated[
    str,
    typer.Argument(
        metavar="MODEL",
        help="A built-in model (`placewright models`); a graph, problem or workload file; "
        "model.py:build; hf:FOLDER of transformers; timm:NAME; an ONNX file; a TensorFlow GraphDef "
        "or SavedModel.",
        show_default=False,
        autocompletion=complete_model,
    ),
]
TrainingModel = Annotated[
    str | None,
    typer.Argument(
        metavar="MODEL",
        help="The model to place, as in `place`.",
        show_default=False,
        autocompletion=complete_model,
    ),
]
PlanModel = Annotated[
    str | None,
    typer.Option(
        "--model",
        metavar="MODEL",
        help="The model that the plan was made for, if the file does not name it.",
        autocompletion=complete_model,
        rich_help_panel=panels.PROBLEM,
    ),
]
On = Annotated[
    str | None,
    typer.Option(
        "--on",
        metavar="CLUSTER",
        help="A cluster such as 2xP100+cpu or, quoted, 'MyGPU(24GB,82TF,1008GB/s)+cpu'; a cluster "
        "file; or here: this machine, measured once. Optional for workload and problem files, "
        "which include one.",
        autocompletion=complete_cluster,
        rich_help_panel=panels.PROBLEM,
    ),
]
ObjectiveOption = Annotated[
    ObjectiveChoice | None,
    typer.Option(
        "--objective",
        help="Minimise the time of one step, or the period: the time per step of pipelined steps. "
        "[default: step]",
        rich_help_panel=panels.PROBLEM,
    ),
]
DisciplineOption = Annotated[
    DisciplineChoice | None,
    typer.Option(
        "--discipline",
        help="Execution order: a device runs its ops in the plan's order, or whichever is ready. "
        "[default: in-order]",
        rich_help_panel=panels.PROBLEM,
    ),
]
Devices = Annotated[
    str | None,
    typer.Option(
        "--devices",
        metavar="NAMES",
        help="Restrict to these devices, e.g. gpu0,cpu.",
        rich_help_panel=panels.PROBLEM,
    ),
]
Reserve = Annotated[
    list[str] | None,
    typer.Option(
        "--reserve",
        metavar="SIZE",
        help="Memory to reserve: 2GiB on every GPU, or gpu0=2GiB. Presets reserve 1 GiB per GPU.",
        rich_help_panel=panels.CONSTRAINTS,
    ),
]
Limit = Annotated[
    list[str] | None,
    typer.Option(
        "--limit",
        metavar="SIZE",
        help="Memory that a plan may use: 8GiB on every GPU, or gpu0=8GiB.",
        rich_help_panel=panels.CONSTRAINTS,
    ),
]
Pin = Annotated[
    list[str] | None,
    typer.Option(
        "--pin",
        metavar="OPS=DEVICE",
        help="Keep ops on a device: 'blocks.0.*=gpu0'.",
        rich_help_panel=panels.CONSTRAINTS,
    ),
]
Forbid = Annotated[
    list[str] | None,
    typer.Option(
        "--forbid",
        metavar="OPS=DEVICES",
        help="Keep ops off devices: '*.norm=cpu'.",
        rich_help_panel=panels.CONSTRAINTS,
    ),
]
Colocate = Annotated[
    list[str] | None,
    typer.Option(
        "--colocate",
        metavar="OPS,OPS",
        help="Keep ops together: 'embed,head.*'.",
        rich_help_panel=panels.CONSTRAINTS,
    ),
]
Costs = Annotated[
    Path | None,
    typer.Option(
        "--costs",
        metavar="FILE",
        help="A table of measured op times, or a roofline; here: measure the ops on this machine.",
        rich_help_panel=panels.PROBLEM,
    ),
]
Training = Annotated[
    bool,
    typer.Option(
        "--training",
        help="(model.py only) Place a training step, not one call.",
        rich_help_panel=panels.PROBLEM,
    ),
]
Caller = Annotated[
    bool,
    typer.Option(
        "--caller",
        help="(several hosts) Inputs enter and outputs leave at the first host, as under torchrun.",
        rich_help_panel=panels.PROBLEM,
    ),
]
Optimizer = Annotated[
    str | None,
    typer.Option(
        "--optimizer",
        metavar="NAME",
        help="(with --training) sgd, momentum or adam. [default: sgd]",
        rich_help_panel=panels.PROBLEM,
    ),
]
WorkloadCalls = Annotated[
    str | None,
    typer.Option(
        "--workload",
        metavar="CALLS",
        help="(hf:, timm:, model.py) The calls to plan together: generate:prompt=512,new=128 "
        "(prompt=128+512: two lengths), call:batch=8.",
        rich_help_panel=panels.PROBLEM,
    ),
]
Dims = Annotated[
    list[str] | None,
    typer.Option(
        "--dims",
        metavar="NAME=SIZE",
        help="A symbolic dimension of a model file (batch=8), or an input's shape (x=8x224).",
        rich_help_panel=panels.PROBLEM,
    ),
]
Budget = Annotated[
    str | None,
    typer.Option(
        "--budget",
        metavar="TIME",
        help="Time budget per method: 5s, 5 min. [default: 30s to place, 10s each to compare]",
        rich_help_panel=panels.SEARCH,
    ),
]
Evaluations = Annotated[
    int | None,
    typer.Option(
        "--evaluations",
        metavar="N",
        min=1,
        help="Stop after N evaluated plans.",
        rich_help_panel=panels.SEARCH,
    ),
]
Seed = Annotated[
    int,
    typer.Option("--seed", metavar="N", min=0, help="Random seed.", rich_help_panel=panels.SEARCH),
]
WarmStart = Annotated[
    Path | None,
    typer.Option(
        "--warm-start",
        metavar="FILE",
        help="A plan to start from: the result is no worse.",
        rich_help_panel=panels.SEARCH,
    ),
]
Fresh = Annotated[
    bool,
    typer.Option(
        "--fresh",
        help="Do not start from a stored plan.",
        rich_help_panel=panels.SEARCH,
    ),
]
StoreLocation = Annotated[
    str | None,
    typer.Option(
        "--store",
        metavar="PATH",
        help="Where plans are stored: a file, postgresql://user@host/database, or none. "
        "[default: $PLACEWRIGHT_STORE, or a file in the user's cache folder]",
        rich_help_panel=panels.GENERAL,
    ),
]
WorkersOption = Annotated[
    str | None,
    typer.Option(
        "--workers",
        metavar="SPEC",
        help="Workers that share the work: 8 or processes:8, threads:2, ray:8; or those of a Ray "
        "cluster, ray:auto or ray://host:port. Any number of any kind gives the same result.",
        callback=_check_workers,
        rich_help_panel=panels.SEARCH,
    ),
]
Trace = Annotated[
    Path | None,
    typer.Option(
        "--trace",
        metavar="FILE",
        help="Write a timeline that ui.perfetto.dev opens.",
        rich_help_panel=panels.OUTPUT,
    ),
]
Report = Annotated[
    Path | None,
    typer.Option(
        "--report",
        metavar="FILE",
        help="Write an HTML report, e.g. report.html.",
        rich_help_panel=panels.OUTPUT,
    ),
]
Json = Annotated[
    bool,
    typer.Option(
        "--json",
        help="Print one JSON object, in seconds and bytes, and nothing else.",
        rich_help_panel=panels.OUTPUT,
    ),
]
Robust = Annotated[
    bool,
    typer.Option(
        "--robust",
        help="Take the plan that is most robust to cost errors, of the best few.",
        rich_help_panel=panels.SEARCH,
    ),
]
CostTrials = Annotated[
    int | None,
    typer.Option(
        "--cost-trials",
        metavar="N",
        min=1,
        help="(with --robust) Perturbed costs to try. [default: 100]",
        rich_help_panel=panels.SEARCH,
    ),
]
CostNoise = Annotated[
    float | None,
    typer.Option(
        "--cost-noise",
        metavar="SHARE",
        help="(with --robust) How far costs are perturbed. [default: 0.2]",
        rich_help_panel=panels.SEARCH,
    ),
]
Cautious = Annotated[
    bool,
    typer.Option(
        "--cautious/--no-cautious",
        help="(auto only) Split a model that fits one device only if the gain survives slow "
        "hand-overs and a slow host; --no-cautious takes the best by simulation.",
        show_default=False,
        rich_help_panel=panels.SEARCH,
    ),
]
