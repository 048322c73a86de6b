"""Captures a function of GPU tensors in a CUDA graph; where that fails, it is called as it is."""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING, Generic, TypeVar

import torch

if TYPE_CHECKING:
    from collections.abc import Callable

Result = TypeVar("Result")

_WARM_UPS = 2  # calls before the capture: they load kernels and make the optimizer's state


class CapturedFunction(Generic[Result]):
    """A function without arguments that reads and writes the same tensors at each call.

    Its first calls run it as it is, the next one captures it, and all others replay the graph. The
    result is then always the same tensors, with new values.

    Args:
        captures: Whether to capture it at all; never on a CPU.
    """

    def __init__(
        self, function: Callable[[], Result], device: torch.device, captures: bool = True
    ) -> None:
        self.function = function
        self.captures = captures and device.type == "cuda"
        self.error = ""
        """Why the capture failed; empty if it did not."""
        self._calls = 0
        self._graph: torch.cuda.CUDAGraph | None = None
        self._result: Result | None = None

    @property
    def is_captured(self) -> bool:
        """Whether calls replay a graph."""
        return self._graph is not None

    def reset(self) -> None:
        """Forget the graph: tensors that it reads have moved."""
        self._graph, self._result, self._calls = None, None, 0

    def __call__(self, may_capture: bool = True) -> Result:
        """Run it, in the order of the current stream.

        Args:
            may_capture: Whether it reads the same tensors from now on.
        """
        is_warm = self._calls >= _WARM_UPS
        if self._graph is None and self.captures and is_warm and may_capture:
            self._capture()
        if self._graph is not None:
            self._graph.replay()
            assert self._result is not None
            return self._result
        self._calls += 1
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message=".*capturable=True.*")
            return self.function()

    def _capture(self) -> None:
        graph = torch.cuda.CUDAGraph()
        try:
            torch.cuda.synchronize()
            with torch.cuda.graph(graph):
                result = self.function()
        except (RuntimeError, AssertionError) as error:
            self.captures = False
            self.error = " ".join(str(error).split())[:2000]
            torch.cuda.synchronize()
            return
        self._graph, self._result = graph, result
