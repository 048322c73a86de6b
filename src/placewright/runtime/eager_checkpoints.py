"""Lets checkpoints of eager calls run again in the backward pass as they ran first.

One runs its function again after the call, maybe in another thread, where no placement is active:
it would find weights on several devices. And it stores the random states of its arguments' devices,
not of those where its functions run. PyTorch's functions of checkpoints are replaced as long as a
thread is inside a block; in other threads they do what PyTorch's do.
"""

from __future__ import annotations

import contextlib
import threading
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch.utils import checkpoint

from placewright.runtime.eager_fallback import EagerPlacement

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence


@dataclass(frozen=True)
class _Scope:
    """A block inside which checkpoints are made.

    Args:
        new_placement: Makes a placement of its own for a second run.
        on_gpus: A tensor on each GPU of the placement.
    """

    new_placement: Callable[[], EagerPlacement]
    on_gpus: Sequence[torch.Tensor]

    def under_placement(self, function: Any) -> Any:
        """The function, under a placement also where it runs again."""

        def run(*values: Any, **named: Any) -> Any:
            overrides: Any = torch.overrides
            modes = overrides._get_current_function_mode_stack()
            if any(isinstance(mode, EagerPlacement) for mode in modes):
                return function(*values, **named)
            with self.new_placement():
                return function(*values, **named)

        return run


class _Patches:
    """PyTorch's functions of checkpoints, replaced while any thread is inside a block."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._count = 0  # of blocks, in all threads
        self._thread = threading.local()
        self._originals: list[tuple[Any, str, Any]] = []

    @property
    def _scopes(self) -> list[_Scope]:
        """The blocks of this thread, the inmost last."""
        scopes: list[_Scope] = self._thread.__dict__.setdefault("scopes", [])
        return scopes

    @contextlib.contextmanager
    def inside(self, scope: _Scope) -> Iterator[None]:
        with self._lock:
            if not self._count:
                self._install()
            self._count += 1
        self._scopes.append(scope)
        try:
            yield
        finally:
            self._scopes.pop()
            with self._lock:
                self._count -= 1
                if not self._count:
                    self._remove()

    def _install(self) -> None:
        module: Any = checkpoint
        kind: Any = checkpoint.CheckpointFunction
        apply, generate = kind.apply, module._checkpoint_without_reentrant_generator
        get_states, infer_type = module.get_device_states, module._infer_device_type

        def apply_under_placement(function: Any, *args: Any) -> Any:
            scopes = self._scopes
            return apply(scopes[-1].under_placement(function) if scopes else function, *args)

        def generate_under_placement(function: Any, *args: Any, **named: Any) -> Any:
            scopes = self._scopes
            if scopes and scopes[-1].on_gpus:
                function = scopes[-1].under_placement(function)
            return generate(function, *args, **named)

        def get_states_of_gpus(*args: Any) -> Any:
            return get_states(*self._tensors_on_gpus(args))

        def infer_type_of_gpus(*args: Any) -> Any:
            return infer_type(*self._tensors_on_gpus(args))

        replacements = (
            (kind, "apply", apply_under_placement),
            (module, "_checkpoint_without_reentrant_generator", generate_under_placement),
            (module, "get_device_states", get_states_of_gpus),
            (module, "_infer_device_type", infer_type_of_gpus),
        )
        for owner, name, function in replacements:
            self._originals.append((owner, name, vars(owner).get(name)))
            setattr(owner, name, function)

    def _tensors_on_gpus(self, args: Sequence[Any]) -> Sequence[Any]:
        """What tells devices to PyTorch: a tensor on each GPU, else a checkpoint's arguments."""
        scopes = self._scopes
        return scopes[-1].on_gpus if scopes and scopes[-1].on_gpus else args

    def _remove(self) -> None:
        while self._originals:
            owner, name, function = self._originals.pop()
            if function is None:  # it is inherited
                delattr(owner, name)
            else:
                setattr(owner, name, function)


_patches = _Patches()


@contextlib.contextmanager
def rerun_checkpoints(
    new_placement: Callable[[], EagerPlacement], gpus: Iterable[torch.device] = ()
) -> Iterator[None]:
    """Let checkpoints that this thread makes inside the block run again as they ran first.

    Args:
        new_placement: Makes a placement of its own for a second run.
        gpus: The GPUs of the placement.
    """
    scope = _Scope(new_placement, [torch.empty(0, device=gpu) for gpu in gpus])
    with _patches.inside(scope):
        yield
