"""Cost models in files: the roofline's two shares, or a table of seconds."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from placewright.costs import CostModel, Roofline, Table
from placewright.errors import FileError, ProblemError, nearest
from placewright.files import checks
from placewright.files.cluster import device_data, read_device
from placewright.files.header import body, head

if TYPE_CHECKING:
    from placewright.files.checks import Data


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
    return data


def read_costs(data: object, where: str = "") -> Roofline | Table:
    """The cost model that plain data describe."""
    found = body(data, "costs", where)
    named = {key: found.pop(key) for key in ("model",) if key in found}
    model = checks.fields(named, {"model": checks.text}, where, need=("model",))["model"]
    if model == "roofline":
        shares = checks.fields(found, {"compute": checks.number, "memory": checks.number}, where)
        for key, share in shares.items():
            if not share > 0:
                raise ProblemError(f"the roofline's {key} share is {share!r}: expected > 0")
        return Roofline(**shares)
    if model == "table":
        return _table(found, where)
    raise ProblemError(f"cost model {model!r} is unknown: {nearest(model, ('roofline', 'table'))}")


def _table(data: Data, where: str) -> Table:
    found = checks.fields(data, _TABLE, where, need=("ops", "columns", "seconds"))
    ops, columns, rows = found["ops"], found["columns"], found["seconds"]
    for at, row in enumerate(rows):
        if len(row) != len(columns):
            what = f"row {at} of the cost table has {len(row)} entries"
            raise ProblemError(f"{what}: expected one for each of {len(columns)} columns")
    seconds = np.array(rows, dtype=np.float64).reshape(len(rows), len(columns))
    return Table(ops, columns, seconds, found.get("transfers"), found.get("measured_on"))


_TABLE = {
    "ops": checks.texts,
    "columns": checks.texts,
    "seconds": checks.each(checks.floats),
    "transfers": checks.floats,
    "measured_on": read_device,
}
