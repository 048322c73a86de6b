"""Evaluates plans side by side on a GPU: float32 step times and bounds of the memory peaks.

One plan a thread, in `cpp/simulator/lane_threads.hpp`. It is an explicit backend: nothing in the
library picks it by itself. Times are rounded to float32 at each addition; the bounds of the peaks
are those of the CPU's lanes, in whole bytes. Judge a plan again with `evaluate` before you report
it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from placewright.errors import ConfigError, PlanError, ProblemError
from placewright.simulator._kernel import (
    lane_arrays,
    lane_fields,
    lane_state_bytes,
    run_lane_threads,
)
from placewright.simulator.lane_batch import LaneBatch, LaneVerdict
from placewright.simulator.lane_launch import WARP, block_size, kernel_source, launch_size

if TYPE_CHECKING:
    from numpy.typing import ArrayLike, NDArray

    from placewright.problem import Problem
    from placewright.problem_arrays import Arrays

MAX_DEVICES = 24
"""Devices of a cluster that the lanes can evaluate."""

_HOST_THREADS = 48  # on the host: several blocks of `WARP`, the last of them not full


@dataclass(frozen=True)
class _LaunchShape:
    """How a batch is launched.

    Args:
        block: Threads of a block.
        threads: Threads of all blocks.
        most: Threads of a block and blocks of a multiprocessor at most.
    """

    block: int
    threads: int
    most: tuple[int, int]


class GpuLanes:
    """Evaluates plans of one problem that share one order of ops.

    Args:
        group: The group of each op. Plans are then the devices of groups, and ops are where
            `Problem.legalize` puts them. By default plans are the devices of ops, as they are.
        priority: The priority of each op, for all plans; the graph's order by default.
        device: `cuda`, `cuda:1`, …; `cpu` runs the same code on the host, one plan after the other.

    Raises:
        ProblemError: The problem is not one that lanes can evaluate.
        ConfigError: There is no such GPU, or the groups or priorities are not one per op.
    """

    def __init__(
        self,
        problem: Problem,
        group: ArrayLike | None = None,
        priority: ArrayLike | None = None,
        device: str | torch.device = "cuda",
    ) -> None:
        check_scope(problem)
        self.problem, self.device = problem, _find_device(device)
        a = problem.arrays
        self._rows = None if group is None else _GroupRows.of(problem, group, self.device)
        self.groups = a.ops if self._rows is None else self._rows.groups
        """Rows of a batch of plans."""
        order = None if priority is None else _order_keys(priority, a.ops)
        row = np.arange(a.ops, dtype=np.int32) if self._rows is None else self._rows.op_row
        packed = lane_arrays(a, order, row)
        self._slots = packed.pop("slots")
        self._one_channel, self._wide = packed.pop("is_one_channel"), packed.pop("is_wide")
        self._state_bytes = {
            peaks: lane_state_bytes(
                peaks, self._one_channel, 8 if self._wide else 4, a.devices, packed["channels"]
            )
            for peaks in (False, True)
        }
        self._records = torch.from_numpy(packed.pop("records")).to(self.device)
        self._fields: dict[str, Any] = {
            name: torch.from_numpy(value).to(self.device)
            if isinstance(value, np.ndarray)
            else value
            for name, value in packed.items()
        }
        self._names = lane_fields()
        self.capacity = torch.from_numpy(a.capacity.copy()).to(self.device)
        self._allowed = torch.from_numpy(a.allowed.copy()).to(self.device)
        self._unit_head = torch.from_numpy(a.unit_head.astype(np.int64)).to(self.device)
        self._buffer: torch.Tensor | None = None
        self._kernels: dict[bool, Any] = {}

    def draw(self, count: int, generator: torch.Generator) -> torch.Tensor:
        """Random plans of groups: groups × plans, every device as likely as any other.

        Args:
            generator: A generator of this device.
        """
        return torch.randint(
            self.problem.arrays.devices,
            (self.groups, count),
            dtype=torch.uint8,
            device=self.device,
            generator=generator,
        )

    def evaluate(self, places: torch.Tensor, peaks: bool = True) -> LaneVerdict:
        """Evaluate plans.

        Args:
            places: Groups × plans (or ops × plans): uint8 numbers of devices, on this device.
            peaks: Whether the peaks are wanted; without them the bounds are 0 and no limit.

        Raises:
            PlanError: The plans have another shape or type, or break a constraint.
        """
        return self._batch_of(self._legal_rows(places), peaks).evaluate()

    def make_batch(self, plans: int, peaks: bool = True) -> LaneBatch:
        """Storage of so many plans, to be filled and evaluated again and again.

        Nothing then waits for the GPU, and nothing is checked: whoever fills `LaneBatch.places`
        keeps the constraints.
        """
        places = torch.zeros((self.groups, plans), dtype=torch.uint8, device=self.device)
        if self._rows is None or self._rows.is_identity:
            return self._batch_of(places, peaks)
        return self._batch_of(self._rows.expand(places), peaks, places)

    def _batch_of(
        self, rows: torch.Tensor, peaks: bool, places: torch.Tensor | None = None
    ) -> LaneBatch:
        """The batch of plans whose rows are as the kernel reads them.

        Args:
            places: What rows are made of again before each evaluation, if they are.
        """
        plans = int(rows.shape[1])
        devices = self.problem.arrays.devices
        step_time = torch.empty(plans, dtype=torch.float32, device=self.device)
        is_tied = torch.empty(plans, dtype=torch.uint8, device=self.device)
        shape = (devices, plans if peaks else 1)
        low = torch.zeros(shape, dtype=torch.int64, device=self.device)
        high = torch.full(shape, torch.iinfo(torch.int64).max, device=self.device)
        fields = {
            **self._fields,
            "step_time": step_time,
            "is_tied": is_tied,
            "low": low,
            "high": high,
        }
        addresses = [
            value.data_ptr() if isinstance(value, torch.Tensor) else int(value)
            for value in (fields[name] for name in self._names)
        ]
        table = torch.tensor(addresses, dtype=torch.int64).to(self.device)
        launch_shape = self._launch_shape(plans, peaks)
        arrivals = self._arrivals(launch_shape.threads)
        bounds = low.expand(devices, plans), high.expand(devices, plans)
        verdict = LaneVerdict(step_time, is_tied.view(torch.bool), *bounds, self.capacity)

        def launch() -> None:
            if places is not None and self._rows is not None:
                self._rows.fill(places, rows)
            if plans:
                self._run(peaks, launch_shape, table, rows, arrivals)

        return LaneBatch(rows if places is None else places, verdict, launch)

    def _launch_shape(self, plans: int, peaks: bool) -> _LaunchShape:
        if self.device.type == "cpu":
            return _LaunchShape(WARP, min(plans, _HOST_THREADS), (WARP, 1))
        properties = torch.cuda.get_device_properties(self.device)
        most = block_size(
            self._state_bytes[peaks],
            getattr(properties, "shared_memory_per_block_optin", 48 * 1024),
            properties.shared_memory_per_multiprocessor,
        )
        block, threads = launch_size(
            plans, *most, self._slots, properties.multi_processor_count, properties.total_memory
        )
        return _LaunchShape(block, threads, most)

    def _run(
        self,
        peaks: bool,
        shape: _LaunchShape,
        table: torch.Tensor,
        rows: torch.Tensor,
        arrivals: torch.Tensor,
    ) -> None:
        plans = int(rows.shape[1])
        if self.device.type == "cpu":
            run_lane_threads(
                table.numpy(),
                self._records.data_ptr(),
                rows.data_ptr(),
                arrivals.data_ptr(),
                plans,
                shape.threads,
                peaks,
                self._one_channel,
                self._wide,
                shape.block,
            )
            return
        with torch.cuda.device(self.device):
            state = self._state_bytes[peaks]
            if peaks not in self._kernels:
                source = kernel_source(peaks, self._one_channel, self._wide, *shape.most)
                self._kernels[peaks] = compile_kernel(source, shape.most[0] * state)
            self._kernels[peaks](
                grid=(shape.threads // shape.block, 1, 1),
                block=(shape.block, 1, 1),
                args=[table, self._records, rows, arrivals, plans, shape.threads],
                shared_mem=shape.block * state,
            )

    def _legal_rows(self, places: torch.Tensor) -> torch.Tensor:
        """The plans as the kernel reads them; what it could not index is an error."""
        found = (tuple(places.shape), places.dtype, places.device.type)
        if places.ndim != 2 or found != (
            (self.groups, places.shape[1]),
            torch.uint8,
            self.device.type,
        ):
            raise PlanError(
                f"plans of shape {found[0]}, {found[1]} on {found[2]}: expected "
                f"{self.groups} × plans, torch.uint8 on {self.device.type}"
            )
        devices = self.problem.arrays.devices
        if places.numel() and int(places.max()) >= devices:
            raise PlanError(
                f"a plan names device number {int(places.max())}: expected 0 to {devices - 1}"
            )
        if self._rows is not None:
            return self._rows.expand(places)
        for plans in torch.split(places, max(1, 2**27 // max(1, len(places))), dim=1):
            allowed = self._allowed.gather(1, plans.long())
            together = plans == plans[self._unit_head]
            if not bool((allowed & together).all()):
                op = int((~(allowed & together)).any(dim=1).nonzero()[0])
                raise PlanError(
                    f"a plan breaks a constraint of op {self.problem.graph.ops[op].name!r}: keep "
                    "ops on allowed devices and units together, as Problem.legalize does"
                )
        return places.contiguous()

    def _arrivals(self, threads: int) -> torch.Tensor:
        if self._buffer is None or self._buffer.numel() < self._slots * threads:
            shape = (max(self._slots, 1) * max(threads, 1),)
            self._buffer = torch.empty(shape, dtype=torch.int32, device=self.device)
        return self._buffer


def compile_kernel(source: str, shared_bytes: int) -> Any:
    """A kernel of the lanes for the current GPU, compiled by NVRTC.

    Raises:
        ConfigError: This PyTorch cannot compile kernels.
    """
    if not hasattr(torch.cuda, "_compile_kernel"):
        raise ConfigError(
            f"PyTorch {torch.__version__} cannot compile CUDA kernels: expected 2.10 or later"
        )
    kernel = torch.cuda._compile_kernel(source, "lanes", nvcc_options=["-std=c++17"])
    kernel.set_shared_memory_config(shared_bytes)
    return kernel


def check_scope(problem: Problem) -> None:
    """Raise ProblemError unless the lanes can evaluate plans of this problem."""
    a = problem.arrays
    reasons = {
        f"its discipline is {problem.discipline!r}, not 'in order'": problem.discipline
        != "in order",
        f"its objective is {problem.objective!r}, not 'step'": problem.objective != "step",
        "devices share an issuer": bool((a.issuer >= 0).any()),
        f"it has {a.devices} devices, more than {MAX_DEVICES}": a.devices > MAX_DEVICES,
        "a channel has several senders": _has_shared_channel(a),
    }
    found = [reason for reason, holds in reasons.items() if holds]
    if found:
        raise ProblemError(
            f"lanes cannot evaluate this problem: {' and '.join(found)}; evaluate its plans with "
            "pw.judge"
        )


def _has_shared_channel(a: Arrays) -> bool:
    source, target = np.nonzero(a.channel >= 0)
    pairs = np.unique(np.stack([a.channel[source, target], source]), axis=1)
    return bool(len(np.unique(pairs[0])) < pairs.shape[1])


def _find_device(name: str | torch.device) -> torch.device:
    try:
        device = torch.device(name)
    except RuntimeError:
        raise ConfigError(f"no device is named {name!r}: expected cuda, cuda:1 or cpu") from None
    if device.type not in ("cpu", "cuda"):
        raise ConfigError(f"lanes cannot run on {name!r}: expected cuda, cuda:1 or cpu")
    if device.type == "cuda" and not torch.cuda.is_available():
        raise ConfigError(
            "no CUDA device was found: the GPU's lanes need one; plans are evaluated on the CPU "
            "without them"
        )
    return device


def _order_keys(priority: ArrayLike, ops: int) -> NDArray[np.float64]:
    keys = np.ascontiguousarray(priority, dtype=np.float64)
    if keys.shape != (ops,) or np.isnan(keys).any():
        raise ConfigError(
            f"priorities of shape {keys.shape}: expected one number for each of {ops} ops, for all "
            "plans"
        )
    return keys


@dataclass(frozen=True, eq=False)
class _GroupRows:
    """How the devices of groups become those of ops: `Problem.legalize`, group by group.

    Ops of a group that it sends to the same devices share a row.
    """

    groups: int
    op_row: NDArray[np.int32]
    row_group: torch.Tensor  # rows: the group whose device it follows
    moved: torch.Tensor  # the rows whose device is not always the group's
    moved_devices: torch.Tensor  # moved rows × devices: where it is for each device of the group
    is_identity: bool  # whether rows are groups

    @classmethod
    def of(cls, problem: Problem, group: ArrayLike, device: torch.device) -> _GroupRows:
        a = problem.arrays
        groups = np.ascontiguousarray(group, dtype=np.int64)
        if groups.shape != (a.ops,) or (groups < 0).any():
            raise ConfigError(
                f"groups of shape {groups.shape}: expected a number, 0 or more, for each of "
                f"{a.ops} ops"
            )
        devices = problem.single_device_placements().T  # ops × devices
        # An op follows the op that leads it, and with it that op's group.
        keys = np.concatenate([groups[a.leader][:, None], devices], axis=1)
        rows, op_row = np.unique(keys, axis=0, return_inverse=True)
        is_moved = (rows[:, 1:] != np.arange(a.devices)).any(axis=1)
        return cls(
            int(groups.max(initial=-1)) + 1,
            op_row.reshape(-1).astype(np.int32),
            torch.from_numpy(rows[:, 0].copy()).to(device),
            torch.from_numpy(np.flatnonzero(is_moved)).to(device),
            torch.from_numpy(rows[is_moved, 1:].astype(np.uint8)).to(device),
            not is_moved.any() and np.array_equal(rows[:, 0], np.arange(groups.max() + 1)),
        )

    def expand(self, places: torch.Tensor) -> torch.Tensor:
        """Rows × plans from groups × plans."""
        if self.is_identity:
            return places.contiguous()
        rows = places.new_empty((len(self.row_group), places.shape[1]))
        self.fill(places, rows)
        return rows

    def fill(self, places: torch.Tensor, rows: torch.Tensor) -> None:
        """Put them into a tensor."""
        torch.index_select(places, 0, self.row_group, out=rows)
        if len(self.moved):
            rows[self.moved] = self.moved_devices.gather(1, rows[self.moved].long())
