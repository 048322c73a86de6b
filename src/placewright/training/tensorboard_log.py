"""Writes a trainer's log as TensorBoard event files."""

from __future__ import annotations

import math
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from placewright.errors import MissingDependency

if TYPE_CHECKING:
    from pathlib import Path

    from placewright.training.trainer import Trainer

_SCALARS = {
    "best": "step time/best",
    "mean": "step time/mean of sampled plans",
    "greedy": "step time/argmax plan",
    "entropy": "policy/entropy share",
    "infeasible": "policy/infeasible share",
    "gradient": "policy/gradient norm",
    "rate": "policy/learning rate",
}


class TensorboardLog:
    """Writes each update's figures, by the number of plans judged; imitation by updates.

    Raises:
        MissingDependency: TensorBoard is not installed.
    """

    def __init__(self, folder: Path, first_plan: int = 0) -> None:
        try:
            from torch.utils.tensorboard import SummaryWriter
        except ImportError:
            raise MissingDependency("tensorboard", "track") from None
        # Drop what an interrupted run wrote after its last checkpoint.
        self._writer: Any = SummaryWriter(str(folder), purge_step=first_plan + 1)

    def __call__(self, trainer: Trainer) -> None:
        row = trainer.log[-1]
        if row.phase == trainer.hooks.pretraining:
            for name, value in row.stats.items():
                self._writer.add_scalar(f"{row.phase}/{name}", value, row.update)
            return
        figures = asdict(row)
        for name, title in _SCALARS.items():
            if math.isfinite(figures[name]):
                self._writer.add_scalar(title, figures[name], figures["plans"])

    def close(self) -> None:
        """Write what is buffered."""
        self._writer.close()
