"""Results in files: a plan with how good it is and what it took to find."""

from __future__ import annotations

from typing import get_args

from placewright.files import validation
from placewright.files.header import body, head
from placewright.files.plan import plan_data, read_plan
from placewright.files.validation import Data, written
from placewright.problem import Objective
from placewright.result import Result, Use
from placewright.version import __version__


def result_data(result: Result) -> Data:
    """A result as plain data."""
    return head("result") | {
        "placewright_version": __version__,
        "method": result.solver,
        "found_by": result.found_by,
        "objective": result.objective,
        "step_time": written(result.step_time),
        "period": written(result.period),
        "bound": written(result.bound),
        "bound_name": result.bound_name,
        "gap": written(result.gap),
        "fits": bool(result.fits),
        "overflow": int(result.overflow),
        "evaluations": int(result.evaluations),
        "seconds": float(result.seconds),
        "seed": int(result.seed),
        "devices": [
            {
                "name": use.name,
                "ops": int(use.ops),
                "busy": float(use.busy),
                "peak": int(use.peak),
                "limit": int(use.limit),
                "reserve": int(use.reserve),
            }
            for use in result.devices
        ],
        "history": [[int(count), float(at), written(best)] for count, at, best in result.history],
        **_asked_data(result),
        "plan": plan_data(result.plan),
    }


def _asked_data(result: Result) -> Data:
    """What the problem was asked for with, where that is known."""
    asked = {
        key: list(value) if isinstance(value, tuple) else value
        for key, value in result.asked.items()
    }
    return {"asked": asked} if asked else {}


def read_result(data: object, where: str = "") -> Result:
    """The result that plain data describe."""
    need = [key for key in _RESULT if key not in (*_DERIVED, "found_by", "history", "asked")]
    found = validation.fields(body(data, "result", where), _RESULT, where, need)
    for key in _DERIVED:
        found.pop(key, None)
    found["devices"] = tuple(found["devices"])
    found["history"] = tuple(found.get("history", ()))
    return Result(solver=found.pop("method"), **found)


def _use(data: object, where: str) -> Use:
    return Use(
        **validation.fields(data, _USE, where, need=("name", "ops", "busy", "peak", "limit"))
    )


def _objective(value: object, where: str) -> str:
    if value not in get_args(Objective):
        validation.refuse(value, where, "'step' or 'period'")
    return str(value)


def _option(value: object, where: str) -> str | bool | tuple[str, ...]:
    """One option of the command line."""
    if isinstance(value, bool | str):
        return value
    if not isinstance(value, list):
        validation.refuse(value, where, "text, a list of texts, true or false")
    return validation.texts(value, where)


def _milestone(value: object, where: str) -> tuple[int, float, float]:
    """One `[evaluations, seconds, best objective]`."""
    entry = validation.items(value, where)
    if len(entry) != 3:
        validation.refuse(value, where, "[evaluations, seconds, best]")
    return (
        validation.integer(entry[0], where),
        validation.number(entry[1], where),
        validation.rate(entry[2], where),
    )


_USE = {
    "name": validation.text,
    "ops": validation.integer,
    "busy": validation.number,
    "peak": validation.integer,
    "limit": validation.integer,
    "reserve": validation.integer,
}
_DERIVED = ("placewright_version", "gap", "fits")
_RESULT = {
    "placewright_version": validation.text,
    "method": validation.text,
    "found_by": validation.text,
    "objective": _objective,
    "step_time": validation.rate,
    "period": validation.rate,
    "bound": validation.rate,
    "bound_name": validation.text,
    "gap": validation.rate,
    "fits": validation.flag,
    "overflow": validation.integer,
    "evaluations": validation.integer,
    "seconds": validation.number,
    "seed": validation.integer,
    "devices": validation.each(_use),
    "history": validation.each(_milestone),
    "asked": validation.named(_option),
    "plan": read_plan,
}
