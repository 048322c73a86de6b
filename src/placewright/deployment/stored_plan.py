"""A stored plan: what the plan store holds of one placement, as plain data."""

from __future__ import annotations

import datetime
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from placewright.errors import FileError
from placewright.files.plan import plan_data, read_plan
from placewright.runtime.planned_calls import PlannedCall, plan_calls
from placewright.store.plan_records import PlanRecord
from placewright.version import __version__

if TYPE_CHECKING:
    from collections.abc import Sequence

    from placewright.result import Result
    from placewright.workload_result import WorkloadResult

VERSION = 2


@dataclass(frozen=True, eq=False)
class StoredPlan:
    """The plan of each call, or the one device that the model is left on.

    Args:
        planned_calls: Plans of the calls; each places all weights.
        device: The device, if the model runs there as it is.
        seconds: The predicted time of all calls.
        optimizer: Of a training step.
        day: When it was made.
    """

    planned_calls: tuple[PlannedCall, ...]
    device: str | None
    seconds: float
    optimizer: str | None
    day: str

    @classmethod
    def of(
        cls,
        result: Result | WorkloadResult,
        flops: Sequence[float] | None = None,
        optimizer: str | None = None,
    ) -> StoredPlan:
        """What to keep of a result."""
        seconds = [call.objective_value for call in getattr(result, "calls", (result,))]
        planned = plan_calls(result.plan, flops, seconds)
        return cls(planned, None, result.objective_value, optimizer, _today())

    @classmethod
    def on_one_device(cls, device: str) -> StoredPlan:
        """The choice to leave a model on one device."""
        return cls((), device, 0.0, None, _today())

    @property
    def text(self) -> str:
        """What it is, in words."""
        if self.device is not None:
            return f"the whole model is left on {self.device}"
        return f"{self.seconds:.4g} s predicted in all"

    def record(self, key: str, name: str, cluster: str) -> PlanRecord:
        """What the store keeps of it.

        Args:
            key: Of the model and its circumstances.
            name: What it is listed under.
            cluster: The cluster's name.
        """
        now = time.time()
        return PlanRecord(
            key=key,
            kind="model",
            name=name,
            cluster=cluster,
            objective="step",
            overflow=0,
            seconds=self.seconds,
            bound=0.0,
            method="place",
            digest="",
            version=__version__,
            created_at=now,
            used_at=now,
            data=self.data(),
        )

    def data(self) -> dict[str, Any]:
        """The plan as plain data."""
        return {
            "version": VERSION,
            "calls": [
                {
                    "name": call.name,
                    "flops": call.flops,
                    "seconds": call.seconds,
                    "plan": plan_data(call.plan),
                }
                for call in self.planned_calls
            ],
            "device": self.device,
            "seconds": self.seconds,
            "optimizer": self.optimizer,
            "day": self.day,
        }

    @classmethod
    def read(cls, data: dict[str, Any]) -> StoredPlan:
        """The plan that plain data describe.

        Raises:
            FileError: They describe none.
        """
        try:
            if data["version"] != VERSION:
                raise FileError(f"a plan of version {data['version']!r}: expected {VERSION}")
            calls = tuple(
                PlannedCall(
                    read_plan(call["plan"]),
                    float(call["flops"]),
                    str(call["name"]),
                    float(call["seconds"]),
                )
                for call in data["calls"]
            )
            device, optimizer = data["device"], data["optimizer"]
            if not calls and not isinstance(device, str):
                raise FileError("a stored plan has neither calls nor a device")
            return cls(calls, device, float(data["seconds"]), optimizer, str(data["day"]))
        except (KeyError, TypeError, ValueError) as error:
            raise FileError(f"a stored plan is malformed: {error!r}") from error


def _today() -> str:
    return datetime.date.today().isoformat()
