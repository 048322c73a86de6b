"""Results in files: a plan with its objective, its bound and the cost of the search."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, get_args

from placewright.errors import ConfigError
from placewright.files import validation
from placewright.files.header import RESERVE_IN_LIMITS, body, make_header, version_of
from placewright.files.plan import plan_data, read_plan
from placewright.files.validation import Data, plain_number
from placewright.problem import Objective
from placewright.result import DeviceUse, Result
from placewright.units import parse_bytes
from placewright.version import __version__

if TYPE_CHECKING:
    from collections.abc import Sequence

    from placewright.plan import Plan


def result_data(result: Result) -> Data:
    """A result as plain data."""
    return make_header("result") | {
        "placewright_version": __version__,
        "method": result.solver,
        "found_by": result.found_by,
        "objective": result.objective,
        "step_time": plain_number(result.step_time),
        "period": plain_number(result.period),
        "bound": plain_number(result.bound),
        "bound_name": result.bound_name,
        "gap": plain_number(result.gap),
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
        "history": [
            [int(count), float(at), plain_number(best)] for count, at, best in result.history
        ],
        **_options_data(result),
        **({"notes": list(result.notes)} if result.notes else {}),
        "plan_digest": "" if result.edited else plan_digest(result.plan),
        "plan": plan_data(result.plan),
    }


def plan_digest(plan: Plan) -> str:
    """A digest of what a plan decides, by which a plan that was edited in its file is seen."""
    digest = hashlib.blake2b(digest_size=8)
    data = plan_data(plan)
    keys = ("placement", "priority", "fusion", "staging")
    digest.update(repr([sorted(data.get(key, {}).items()) for key in keys]).encode())
    return digest.hexdigest()


def _options_data(result: Result) -> Data:
    """The options of the problem on the command line, if known."""
    options = {
        key: list(value) if isinstance(value, tuple) else value
        for key, value in result.options.items()
    }
    return {"options": options} if options else {}


def read_result(data: object, where: str = "") -> Result:
    """The result that plain data describe."""
    optional = (*_DERIVED, "found_by", "history", "options", "notes", "plan_digest")
    required = [key for key in _RESULT if key not in optional]
    values = validation.fields(
        body(data, "result", where), _RESULT, where, required, renamed={"asked": "options"}
    )
    for key in _DERIVED:
        values.pop(key, None)
    digest = values.pop("plan_digest", None)  # files of version 2 have none
    values["edited"] = digest is not None and digest != plan_digest(values["plan"])
    values["devices"] = tuple(values["devices"])
    values["history"] = tuple(values.get("history", ()))
    if version_of(data) <= RESERVE_IN_LIMITS and "limit" in values.get("options", {}):
        limits = values["options"]["limit"]
        values["options"]["limit"] = _without_reserves(limits, values["devices"])
    return Result(solver=values.pop("method"), **values)


def _without_reserves(
    limits: str | bool | tuple[str, ...], devices: Sequence[DeviceUse]
) -> str | bool | tuple[str, ...]:
    """Limits of --limit that included reserves, as the bytes that were usable.

    A limit without a device's name counted for all devices that are no hosts.
    """
    if not isinstance(limits, tuple):
        return limits  # which the command line refuses
    changed: list[str] = []
    for word in (word.strip() for text in limits for word in text.split(",")):
        name, _, amount = word.rpartition("=")
        try:
            size = int(amount) if amount.strip().isdecimal() else parse_bytes(amount)
        except ConfigError:
            return limits  # likewise
        uses = [use for use in devices if use.name == name] if name else devices
        limited = {use.name: use for use in uses if use.limit == max(0, size - use.reserve)}
        if any(use.reserve for use in limited.values()):
            changed += [f"{each}={use.limit}B" for each, use in limited.items()]
        else:
            changed.append(f"{name}={size}B" if name else f"{size}B")
    return tuple(changed)


def _read_use(data: object, where: str) -> DeviceUse:
    return DeviceUse(
        **validation.fields(data, _USE, where, required=("name", "ops", "busy", "peak", "limit"))
    )


def _read_objective(value: object, where: str) -> str:
    if value not in get_args(Objective):
        validation.refuse(value, where, "'step' or 'period'")
    return str(value)


def read_option(value: object, where: str) -> str | bool | tuple[str, ...]:
    """One option of the command line."""
    if isinstance(value, bool | str):
        return value
    if not isinstance(value, list):
        validation.refuse(value, where, "text, a list of texts, true or false")
    return validation.texts(value, where)


def read_milestone(value: object, where: str) -> tuple[int, float, float]:
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
    "objective": _read_objective,
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
    "devices": validation.list_of(_read_use),
    "history": validation.list_of(read_milestone),
    "options": validation.mapping_of(read_option),
    "plan_digest": validation.text,
    "notes": validation.texts,
    "plan": read_plan,
}
