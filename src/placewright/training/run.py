"""A training run in a folder: trains, checkpoints on the way, and resumes."""

from __future__ import annotations

import signal
import threading
import time
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from placewright.errors import FileError
from placewright.training.checkpoints import read_checkpoint, restore, save_checkpoint

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from pathlib import Path

    from placewright.training.trainer import Trainer

CHECKPOINT_FILE = "checkpoint.json"


@dataclass(frozen=True, eq=False)
class TrainingRun:
    """A training run that leaves its state in a folder.

    Args:
        metadata: Plain data to keep with each checkpoint.
        save_interval: Seconds between checkpoints; one is written at the end in any case.
    """

    trainer: Trainer
    folder: Path
    metadata: Mapping[str, Any]
    save_interval: float = 30.0

    @property
    def path(self) -> Path:
        return self.folder / CHECKPOINT_FILE

    def train(self, on_update: Callable[[Trainer], None] | None = None) -> bool:
        """Train to the end, or until a person interrupts; the state is saved either way.

        An interrupt is heard after the update under way, a second one at once; what is saved is
        always the end of an update.

        Returns:
            Whether training came to its end.
        """
        saved = time.monotonic()

        def after_update(trainer: Trainer) -> bool:
            nonlocal saved
            if on_update is not None:
                on_update(trainer)
            if time.monotonic() - saved >= self.save_interval:
                self.save()
                saved = time.monotonic()
            return not interrupted.is_set()

        with catch_interrupts() as interrupted:
            try:
                self.folder.mkdir(parents=True, exist_ok=True)
            except OSError as error:
                raise FileError(f"{self.folder}: cannot be made: {error.strerror}") from None
            self.trainer.run(after_update)
            self.save()
        return self.trainer.finished

    def save(self) -> None:
        """Write where training stands."""
        save_checkpoint(self.trainer, self.path, self.metadata)

    def resume(self) -> None:
        """Stand where the folder's last checkpoint says.

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
        yield interrupted  # signals go to the main thread, where they do what they always do
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
