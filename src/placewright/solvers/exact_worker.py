"""The child process in which CP-SAT runs: a line of JSON in, a line for each plan found out.

Run by `exact_process.py`. It ends when its standard input does, even while it is solving.
"""

from __future__ import annotations

import json
import os
import queue
import sys
import threading
import traceback
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

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

    from placewright.solvers import exact_memory
    from placewright.solvers.exact_model import Placed, Step
    from placewright.solvers.exact_order import at_once, first_come, pairs
    from placewright.solvers.exact_period import Period

    built: Placed
    if p["objective"] == "period":
        built = Period(p)
        for device in exact_memory.scarce(built):
            exact_memory.at_any_time(built, device)
    else:
        built = step = Step(p)
        for device in exact_memory.scarce(step):
            left = exact_memory.at_any_time(step, device)
            if len(step.tensors) <= _LIVES:
                exact_memory.over_time(step, device, left)
        if p["ordered"] and pairs(step) <= _PAIRS:
            first_come(step)
            at_once(step)

    class Found(cp_model.CpSolverSolutionCallback):  # type: ignore[misc]
        def on_solution_callback(self) -> None:
            say({"kind": "found", **_plan(built, self)})

    solver = cp_model.CpSolver()
    solver.parameters.max_time_in_seconds = p["seconds"]
    if p["deterministic"] is not None:
        solver.parameters.max_deterministic_time = p["deterministic"]
    solver.parameters.num_workers = p["workers"]
    solver.parameters.random_seed = p["seed"]
    for name, value in p.get("parameters", {}).items():
        setattr(solver.parameters, name, value)
    status = solver.solve(built.model, Found())
    bound = solver.best_objective_bound
    return {
        "status": solver.status_name(status).lower(),
        "bound": bound,
        "wall": solver.wall_time,
        "deterministic": solver.response_proto.deterministic_time,
    }


def _plan(built: Any, values: Any) -> dict[str, Any]:
    from placewright.solvers.exact_model import Step

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
