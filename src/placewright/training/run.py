"""A training run in a folder: trains, saves checkpoints, resumes, and serves as a solver."""

from __future__ import annotations

import math
import signal
import threading
import time
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

from placewright import policies
from placewright.errors import FileError
from placewright.files.storage import make_folder
from placewright.logs import log_duration
from placewright.policies.tensor_files import clear_orphans
from placewright.training.checkpoints import (
    checkpoint_policy,
    read_checkpoint,
    restore,
    save_checkpoint,
)
from placewright.training.clock import SimulatorClock
from placewright.training.policy_solver import GoPolicySolver, PolicySolver

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from pathlib import Path

    from placewright.policies.go.policy import Go
    from placewright.solvers import Solver
    from placewright.training.trainer import Trainer

CHECKPOINT_FILE, POLICY_FILE = "checkpoint.json", "policy.json"
"""The files of a run's folder: the trainer's state, and the policy alone."""


def load_solver(folder: Path) -> Solver:
    """A solver that places with the trained policy of a run.

    Raises:
        FileError: The folder keeps no run, or a damaged one.
    """
    data, tensors = read_checkpoint(folder / CHECKPOINT_FILE)
    try:
        policy = checkpoint_policy(data, tensors)
    except FileError as error:
        raise FileError(f"{folder / CHECKPOINT_FILE}: {error}") from None
    policy.use_clock(SimulatorClock())
    if policy.name == "go":
        return GoPolicySolver(policy=cast("Go", policy))
    return PolicySolver(str(data.get("recipe", policy.name)), policy=policy)


@dataclass(frozen=True, eq=False)
class TrainingRun:
    """A training run that keeps its state in a folder.

    Args:
        metadata: Plain data to keep with each checkpoint.
        save_interval: Seconds between checkpoints; another one is written at the end.
    """

    trainer: Trainer
    folder: Path
    metadata: Mapping[str, Any]
    save_interval: float = 30.0

    @property
    def path(self) -> Path:
        return self.folder / CHECKPOINT_FILE

    def train(
        self,
        on_update: Callable[[Trainer], None] | None = None,
        max_seconds: float = math.inf,
    ) -> bool:
        """Train to the end of the budget, or until an interrupt; the state is saved either way.

        The first interrupt ends training after the current update, a second one at once; the saved
        state is always the end of an update.

        Args:
            max_seconds: Seconds after which training ends with the update under way, as after an
                interrupt; another call goes on.

        Returns:
            Whether the budget is used.
        """
        saved = started = time.monotonic()

        def after_update(trainer: Trainer) -> bool:
            nonlocal saved
            if on_update is not None:
                on_update(trainer)
            if time.monotonic() - saved >= self.save_interval:
                self.save()
                saved = time.monotonic()
            return not interrupted.is_set() and time.monotonic() - started < max_seconds

        with catch_interrupts() as interrupted:
            make_folder(self.folder)
            clear_orphans([self.path, self.folder / POLICY_FILE])
            if not self.path.exists():
                self.save()  # so that a run that is killed before long can be resumed
            with log_duration(f"training {self.trainer.recipe.name} in {self.folder}"):
                self.trainer.run(after_update)
            self.save()
            policies.save(self.trainer.policy, self.folder / POLICY_FILE)
        return self.trainer.finished

    def save(self) -> None:
        """Write a checkpoint."""
        save_checkpoint(self.trainer, self.path, self.metadata)

    def resume(self) -> None:
        """Continue from the folder's last checkpoint.

        Raises:
            FileError: There is none, it is damaged, or of another run.
        """
        data, tensors = read_checkpoint(self.path)
        try:
            restore(self.trainer, data, tensors)
        except FileError as error:
            raise FileError(f"{self.path}: {error}") from None


@contextmanager
def catch_interrupts() -> Iterator[threading.Event]:
    """An event that the first Ctrl-C sets instead of raising; the second one raises."""
    interrupted = threading.Event()
    if threading.current_thread() is not threading.main_thread():
        yield interrupted  # the main thread handles signals as before
        return
    previous_handler = signal.getsignal(signal.SIGINT)

    def on_interrupt(number: int, frame: Any) -> None:
        interrupted.set()
        signal.signal(signal.SIGINT, previous_handler)

    signal.signal(signal.SIGINT, on_interrupt)
    try:
        yield interrupted
    finally:
        signal.signal(signal.SIGINT, previous_handler)
