"""Step times of the same plans under two versions of the package, in turns on one machine.

    python -m benchmarks.offload.commits --other FOLDER

FOLDER has another version, as `pip install --target FOLDER` puts it there. `auto` plans each case
with half of its weights' bytes as the limit, by estimated costs; the plan is run by the executor
and through `apply` in a process of each version, this one first and last. Both versions draw the
same weights. A step is the median of `--steps` after warming up.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from benchmarks.common import ROOT, ResultFile, Table, make_parser, milliseconds, name_list

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

CASES = ("blocks/1 tokens", "blocks/512 tokens", "gpt2-xl/decode", "gpt2-xl/prefill")
CLOSE, CLOSE_SECONDS = 0.02, 0.4e-3
"""A step may be slower by this share, or by this time."""
WARMUP = 8


def main(argv: Sequence[str] | None = None) -> None:
    parser = make_parser(__doc__, __spec__.name)
    option = parser.add_argument
    option("--other", type=Path, help="folder of the other version")
    option("--cases", type=name_list, default=list(CASES), help="cases of benchmarks.offload")
    option("--steps", type=int, default=30, help="steps that are timed")
    option("--small", action="store_true", help="tiny networks, also without a GPU")
    option("--out", type=Path, default=Path("out/offload-commits.jsonl"), help="file of rows")
    option("--plans", type=Path, default=Path("out/offload-commits"), help="folder of plans")
    option("--child", nargs=2, metavar=("CASE", "PLAN"), help=argparse.SUPPRESS)
    arguments = parser.parse_args(argv)
    if arguments.child:
        case, plan = arguments.child
        print(json.dumps(run_case(case, Path(plan), arguments)))
        return
    if arguments.other is None:
        parser.error("--other is missing: the folder of another version of the package")
    results = ResultFile(arguments.out, lambda row: (row["case"], row["turn"]))
    for case in arguments.cases:
        plan = arguments.plans / f"{case.replace('/', '-').replace(' ', '-')}.npz"
        for turn, folder in enumerate((None, arguments.other, None)):
            if (case, turn) not in results:
                row = run_child(case, plan, folder, arguments)
                row = results.append({"case": case, "turn": turn, "other": turn == 1, **row})
                print(text_of(row), flush=True)
    print_table(results.rows)


def run_child(
    case: str, plan: Path, folder: Path | None, arguments: argparse.Namespace
) -> dict[str, Any]:
    command = [sys.executable, "-m", __spec__.name, "--child", case, str(plan)]
    command += ["--steps", str(arguments.steps), *(["--small"] if arguments.small else [])]
    paths = [] if folder is None else [str(folder.absolute())]
    before = os.environ.get("PYTHONPATH")
    env = os.environ | {"PYTHONPATH": os.pathsep.join([*paths, *([before] if before else [])])}
    ran = subprocess.run(command, stdout=subprocess.PIPE, text=True, env=env, cwd=ROOT, check=False)
    lines = ran.stdout.strip().splitlines()
    if ran.returncode or not lines:
        return {"error": f"ended with {ran.returncode}"}
    row = json.loads(lines[-1])
    package = Path(row.pop("package"))
    if folder is not None and not package.is_relative_to(folder.absolute()):
        return {"error": f"ran {package}, not the version of {folder}"}
    return {"error": "", **row}


def run_case(name: str, path: Path, arguments: argparse.Namespace) -> dict[str, Any]:
    """Step times of a plan, by the executor and through `apply`, in this process's version."""
    import torch

    import placewright as pw
    from benchmarks.offload.models import build, cases, fill, weight_bytes
    from placewright.runtime import Executor
    from placewright.runtime.program.program import build_program

    case = cases()[name]
    model, args, kwargs = build(case, arguments.small)
    program = build_program(model, args, kwargs, name=name)
    if not path.exists():
        problem = pw.Problem(
            program.graph,
            pw.Cluster.parse("H200+cpu"),
            constraints=pw.Constraints(limits={"gpu0": weight_bytes(model) // 2}),
        )
        save_plan(pw.solve(problem, budget=3.0).plan, path)
    plan = load_plan(path)
    has_gpu = torch.cuda.is_available()
    device_map = {} if has_gpu else {"gpu0": "cpu", "cpu": "cpu"}
    gpu = torch.device("cuda" if has_gpu else "cpu")
    devices = dict(zip(plan.ops, plan.placement.tolist(), strict=True))

    def device_of(weight: str) -> torch.device:
        on_gpu = plan.device_names[devices.get(weight, 0)].startswith("gpu")
        return gpu if on_gpu else torch.device("cpu")

    fill(model, device_of, gpu)
    row: dict[str, Any] = {"version": pw.__version__, "package": str(Path(pw.__file__).parent)}
    with Executor(program, model, plan, device_map) as executor:
        row["executor"] = _seconds(lambda: executor(*args, **kwargs), arguments.steps)
    with torch.no_grad():
        placed = pw.apply(plan, model, device_map=device_map)
        row["apply"] = _seconds(lambda: placed(*args, **kwargs), arguments.steps)
    return row


def save_plan(plan: Any, path: Path) -> None:
    """Write what both versions know of a plan; files of plans differ between versions."""
    path.parent.mkdir(parents=True, exist_ok=True)
    arrays = {name: getattr(plan, name) for name in ("placement", "priority", "staging")}
    np.savez(
        path,
        ops=np.array(plan.ops),
        device_names=np.array(plan.device_names),
        **{name: array for name, array in arrays.items() if array is not None},
    )


def load_plan(path: Path) -> Any:
    from placewright import Plan

    with np.load(path) as data:
        arrays = {name: data[name] for name in ("priority", "staging") if name in data}
        names = (tuple(map(str, data[key])) for key in ("ops", "device_names"))
        return Plan(*names, data["placement"], **arrays)


def _seconds(step: Callable[[], Any], steps: int) -> float:
    import torch

    def synchronize() -> None:
        if torch.cuda.is_available():
            torch.cuda.synchronize()

    times = []
    for _ in range(WARMUP + steps):
        synchronize()
        began = time.perf_counter()
        step()
        synchronize()
        times.append(time.perf_counter() - began)
    return statistics.median(times[WARMUP:])


def text_of(row: dict[str, Any]) -> str:
    who = "the other version" if row["other"] else "this version"
    if row["error"]:
        return f"{row['case']}, {who}: {row['error']}"
    times = ", ".join(f"{way} {milliseconds(row[way], 2)} ms" for way in ("executor", "apply"))
    return f"{row['case']}, {who}: {times}"


def print_table(rows: list[dict[str, Any]]) -> None:
    """Both ways of each case, and whether this version is within the tolerance of the other."""
    table = Table("case", "way", "other ms", "this ms", "this / other", "within")
    for case in dict.fromkeys(row["case"] for row in rows):
        mine = [row for row in rows if row["case"] == case and not row["error"]]
        for way in ("executor", "apply"):
            before = [row[way] for row in mine if row["other"]]
            after = [row[way] for row in mine if not row["other"]]
            if not before or not after:
                table.row(case, way, None, None, None, "an error")
                continue
            old, new = statistics.median(before), statistics.median(after)
            within = new <= max(old * (1 + CLOSE), old + CLOSE_SECONDS)
            table.row(
                *(case, way, milliseconds(old, 2), milliseconds(new, 2), f"{new / old:.3f}"),
                "yes" if within else "**no**",
            )


if __name__ == "__main__":
    main()
