"""Limits of GPU memory in the backward pass of a call that runs eagerly.

A program calls `backward` after the call, outside of it. A hook on the autograd node of every
output of a function caps the allocators when a backward pass first reaches one; the caps end with
that pass, also where it fails.
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any
from weakref import WeakValueDictionary

import torch

if TYPE_CHECKING:
    from collections.abc import Callable

_HOOKED = "placewright.cap"  # marks nodes that have the hook


class BackwardLimits:
    """Caps the backward passes that reach some functions.

    Args:
        new_caps: Makes the caps of one backward pass.
    """

    def __init__(self, new_caps: Callable[[], contextlib.AbstractContextManager[None]]) -> None:
        self.new_caps = new_caps
        self._passes: WeakValueDictionary[int, _Pass] = WeakValueDictionary()

    def watch(self, outputs: Any) -> None:
        """Cap the backward passes that reach these outputs of a function."""
        if isinstance(outputs, torch.Tensor):
            node: Any = outputs.grad_fn
            if node is not None and _HOOKED not in node.metadata:
                node.metadata[_HOOKED] = True
                node.register_prehook(self._begin)
        elif isinstance(outputs, list | tuple):
            for output in outputs:
                self.watch(output)

    def _begin(self, _: object) -> None:
        """Cap the backward pass of this thread, if it is not yet."""
        number = torch._C._current_graph_task_id()
        if number not in self._passes:
            this_pass = self._passes[number] = _Pass(self.new_caps())
            engine: Any = torch.autograd.Variable._execution_engine
            engine.queue_callback(this_pass.end)


class _Pass:
    """A backward pass under caps; only the autograd engine holds it, as long as the pass lasts."""

    def __init__(self, caps: contextlib.AbstractContextManager[None]) -> None:
        self._stack = contextlib.ExitStack()
        self._stack.enter_context(caps)

    def end(self) -> None:
        self._stack.close()

    def __del__(self) -> None:  # the engine drops the callback of a pass that fails
        self.end()
