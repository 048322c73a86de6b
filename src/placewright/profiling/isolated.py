"""An op of a program in, its seconds and its workspace out when it is called again and again alone.

With tensors that are as cold as in a step.
"""

from __future__ import annotations

import math
from collections import deque
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from placewright.graph import VIEW
from placewright.profiling.op_signatures import in_place
from placewright.runtime.machine import load_torch

if TYPE_CHECKING:
    from collections.abc import Callable

    from placewright.graph import Op
    from placewright.profiling.cache_model import Coldness
    from placewright.profiling.sites import Site
    from placewright.profiling.timing import Timing
    from placewright.runtime.program.program import Program

MOST_COPIES, MOST_BYTES = 256, 1 << 30
"""Of what an op is given in turn, so that none is still in a cache from last time."""
FREE = 3
"""How many more of what an op makes there is room for."""


def measure_op(
    program: Program, position: int, site: Site, seconds: float, cold: Coldness
) -> Timing:
    """Time one op of a program; to be called within `site.run`.

    Of what is cold in a real step there are copies to go through, and one of all else; and what the
    op makes is kept for a while where a step keeps it, so that the next call writes elsewhere.
    """
    run = program.runner(position, site.device, in_place(program, position))
    sets = _inputs(program, position, site, cold)
    kept = _kept(program.graph.ops[position], site, run(sets[0])) if cold.outputs else None

    def call(at: int) -> None:
        made = run(sets[at % len(sets)])
        if kept is not None:
            kept.append(made)

    took = site.time(call, seconds, as_in_step=True)
    if site.on_gpu and program.graph.ops[position].kind == VIEW:
        return replace(took, seconds=0.0)  # the GPU has nothing to do
    if site.on_gpu:
        return replace(took, workspace=_workspace(lambda: run(sets[0]), site))
    return took


def _workspace(call: Callable[[], Any], site: Site) -> int:
    """Bytes of a GPU that a call needs beside what it returns, such as cuDNN's."""
    torch = load_torch()
    torch.cuda.synchronize(site.index)
    torch.cuda.reset_peak_memory_stats(site.index)
    before = torch.cuda.memory_allocated(site.index)
    made = call()
    torch.cuda.synchronize(site.index)
    peak, after = (
        torch.cuda.max_memory_allocated(site.index),
        torch.cuda.memory_allocated(site.index),
    )
    del made
    return max(0, int(peak - max(after, before)))


def _kept(op: Op, site: Site, made: Any) -> deque[Any] | None:
    """Room for what an op makes, many times over, touched once; none where it makes nothing."""
    size = sum(op.outputs)
    if not size or op.aliases:
        return None
    count = _copies(size, site)
    # More than are kept: the first call writes to free ones, and may need some for itself.
    return deque(([_room(one) for one in made] for _ in range(count + FREE)), maxlen=count)


def _room(value: Any) -> Any:
    """Memory for another such tensor: an allocator needs some beside it, and gives some away."""
    torch = load_torch()
    size = value.untyped_storage().nbytes()
    return torch.empty(size + size // 32 + 4096, dtype=torch.uint8, device=value.device).fill_(0)


def _copies(size: int, site: Site) -> int:
    """How many of so many bytes it takes until none is in a cache when its turn comes again."""
    return max(1, min(MOST_COPIES, math.ceil(2 * site.cache / size), MOST_BYTES // size))


def _inputs(program: Program, position: int, site: Site, coldness: Coldness) -> list[list[Any]]:
    """What an op reads, several times over."""
    from placewright.profiling.sample_inputs import (
        distinct,
        index_limits,
        sample,
    )

    graph = program.graph
    op, node = graph.ops[position], program.draft.made_by.get(position)
    limits: dict[int, int] = {}
    if node is not None:
        for source, limit in index_limits(node).items():
            place_of = program.draft.place.get(source)
            if place_of and place_of[0] in op.inputs:
                limits[op.inputs.index(place_of[0])] = limit
    once = node is not None and distinct(node)
    cold = [at for at, one in enumerate(coldness.inputs) if one]
    size = sum(graph.ops[op.inputs[at][0]].outputs[op.inputs[at][1]] for at in cold)
    copies = _copies(size, site) if size else 1

    def one(at: int) -> Any:
        return sample(program.values[op.inputs[at]], site.device, limits.get(at), once)

    first = [one(at) for at in range(len(op.inputs))]
    more = [
        [_another(first[at]) if at in cold else first[at] for at in range(len(first))]
        for _ in range(copies - 1)
    ]
    return [first, *more]


def _another(value: Any) -> Any:
    """The same tensor elsewhere, strides and what lies between included; drawing takes longer."""
    whole = value.as_strided((value.untyped_storage().nbytes() // value.element_size(),), (1,), 0)
    return whole.clone().as_strided(value.shape, value.stride())
