from typing import Any

import numpy as np
from numpy.typing import NDArray

from placewright.arrays import Arrays

class Kernel:
    def __init__(self, arrays: Arrays) -> None: ...
    def judge(
        self,
        device: NDArray[np.int32],
        priority: NDArray[np.float64] | None,
        staging: NDArray[np.int64] | None,
        in_order: bool,
        overlap: bool,
        step: bool,
        period: bool,
        threads: int,
    ) -> tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.int64]]: ...
    def timeline(
        self,
        device: NDArray[np.int32],
        priority: NDArray[np.float64] | None,
        staging: NDArray[np.int64] | None,
        in_order: bool,
    ) -> dict[str, Any]: ...
