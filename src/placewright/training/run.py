"""A run: a trainer and a folder in, training with checkpoints on the way out."""

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

CHECKPOINT = "checkpoint.json"


@dataclass(frozen=True, eq=False)
class Run:
    """A training run that leaves its state in a folder.

    Args:
        more: Plain data to keep with each checkpoint.
        every: Seconds between checkpoints; one is written at the end in any case.
    """

    trainer: Trainer
    folder: Path
    more: Mapping[str, Any]
    every: float = 30.0

    @property
    def path(self) -> Path:
        return self.folder / CHECKPOINT

    def train(self, watch: Callable[[Trainer], None] | None = None) -> bool:
        """Train to the end, or until a person interrupts; the state is saved either way.

        An interrupt is heard after the update under way, a second one at once; what is saved is
        always the end of an update.

        Returns:
            Whether training came to its end.
        """
        saved = time.monotonic()

        def after(trainer: Trainer) -> bool:
            nonlocal saved
            if watch is not None:
                watch(trainer)
            if time.monotonic() - saved >= self.every:
                self.save()
                saved = time.monotonic()
            return not asked.is_set()

        with interrupts() as asked:
            try:
                self.folder.mkdir(parents=True, exist_ok=True)
            except OSError as error:
                raise FileError(f"{self.folder}: cannot be made: {error.strerror}") from None
            self.trainer.run(after)
            self.save()
        return self.trainer.over

    def save(self) -> None:
        """Write where training stands."""
        save_checkpoint(self.trainer, self.path, self.more)

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
def interrupts() -> Iterator[threading.Event]:
    """An event that the first Ctrl-C sets instead of raising; the second one raises."""
    asked = threading.Event()
    if threading.current_thread() is not threading.main_thread():
        yield asked  # signals go to the main thread, where they do what they always do
        return
    before = signal.getsignal(signal.SIGINT)

    def hear(number: int, frame: Any) -> None:
        asked.set()
        signal.signal(signal.SIGINT, before)

    signal.signal(signal.SIGINT, hear)
    try:
        yield asked
    finally:
        signal.signal(signal.SIGINT, before)
