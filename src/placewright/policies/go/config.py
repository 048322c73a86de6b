"""Configuration of the GO policy: sizes, passes and tasks; builds a fresh policy."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from placewright.errors import ConfigError
from placewright.policies.go.initial_plans import INITIAL_PLAN_COUNT
from placewright.policies.go.levels import (
    LEVELS,
    PARTS,
    UNITS,
)
from placewright.policies.policy import PolicyConfig

if TYPE_CHECKING:
    from placewright.policies.go.policy import Go
    from placewright.problem import Problem

TASKS = ("device", "priority", "fusion")
_TASK_LEVELS = {"priority": PARTS, "fusion": UNITS}
"""What tasks after placement decide on."""


@dataclass(frozen=True)
class GoConfig(PolicyConfig):
    """What the network is like.

    Args:
        hidden: Size of a unit's vector.
        rounds: Of messages between neighbours.
        layers: Of attention, beside the one that all tasks share.
        segment: Units that attend to each other, and to as many before them.
        head_width: Of the layer that joins a unit with a device.
        passes: Plans in a row, each refining the one before: what each decides on, `module`,
            `part` or `unit` (`go_groups`).
        starts: How many first plans there are (`go_start.first_plans`); episodes take turns.
        tasks: What is decided: `device`, `priority`, `fusion`. Without `device` the first plan is
            kept; without `priority` ops are ordered by rank if `ranked`, else left as they are.
        attention, modulation: Off for ablations.
        timed: Whether it is told when ops run under the plan that it reads. It then needs a
            `clock`, since policies know no simulator; `training` has one.
        stay_bias: The logit that a fresh policy adds to the device where a unit is: with some it begins
            at the plan that it reads.
        margin: How much surer than that it stays the likeliest move must be, in nats. Many moves
            that are each a little likelier than none are together a poor plan.
        max_groups: Units are merged along heavy edges until there are no more than this, but for
            the dozen that is left in any case.
        drawn: The decisions that an episode draws at most, all of them of one task in one pass; all
            others stay as they are, so that a reward says something about few. 0: all are drawn.
        correlated: Whether neighbouring units share their luck in some episodes, so that a layer
            moves as a whole. Each decision's own probability stays what it is.
    """

    hidden: int = 64
    rounds: int = 3
    layers: int = 2
    heads: int = 4
    segment: int = 128
    head_width: int = 32
    passes: tuple[str, ...] = LEVELS
    starts: int = 1
    tasks: tuple[str, ...] = ("device",)
    ranked: bool = True
    attention: bool = True
    modulation: bool = True
    timed: bool = False
    stay_bias: float = 1.5
    margin: float = 1.0
    max_groups: int = 200_000
    drawn: int = 8
    correlated: bool = True
    OPTIONS: ClassVar = {"hidden": "hidden"}

    def __post_init__(self) -> None:
        if not self.tasks or list(self.tasks) != [task for task in TASKS if task in self.tasks]:
            raise ConfigError(f"GO is given tasks {self.tasks!r}: expected some of {TASKS}")
        if not 1 <= self.starts <= INITIAL_PLAN_COUNT:
            raise ConfigError(
                f"GO is given {self.starts!r} first plans: expected 1 to {INITIAL_PLAN_COUNT}"
            )
        if not self.passes or not set(self.passes) <= set(LEVELS):
            raise ConfigError(f"GO is given passes {self.passes!r}: expected some of {LEVELS}")

    @property
    def slots(self) -> tuple[tuple[str, str], ...]:
        """What is decided one after the other: a task, and on what."""
        devices = [("device", level) for level in self.passes if "device" in self.tasks]
        others = [(task, _TASK_LEVELS[task]) for task in self.tasks if task in _TASK_LEVELS]
        return (*devices, *others)

    def build(self, problem: Problem, seed: int = 0) -> Go:
        """A fresh policy; the same seed gives the same weights."""
        import torch

        from placewright.policies.go.policy import Go

        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            return Go(self)
