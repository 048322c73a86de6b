"""The child process in which CP-SAT runs: a line of JSON in, a line for each plan found out.

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

    from placewright.solvers.exact.model import Placed

_PAIRS = 6_000  # of transfers that may meet, above which their order is left open
_LIVES = 400  # of tensors, above which memory over time is left open


def main() -> None:
    """Answer requests until there are no more."""
    # What a library prints must not get among the answers.
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)

    def say(answer: dict[str, Any]) -> None:
        answers.write(json.dumps(answer) + "\n")
        answers.flush()

    requests: queue.Queue[str] = queue.Queue()
    threading.Thread(target=_listen, args=(requests,), daemon=True).start()
    try:
        from ortools.sat.python import cp_model  # noqa: F401
    except ImportError:
        say({"kind": "missing"})
        return
    say({"kind": "ready"})
    while True:
        request = json.loads(requests.get())
        try:
            say({"kind": "done", **solve(request, say)})
        except Exception:
            say({"kind": "error", "text": traceback.format_exc()})


def _listen(requests: queue.Queue[str]) -> None:
    for line in sys.stdin:
        requests.put(line)
    os._exit(0)  # whoever asked is gone


def solve(p: dict[str, Any], say: Callable[[dict[str, Any]], None]) -> dict[str, Any]:
    """Build the model and solve it; says each plan it finds."""
    from ortools.sat.python import cp_model

    started = time.perf_counter()
    built = _built(p)

    class Found(cp_model.CpSolverSolutionCallback):
        def on_solution_callback(self) -> None:
            say({"kind": "found", **_plan(built, self)})

    solver = cp_model.CpSolver()
    left = p["seconds"] - (time.perf_counter() - started)
    solver.parameters.max_time_in_seconds = max(0.01, left)
    if p["deterministic"] is not None:
        solver.parameters.max_deterministic_time = p["deterministic"]
    solver.parameters.num_workers = p["workers"]
    solver.parameters.random_seed = p["seed"]
    if p["free"] is not None:  # a window is soon searched, so preparations do not pay
        solver.parameters.cp_model_probing_level = 0
        solver.parameters.symmetry_level = 0
        solver.parameters.linearization_level = 0
    status = solver.solve(built.model, Found())
    return {
        "status": solver.status_name(status).lower(),
        "bound": solver.best_objective_bound,
    }


def _built(p: dict[str, Any]) -> Placed:
    """The model that a request asks for."""
    from placewright.solvers.exact import memory, order_constraints
    from placewright.solvers.exact.model import Placed, Step
    from placewright.solvers.exact.period import period

    step = Step(p) if p["objective"] == "step" or p["scheduled"] else None
    placed = Placed(p) if step is None else step
    for device in memory.scarce(placed):
        left = memory.at_any_time(placed, device)
        if step is not None and len(step.tensors) <= _LIVES:
            memory.over_time(step, device, left)
    if step is not None and not p["grouped"] and order_constraints.pairs(step) <= _PAIRS:
        order_constraints.first_come(step)
        if p["free"] is None:
            order_constraints.at_once(step)
        if p["strict"]:
            order_constraints.sent_at_once(step)
        if p["strict"] and p["ready"]:
            order_constraints.never_idle(step)
    placed.model.minimize(period(placed) if step is None or p["scheduled"] else step.last)
    return placed


def _plan(built: Any, values: Any) -> dict[str, Any]:
    from placewright.solvers.exact.model import Step

    device = [
        next(place for place, literal in on.items() if values.boolean_value(literal))
        for on in built.unit_on
    ]
    found = {"device": device, "value": int(values.objective_value)}
    if isinstance(built, Step):
        found["begin"] = [values.value(built.start.get(item, 0)) for item in built.items]
        found["end"] = [values.value(built.end.get(item, 0)) for item in built.items]
    return found


if __name__ == "__main__":
    main()
