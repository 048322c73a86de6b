"""Step sizes: how many samples and tokens one step processes, as the names of its sizes say."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

BATCH_NAMES = ("batch", "batch_size")
"""Names of the number of samples."""
LENGTH_NAMES = ("tokens", "seq", "seq_len", "seq_length", "sequence", "sequence_length")
"""Names of the number of tokens in a sample."""


def step_counts(sizes: Mapping[str, object]) -> dict[str, int]:
    """`samples` and `tokens` of a step whose sizes have these names; what is not clear is left out.

    The length of a context is none of them: a step of decode has a long one and makes one token.
    """
    samples = _first_size(sizes, BATCH_NAMES)
    length = _first_size(sizes, LENGTH_NAMES)
    counts = {} if samples is None else {"samples": samples}
    if samples is not None and length is not None:
        counts["tokens"] = samples * length
    return counts


def _first_size(sizes: Mapping[str, object], names: tuple[str, ...]) -> int | None:
    for name in names:
        size = sizes.get(name)
        if isinstance(size, int) and not isinstance(size, bool) and size > 0:
            return size
    return None
