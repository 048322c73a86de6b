"""Cost models in files: the roofline's two shares, or a table of seconds."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from placewright.costs import CostModel, Roofline, Table
from placewright.errors import FileError, ProblemError, nearest
from placewright.files import validation
from placewright.files.cluster import device_data, read_device
from placewright.files.header import body, head

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from placewright.files.validation import Data


def costs_data(costs: CostModel) -> Data:
    """A cost model as plain data."""
    if isinstance(costs, Roofline):
        shares = {"compute": float(costs.compute), "memory": float(costs.memory)}
        return head("costs") | {"model": "roofline"} | shares
    if not isinstance(costs, Table):
        name = type(costs).__name__
        raise FileError(f"costs of type {name} cannot be saved: expected a Roofline or a Table")
    data = head("costs") | {
        "model": "table",
        "ops": list(costs.ops),
        "columns": list(costs.columns),
        "seconds": costs.seconds.tolist(),
    }
    if costs.transfers is not None:
        data["transfers"] = costs.transfers.tolist()
    if costs.measured_on is not None:
        data["measured_on"] = device_data(costs.measured_on)
    for key, beside in (("issue", costs.issue), ("spread", costs.spread)):
        if beside is not None:
            data[key] = beside.tolist()
    if costs.machine:
        data["machine"] = costs.machine
    if costs.workspace is not None:
        data["workspace"] = costs.workspace.tolist()
    return data


def read_costs(data: object, where: str = "") -> Roofline | Table:
    """The cost model that plain data describe."""
    found = body(data, "costs", where)
    named = {key: found.pop(key) for key in ("model",) if key in found}
    model = validation.fields(named, {"model": validation.text}, where, need=("model",))["model"]
    if model == "roofline":
        shares = validation.fields(
            found, {"compute": validation.number, "memory": validation.number}, where
        )
        for key, share in shares.items():
            if not share > 0:
                raise ProblemError(f"the roofline's {key} share is {share!r}: expected > 0")
        return Roofline(**shares)
    if model == "table":
        return _table(found, where)
    raise ProblemError(f"cost model {model!r} is unknown: {nearest(model, ('roofline', 'table'))}")


def _table(data: Data, where: str) -> Table:
    found = validation.fields(data, _TABLE, where, need=("ops", "columns", "seconds"))
    ops, columns = found["ops"], found["columns"]
    seconds, issue, spread = (
        _square(key, found[key], len(columns)) if key in found else None
        for key in ("seconds", "issue", "spread")
    )
    assert seconds is not None  # fields() saw to it
    more = found.get("transfers"), found.get("measured_on")
    machine, room = found.get("machine", ""), found.get("workspace")
    return Table(ops, columns, seconds, *more, issue, spread, machine, room)


def _square(key: str, rows: list[NDArray[np.float64]], columns: int) -> NDArray[np.float64]:
    """Rows of equal length as one array."""
    of = "the cost table" if key == "seconds" else f"the cost table's {key}"
    for at, row in enumerate(rows):
        if len(row) != columns:
            what = f"row {at} of {of} has {len(row)} entries"
            raise ProblemError(f"{what}: expected one for each of {columns} columns")
    return np.array(rows, dtype=np.float64).reshape(len(rows), columns)


_TABLE = {
    "ops": validation.texts,
    "columns": validation.texts,
    "seconds": validation.each(validation.floats),
    "transfers": validation.floats,
    "measured_on": read_device,
    "issue": validation.each(validation.floats),
    "spread": validation.each(validation.floats),
    "machine": validation.text,
    "workspace": validation.floats,
}
