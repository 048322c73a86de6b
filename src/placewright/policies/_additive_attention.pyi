import numpy as np
from numpy.typing import NDArray

BLOCK: int
"""Keys of a block."""

def scores(
    query: NDArray[np.float32],
    key: NDArray[np.float32],
    match: NDArray[np.float32],
    row_of: NDArray[np.int64],
    keys: int,
) -> NDArray[np.float32]:
    """Episodes × steps × keys, of e^2q and of e^2k in blocks (`additive_attention.py`)."""

def gradients(
    query: NDArray[np.float32],
    key: NDArray[np.float32],
    match: NDArray[np.float32],
    row_of: NDArray[np.int64],
    score_gradient: NDArray[np.float32],
) -> tuple[NDArray[np.float32], NDArray[np.float32], NDArray[np.float32]]:
    """Gradients of q, of k in blocks, and of match."""
