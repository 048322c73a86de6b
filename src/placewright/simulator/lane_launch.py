"""Says how the lane kernel is launched on a GPU: its source, its blocks, its threads."""

from __future__ import annotations

from placewright.errors import ProblemError
from placewright.simulator._kernel import lane_source

WARP = 32
_BLOCKS = (256, 128, 64, WARP)  # threads of a block: the most that have room for their state
_MULTIPROCESSOR_THREADS = 1024  # by the registers: 64 a thread
_SHARED_RESERVE = 1024  # bytes of shared memory that CUDA takes of each block
_BUFFER_SHARE = 0.25  # of the GPU's memory, for arrivals on their way


def block_size(state_bytes: int, block_shared: int, multiprocessor_shared: int) -> tuple[int, int]:
    """Threads of a block, and blocks of a multiprocessor.

    Args:
        state_bytes: Of a thread, in shared memory.
        block_shared: Shared memory that one block may have.
        multiprocessor_shared: Shared memory of a multiprocessor.

    Raises:
        ProblemError: Not even one warp has room for its state.
    """
    blocks = {
        block: min(
            multiprocessor_shared // (block * state_bytes + _SHARED_RESERVE),
            _MULTIPROCESSOR_THREADS // block,
        )
        for block in _BLOCKS
        if block * state_bytes <= block_shared
    }
    if not any(blocks.values()):
        raise ProblemError(
            f"a plan's state has {state_bytes:,} bytes, and {WARP} of them do not fit the "
            f"{block_shared:,} bytes of shared memory of a block: the cluster has too many "
            "devices and channels for this GPU"
        )
    return max(blocks.items(), key=lambda item: item[0] * item[1])


def launch_size(
    plans: int, block: int, blocks: int, slots: int, multiprocessors: int, memory: int
) -> tuple[int, int]:
    """Threads of a block, and of all blocks together; all of them are resident at a time.

    Every thread has the same number of plans, but for the last: a few threads with one plan more
    would keep the others waiting. Few plans are spread over all multiprocessors.

    Args:
        block: Threads that a block has at most.
        blocks: Blocks that a multiprocessor has at most.
        slots: Arrivals that a thread stores, of 4 bytes each.
        memory: Bytes of the GPU, of which arrivals take a share at most.
    """
    most = min(multiprocessors * blocks * block, int(memory * _BUFFER_SHARE) // (4 * max(slots, 1)))
    rounds = max(1, -(-plans // max(most, WARP)))
    threads = max(1, -(-plans // rounds))
    block = min(block, -(-threads // multiprocessors // WARP) * WARP)
    return block, -(-threads // block) * block


def kernel_source(peaks: bool, one_channel: bool, wide: bool, block: int, blocks: int) -> str:
    """CUDA source of one of the kernels."""
    defines = {
        "PEAKS": str(peaks).lower(),
        "ONE_CHANNEL": str(one_channel).lower(),
        "COUNT": "unsigned long long" if wide else "unsigned int",
        "BLOCK": block,
        "BLOCKS": blocks,
    }
    lines = [f"#define PLACEWRIGHT_{name} {value}" for name, value in defines.items()]
    return "\n".join([*lines, lane_source()])
