from typing import Any

import numpy as np
from numpy.typing import NDArray

from placewright.arrays import Arrays
from placewright.costs import FusedParts

_Rows = tuple[NDArray[np.int32], NDArray[np.float64] | None, NDArray[np.int64] | None]

class Blocks: ...

class ScoutNet:
    widths: list[int]
    weights: list[float]
    sharpness: float
    candidates: int
    blind: bool

class WalkSettings:
    evaluations: int
    hot: float
    cold: float
    penalty: float
    doublings: int
    in_order: bool
    period: bool
    overlap: bool
    guided: float
    change_share: list[float]
    level_share: list[float]
    capacity: list[int]
    kept_back: list[int]
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
    def learn_fused(
        self, parts: FusedParts, reads: NDArray[np.int64], role: NDArray[np.int8]
    ) -> None: ...
    @property
    def knows_fused(self) -> bool: ...
    def blocks(
        self, first: NDArray[np.int32], units: NDArray[np.int32], level: NDArray[np.int32]
    ) -> Blocks: ...
    def walk(
        self,
        blocks: Blocks,
        settings: WalkSettings,
        device: NDArray[np.int32],
        priority: NDArray[np.float64] | None,
        staging: NDArray[np.int64] | None,
        seeds: list[int],
        likely: NDArray[np.float64] | None = None,
    ) -> tuple[_Rows, _Rows, NDArray[np.int64], NDArray[np.float64]]: ...
    def sample_moves(
        self,
        blocks: Blocks,
        settings: WalkSettings,
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
