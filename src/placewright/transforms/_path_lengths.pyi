import numpy as np
from numpy.typing import NDArray

class PathKernel:
    def __init__(
        self,
        source: NDArray[np.int32],
        reader: NDArray[np.int32],
        tensor: NDArray[np.int32],
        seconds: NDArray[np.float64],
        link_class: NDArray[np.int32],
        transfer: NDArray[np.float64],
    ) -> None: ...
    def longest(self, device: NDArray[np.int32]) -> NDArray[np.float64]: ...
    def shortest(self, device: NDArray[np.int32]) -> NDArray[np.float64]: ...
