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
"""The levels of tasks after placement."""


@dataclass(frozen=True)
class GoConfig(PolicyConfig):
    """Settings of GO.

    Args:
        hidden: Size of a unit's vector.
        rounds: Rounds of messages between neighbours.
        layers: Attention layers, besides the one that all tasks share.
        segment: Units that attend to each other, and to the segment before.
        head_width: Width of the layer that joins a unit with a device.
        passes: The level of each pass, `module`, `part` or `unit` (`levels`); each pass refines the
            plan of the one before.
        starts: Number of initial plans (`initial_plans.heuristic_plans`); episodes take turns.
        tasks: The decisions: `device`, `priority`, `fusion`. Without `device` the initial plan is
            kept; without `priority` ops are ordered by rank if `ranked`, else as in the graph.
        attention, modulation: False for ablations.
        timed: Whether the times of ops under the current plan are features. The policy then needs a
            clock (`use_clock`), since policies know no simulator.
        stay_bias: The logit that a fresh policy adds to the current device of a unit, so that it
            starts near the initial plan.
        margin: By how many nats the best move must exceed staying in a greedy episode. Many moves
            that are each a little likelier than staying make a poor plan together.
        max_groups: Units are merged along heavy edges until there are no more than this, down to
            about a dozen.
        drawn: The largest number of decisions that an episode samples, all of one task in one pass;
            all others stay, so that a reward is about few decisions. 0: all are sampled.
        correlated: Whether neighbouring units share random numbers in some episodes, so that a
            layer moves as a whole. The probability of each single decision is unchanged.
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
                f"GO is given {self.starts!r} initial plans: expected 1 to {INITIAL_PLAN_COUNT}"
            )
        if not self.passes or not set(self.passes) <= set(LEVELS):
            raise ConfigError(f"GO is given passes {self.passes!r}: expected some of {LEVELS}")

    @property
    def slots(self) -> tuple[tuple[str, str], ...]:
        """The decisions in their order: a task and its level each."""
        devices = [("device", level) for level in self.passes if "device" in self.tasks]
        others = [(task, _TASK_LEVELS[task]) for task in self.tasks if task in _TASK_LEVELS]
        return (*devices, *others)

    def build(self, problem: Problem, seed: int = 0) -> Go:
        """A fresh policy; the same seed gives the same weights."""
        import torch

        from placewright.policies import find_policy

        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            policy: Go = find_policy("go")(self)
        return policy
