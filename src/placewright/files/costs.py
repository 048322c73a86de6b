"""Cost models in files: the roofline's two shares, or a table of seconds."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from placewright.costs import CostModel, Roofline, Table
from placewright.errors import FileError, ProblemError, nearest
from placewright.files import validation
from placewright.files.cluster import device_data, read_device
from placewright.files.header import body, make_header

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from placewright.files.validation import Data


def costs_data(costs: CostModel) -> Data:
    """A cost model as plain data."""
    if isinstance(costs, Roofline):
        shares = {"compute": float(costs.compute), "memory": float(costs.memory)}
        return make_header("costs") | {"model": "roofline"} | shares
    if not isinstance(costs, Table):
        name = type(costs).__name__
        raise FileError(f"costs of type {name} cannot be saved: expected a Roofline or a Table")
    data = make_header("costs") | {
        "model": "table",
        "ops": list(costs.ops),
        "columns": list(costs.columns),
        "seconds": costs.seconds.tolist(),
    }
    if costs.transfers is not None:
        data["transfers"] = costs.transfers.tolist()
    if costs.measured_on is not None:
        data["measured_on"] = device_data(costs.measured_on)
    for key, array in (("issue", costs.issue), ("spread", costs.spread)):
        if array is not None:
            data[key] = array.tolist()
    if costs.machine:
        data["machine"] = costs.machine
    if costs.workspace is not None:
        data["workspace"] = costs.workspace.tolist()
    return data


def read_costs(data: object, where: str = "") -> Roofline | Table:
    """The cost model that plain data describe."""
    values = body(data, "costs", where)
    model_entry = {key: values.pop(key) for key in ("model",) if key in values}
    model = validation.fields(model_entry, {"model": validation.text}, where, required=("model",))[
        "model"
    ]
    if model == "roofline":
        shares = validation.fields(
            values, {"compute": validation.number, "memory": validation.number}, where
        )
        for key, share in shares.items():
            if not share > 0:
                raise ProblemError(f"the roofline's {key} share is {share!r}: expected > 0")
        return Roofline(**shares)
    if model == "table":
        return _read_table(values, where)
    raise ProblemError(f"cost model {model!r} is unknown: {nearest(model, ('roofline', 'table'))}")


def _read_table(data: Data, where: str) -> Table:
    values = validation.fields(data, _TABLE, where, required=("ops", "columns", "seconds"))
    ops, columns = values["ops"], values["columns"]
    seconds, issue, spread = (
        _to_matrix(key, values[key], len(columns)) if key in values else None
        for key in ("seconds", "issue", "spread")
    )
    assert seconds is not None  # fields() requires it
    optional = values.get("transfers"), values.get("measured_on")
    machine, workspace = values.get("machine", ""), values.get("workspace")
    return Table(ops, columns, seconds, *optional, issue, spread, machine, workspace)


def _to_matrix(key: str, rows: list[NDArray[np.float64]], columns: int) -> NDArray[np.float64]:
    """Rows of equal length as one array."""
    subject = "the cost table" if key == "seconds" else f"the cost table's {key}"
    for at, row in enumerate(rows):
        if len(row) != columns:
            problem = f"row {at} of {subject} has {len(row)} entries"
            raise ProblemError(f"{problem}: expected one for each of {columns} columns")
    return np.array(rows, dtype=np.float64).reshape(len(rows), columns)


_TABLE = {
    "ops": validation.texts,
    "columns": validation.texts,
    "seconds": validation.list_of(validation.floats),
    "transfers": validation.floats,
    "measured_on": read_device,
    "issue": validation.list_of(validation.floats),
    "spread": validation.list_of(validation.floats),
    "machine": validation.text,
    "workspace": validation.floats,
}
