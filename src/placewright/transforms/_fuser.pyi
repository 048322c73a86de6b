import numpy as np
from numpy.typing import NDArray

class Fuser:
    def __init__(
        self,
        role: NDArray[np.int8],
        first_producer: NDArray[np.int32],
        producers: NDArray[np.int32],
        first_reader: NDArray[np.int32],
        readers: NDArray[np.int32],
    ) -> None: ...
    def fuse(
        self, device: NDArray[np.int32], urgency: NDArray[np.float64] | None, threads: int
    ) -> NDArray[np.int32]: ...
