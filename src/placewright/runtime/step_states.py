"""States of a step: tensors that a call passes and changes, such as buffers and caches.

CUDA graphs change a state at the address that it had when they were captured. If a later call
passes another tensor, its data go there and come back after the step. That memory may be a tensor
of an earlier caller, whose data must be there again when the step ends.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from placewright.graph import Tensor
    from placewright.runtime.real_devices import RealDevice


@dataclass(frozen=True)
class StepStates:
    """The states of one step.

    Args:
        tensors: Each state as the caller passed it, and as the step changes it.
        borrowed: Memory of earlier callers that the step uses, each with the data to restore.
    """

    tensors: Sequence[tuple[torch.Tensor, torch.Tensor]] = ()
    borrowed: Sequence[tuple[torch.Tensor, torch.Tensor]] = ()

    def write_back(self) -> None:
        """Copy changed states to the caller's tensors, and restore borrowed memory."""
        changed = [
            (original, local.clone() if self.borrowed else local)  # which might be restored first
            for original, local in self.tensors
            if local.data_ptr() != original.data_ptr()
        ]
        self.restore()
        for original, value in changed:
            original.copy_(value)

    def restore(self) -> None:
        """Restore borrowed memory, without a mark that it was changed."""
        for memory, data in self.borrowed:
            memory.data.copy_(data)


class StateMemory:
    """Where the states of a program are from step to step.

    Args:
        placement: The device of every op.
    """

    def __init__(self, placement: Sequence[int], real_devices: Sequence[RealDevice]) -> None:
        self._placement, self._real_devices = placement, real_devices
        self._owned: set[int] = set()  # states whose memory is no caller's

    def begin_step(
        self,
        tensors: Mapping[int, torch.Tensor],
        resident: Sequence[dict[Tensor, torch.Tensor]],
        fixed: bool,
    ) -> StepStates:
        """Put the states of a step where it changes them.

        Args:
            tensors: The caller's tensors, by position.
            resident: The tensors that each device stores, where the states are put.
            fixed: Whether CUDA graphs exist, which change states at fixed addresses.
        """
        states, moves = [], []
        for position, original in tensors.items():
            device, key = self._placement[position], (position, 0)
            local = self._on_device(original, device)
            captured = resident[device].get(key)
            if fixed and captured is not None and captured.shape == local.shape:
                if captured.data_ptr() != local.data_ptr():
                    # A copy: another state's data may be about to be put into this memory.
                    moves.append((position, captured, local.clone()))
                local = captured
            elif local.data_ptr() == original.data_ptr():
                self._owned.discard(position)
            else:
                self._owned.add(position)
            resident[device][key] = local
            states.append((original, local))
        borrowed = [
            (memory, memory.clone()) for position, memory, _ in moves if position not in self._owned
        ]
        for _, memory, value in moves:
            memory.data.copy_(value)
        return StepStates(states, borrowed)

    def borrows(
        self, tensors: Mapping[int, torch.Tensor], resident: Sequence[dict[Tensor, torch.Tensor]]
    ) -> bool:
        """Whether a step of CUDA graphs on these states would use memory of an earlier caller."""
        for position, original in tensors.items():
            captured = resident[self._placement[position]].get((position, 0))
            if captured is None or position in self._owned or captured.shape != original.shape:
                continue
            if captured.data_ptr() != original.data_ptr():
                return True
        return False

    def _on_device(self, state: torch.Tensor, device: int) -> torch.Tensor:
        local = state.detach().to(self._real_devices[device].torch_name)
        if local.is_inference() and not self._real_devices[device].is_gpu:
            with torch.inference_mode(False):  # or a worker could not write to it
                return local.clone()
        return local
