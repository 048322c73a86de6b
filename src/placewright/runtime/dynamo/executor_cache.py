"""The executors of a model's graphs: the latest few are kept, and one runs at a time.

So they share staging buffers, the streams of GPUs and a lock.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from typing import TYPE_CHECKING

from placewright.runtime.callbacks import weak_callback
from placewright.runtime.staging_buffers import StagingBuffers

if TYPE_CHECKING:
    import torch

    from placewright.runtime.cuda.streams import DeviceStreams
    from placewright.runtime.dynamo.compiled_graph import CompiledGraph

MAX_EXECUTORS = 8
"""How many graphs of a model have an executor, with its threads and buffers, at a time."""


class ExecutorCache:
    """Which graphs have an executor.

    Args:
        staging_sizes: Bytes of the largest staging buffer that a plan has on each device.
    """

    def __init__(self, staging_sizes: dict[str, int]) -> None:
        self.lock = threading.RLock()  # one graph of a model runs at a time
        self.staging_buffers = StagingBuffers(staging_sizes)
        self.staging_buffers.on_replace = weak_callback(self.close_all)
        self.streams: dict[str, DeviceStreams] = {}
        self._graphs: OrderedDict[int, CompiledGraph] = OrderedDict()  # the latest used last

    def __len__(self) -> int:
        return len(self._graphs)

    def replan(self, staging_sizes: dict[str, int]) -> None:
        """Note the sizes of another plan; all executors are closed."""
        self.staging_buffers.clear()
        self.staging_buffers.sizes = staging_sizes

    def resident_tensors(self) -> list[torch.Tensor]:
        """The tensors that executors hold from one step to the next."""
        executors = [graph.executor for graph in self._graphs.values() if graph.executor]
        return [
            value for executor in executors for held in executor.resident for value in held.values()
        ]

    def use(self, graph: CompiledGraph) -> None:
        """Note that a graph runs now; others end their steps, since they share staging buffers."""
        for other in self._graphs.values():
            if other is not graph and other.executor is not None:
                other.executor.finish_steps()
        self._graphs[id(graph)] = graph
        self._graphs.move_to_end(id(graph))

    def evict(self) -> None:
        """Close the executors that were used the longest ago, where there are too many."""
        while len(self._graphs) >= MAX_EXECUTORS:
            self._graphs.popitem(last=False)[1].close()

    def close_others(self, graph: CompiledGraph) -> None:
        """Close all executors but one; the next calls make theirs again."""
        for other in self._graphs.values():
            if other is not graph:
                other.close()

    def close_all(self) -> None:
        """End the steps of all executors and close them; the next calls make theirs again."""
        for graph in self._graphs.values():
            if graph.executor is not None:
                graph.executor.finish_steps()
            graph.close()

    def forget(self, graph: CompiledGraph) -> None:
        """Forget a graph whose executor was closed."""
        self._graphs.pop(id(graph), None)
