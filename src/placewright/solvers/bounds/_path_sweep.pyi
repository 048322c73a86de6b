import numpy as np
from numpy.typing import NDArray

def earliest_begins(
    first_edge: NDArray[np.int64],
    parents: NDArray[np.int64],
    tensors: NDArray[np.int64],
    seconds: NDArray[np.float64],
    min_cost: NDArray[np.float64],
    scheduled: NDArray[np.uint8],
    transfer_row: NDArray[np.int64],
    transfer: NDArray[np.float64],
    window: int,
    forbidden_seconds: float,
) -> NDArray[np.float64]:
    """Ops × groups: no plan begins an op earlier there (`longest_path.py`)."""
