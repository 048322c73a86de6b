from typing import Any

import numpy as np
from numpy.typing import NDArray

from placewright.costs import FusedParts
from placewright.problem_arrays import Arrays

_PlanArrays = tuple[NDArray[np.int32], NDArray[np.float64] | None, NDArray[np.int64] | None]

def lane_arrays(
    arrays: Arrays, priority: NDArray[np.float64] | None, row: NDArray[np.int32]
) -> dict[str, Any]: ...
def lane_fields() -> list[str]: ...
def lane_source() -> str: ...
def lane_state_bytes(
    peaks: bool, one_channel: bool, count_bytes: int, devices: int, channels: int
) -> int: ...
def run_lane_threads(
    table: NDArray[np.int64],
    records: int,
    place: int,
    arrival: int,
    plans: int,
    threads: int,
    peaks: bool,
    one_channel: bool,
    wide: bool,
    block: int,
) -> None: ...

class MoveBlocks: ...

class ScoutNet:
    widths: list[int]
    weights: list[float]
    sharpness: float
    candidates: int
    blind: bool

class AnnealingSettings:
    evaluations: int
    hot: float
    cold: float
    penalty: float
    doublings: int
    in_order: bool
    period: bool
    overlap: bool
    simulate_memory: bool
    overflow_first: bool
    guided_share: float
    move_share: list[float]
    level_share: list[float]
    capacity: list[int]
    memory_margin: list[int]
    scout: ScoutNet

class Kernel:
    def __init__(self, arrays: Arrays) -> None: ...
    def judge(
        self,
        device: NDArray[np.int32],
        priority: NDArray[np.float64] | None,
        staging: NDArray[np.int64] | None,
        fusion: NDArray[np.int32] | None,
        in_order: bool,
        overlap: bool,
        step: bool,
        period: bool,
        threads: int,
    ) -> tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.int64]]: ...
    @property
    def has_lanes(self) -> bool: ...
    def judge_lanes(
        self,
        device: NDArray[np.int32],
        priority: NDArray[np.float64] | None,
        capacity: NDArray[np.int64] | None,
        bounds: bool,
        threads: int,
    ) -> tuple[
        NDArray[np.float64], NDArray[np.int64], NDArray[np.int64], NDArray[np.int64], int
    ]: ...
    def set_fused_parts(
        self, parts: FusedParts, reads: NDArray[np.int64], role: NDArray[np.int8]
    ) -> None: ...
    @property
    def has_fused_parts(self) -> bool: ...
    def move_blocks(
        self, first: NDArray[np.int32], units: NDArray[np.int32], level: NDArray[np.int32]
    ) -> MoveBlocks: ...
    def anneal(
        self,
        blocks: MoveBlocks,
        settings: AnnealingSettings,
        device: NDArray[np.int32],
        priority: NDArray[np.float64] | None,
        staging: NDArray[np.int64] | None,
        seeds: list[int],
        device_probs: NDArray[np.float64] | None = None,
    ) -> tuple[_PlanArrays, _PlanArrays, NDArray[np.int64], NDArray[np.float64]]: ...
    def sample_moves(
        self,
        blocks: MoveBlocks,
        settings: AnnealingSettings,
        device: NDArray[np.int32],
        priority: NDArray[np.float64] | None,
        count: int,
        seed: int,
    ) -> tuple[NDArray[np.float32], NDArray[np.float64]]: ...
    def timeline(
        self,
        device: NDArray[np.int32],
        priority: NDArray[np.float64] | None,
        staging: NDArray[np.int64] | None,
        in_order: bool,
    ) -> dict[str, Any]: ...
