"""Hooks: the steps of a training run that a recipe may replace."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from placewright.training.sampling import EpisodeRequest, episode_seed

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import NDArray

    from placewright.outcome import Outcome
    from placewright.policies import Episodes
    from placewright.training.trainer import Trainer

GREEDY = "argmax"
"""What found a plan: it was the policy's likeliest."""


class TrainerHooks:
    """Steps of `Trainer.update`; these defaults learn from rewards alone.

    A subclass that keeps state saves it with `state` and `arrays`.
    """

    pretraining = ""
    """The name of the phase before rewards are learned from, in logs."""
    overlap = False
    """Whether updates learn from the episodes of the update before, while new ones are judged."""

    def start(self, trainer: Trainer) -> None:
        """Prepare, once the trainer has its policy and environments."""

    def planned_updates(self, trainer: Trainer) -> int | None:
        """How many updates a budget of evaluations allows, where schedules need to know."""
        return None

    def begin_update(self, trainer: Trainer) -> None:
        """Prepare an update."""

    def pretrain(
        self, trainer: Trainer, progress: float
    ) -> list[tuple[int, dict[str, float], float]] | None:
        """Make an update that needs no rewards; None once that phase is over.

        Returns:
            For each optimizer step the problem's index, its figures, and the learning rate.
        """
        return None

    def next_problems(self, trainer: Trainer) -> list[int]:
        """The problems of this update: all in turn."""
        count = min(trainer.recipe.problems, len(trainer.environments))
        start = trainer.updates * count
        return [(start + offset) % len(trainer.environments) for offset in range(count)]

    def requests(self, trainer: Trainer, indices: list[int], noise: float) -> list[EpisodeRequest]:
        """The episodes to sample of these problems; none ends training."""
        return [
            EpisodeRequest(
                trainer.recipe.episodes,
                episode_seed(trainer.seed, trainer.updates, *([position] if position else [])),
                noise,
                trainer.policy.initial_decisions(
                    trainer.environments[index].problem, trainer.recipe.episodes
                ),
            )
            for position, index in enumerate(indices)
        ]

    def on_outcome(
        self, trainer: Trainer, index: int, episodes: Episodes, outcome: Outcome
    ) -> None:
        """Look at judged episodes, after the policy has learned from them."""

    def greedy_values(self, trainer: Trainer, indices: list[int]) -> list[float]:
        """The objective of each problem's argmax plan, judged and counted whenever it changes."""
        problems = [trainer.environments[index].problem for index in indices]
        batches = trainer.policy.act_all(problems, 1, [0] * len(indices), greedy=True)
        return [
            trainer.judge_last_plan(index, episodes, GREEDY)
            for index, episodes in zip(indices, batches, strict=True)
        ]

    def end_update(self, trainer: Trainer, progress: float) -> None:
        """Finish an update that learned from rewards."""

    def state(self) -> dict[str, Any]:
        """What a checkpoint keeps, as JSON."""
        return {}

    def arrays(self) -> dict[str, NDArray[Any]]:
        """What a checkpoint keeps, as arrays."""
        return {}

    def restore(
        self, trainer: Trainer, state: Mapping[str, Any], arrays: Mapping[str, NDArray[Any]]
    ) -> None:
        """Continue from what `state` and `arrays` returned."""
