"""The child process in which CP-SAT runs: reads requests and writes a line for each plan found.

Run by `process.py`. It ends when its standard input does, even while it is solving.
"""

from __future__ import annotations

import json
import os
import queue
import sys
import threading
import time
import traceback
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

    from placewright.solvers.exact.model import PlacementModel

_MAX_TRANSFER_PAIRS = (
    6_000  # pairs of transfers that may meet, above which their order is not modelled
)
_MAX_TENSORS = 400  # tensors above which memory over time is not modelled


def main() -> None:
    """Answer requests until there are no more."""
    # Output of libraries must not mix with the answers.
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)

    def send(answer: dict[str, Any]) -> None:
        try:
            answers.write(json.dumps(answer) + "\n")
            answers.flush()
        except BrokenPipeError:
            os._exit(0)  # the parent is gone

    requests: queue.Queue[str] = queue.Queue()
    threading.Thread(target=_read_requests, args=(requests,), daemon=True).start()
    try:
        from ortools.sat.python import cp_model  # noqa: F401
    except ImportError:
        send({"kind": "missing"})
        return
    send({"kind": "ready"})
    while True:
        request = json.loads(requests.get())
        try:
            send({"kind": "done", **solve_request(request, send)})
        except Exception:
            send({"kind": "error", "text": traceback.format_exc()})


def _read_requests(requests: queue.Queue[str]) -> None:
    for line in sys.stdin:
        requests.put(line)
    os._exit(0)  # the parent is gone


def solve_request(
    payload: dict[str, Any], send: Callable[[dict[str, Any]], None]
) -> dict[str, Any]:
    """Build the model and solve it; sends each plan it finds."""
    from ortools.sat.python import cp_model

    started = time.perf_counter()
    placement = _build_model(payload)

    class SolutionCallback(cp_model.CpSolverSolutionCallback):
        def on_solution_callback(self) -> None:
            send({"kind": "found", **_plan_answer(placement, self)})

    solver = cp_model.CpSolver()
    seconds_left = payload["seconds"] - (time.perf_counter() - started)
    solver.parameters.max_time_in_seconds = max(0.01, seconds_left)
    if payload["deterministic"] is not None:
        solver.parameters.max_deterministic_time = payload["deterministic"]
    solver.parameters.num_workers = payload["workers"]
    solver.parameters.random_seed = payload["seed"]
    if payload["free"] is not None:  # a window is searched quickly, so presolving does not pay
        solver.parameters.cp_model_probing_level = 0
        solver.parameters.symmetry_level = 0
        solver.parameters.linearization_level = 0
    status = solver.solve(placement.model, SolutionCallback())
    return {
        "status": solver.status_name(status).lower(),
        "bound": solver.best_objective_bound,
    }


def _build_model(payload: dict[str, Any]) -> PlacementModel:
    """The model of a request."""
    from placewright.solvers.exact import memory, order_constraints
    from placewright.solvers.exact.model import PlacementModel, StepModel
    from placewright.solvers.exact.period_constraints import period_variable

    step = (
        StepModel(payload) if payload["objective"] == "step" or payload["with_schedule"] else None
    )
    placement = PlacementModel(payload) if step is None else step
    for device in memory.scarce_devices(placement):
        free_bytes = memory.add_static_memory(placement, device)
        if step is not None and len(step.tensors) <= _MAX_TENSORS:
            memory.add_memory_over_time(step, device, free_bytes)
    if (
        step is not None
        and not payload["grouped"]
        and order_constraints.transfer_pairs(step) <= _MAX_TRANSFER_PAIRS
    ):
        order_constraints.add_channel_order(step)
        if payload["free"] is None:
            order_constraints.add_prompt_starts(step)
        if payload["strict"]:
            order_constraints.add_prompt_sends(step)
        if payload["strict"] and payload["ready"]:
            order_constraints.add_no_idling(step)
    placement.model.minimize(
        period_variable(placement) if step is None or payload["with_schedule"] else step.makespan
    )
    return placement


def _plan_answer(placement: Any, values: Any) -> dict[str, Any]:
    from placewright.solvers.exact.model import StepModel

    device = [
        next(device_id for device_id, literal in literals.items() if values.boolean_value(literal))
        for literals in placement.unit_on
    ]
    answer = {"device": device, "value": int(values.objective_value)}
    if isinstance(placement, StepModel):
        answer["begin"] = [values.value(placement.start.get(item, 0)) for item in placement.items]
        answer["end"] = [values.value(placement.end.get(item, 0)) for item in placement.items]
    return answer


if __name__ == "__main__":
    main()
