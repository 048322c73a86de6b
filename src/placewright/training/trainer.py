"""The trainer: trains a policy on problems by a recipe and keeps the best plans."""

from __future__ import annotations

import math
import time
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from placewright.training.algorithms import set_learning_rate
from placewright.training.clock import CountingClock
from placewright.training.credit import advantages_of
from placewright.training.environment import best_plan
from placewright.training.micro_batches import MicroBatches, check_cpu
from placewright.training.multi_graph import MultiGraphEpisodes, MultiGraphPolicy, pad_columns
from placewright.training.sampling import sample_all
from placewright.training.threads import torch_threads
from placewright.training.updates import LEARNED, EpisodeBatch, UpdateLog

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    import torch
    from numpy.typing import NDArray

    from placewright.outcome import Outcome
    from placewright.policies import Episodes, Policy
    from placewright.training.environment import Environment, JudgedPlans
    from placewright.training.gpu_updates import GpuUpdateConfig, GpuUpdates
    from placewright.training.recipes.base import Recipe
    from placewright.workers import Workers

SAMPLED = "sampled"
"""What found a plan: the policy sampled it."""


class Trainer:
    """Trains one policy on one problem or several, an update at a time.

    The same problems, recipe, seed and budget give the same plans: the samples of an update depend
    on the seed and the update's number alone. Schedules go by the share of the budget used, of that
    limit which is nearest.

    With workers, or a size of micro-batches, an update samples, judges and learns in micro-batches,
    whose gradients are added in their order. Its results depend on their size, and neither on the
    number nor on the kind of workers; they are not those of whole batches.

    Args:
        max_evaluations: Plans to judge, all problems together; None for no limit.
        policy: A policy to continue with; a fresh one for the first problem by default.
        device: Where the policy computes: `cpu`, `cuda`, or `auto` for a GPU if there is one.
        max_updates: Updates to make; None for no limit.
        max_seconds: Seconds to train; None for no limit.
        workers: Where micro-batches are computed; in this process by default.
        micro_batch: Episodes of a micro-batch; with workers 8 by default, or an eighth of an
            update if that is more, and no more than half of it.
        gpu_updates: Make updates without leaving the policy's device, several at a time; see
            `gpu_updates.GpuUpdates` for what this can do.
    """

    def __init__(
        self,
        environments: Sequence[Environment],
        recipe: Recipe,
        seed: int = 0,
        max_evaluations: int | None = 5000,
        policy: Policy | None = None,
        device: str = "auto",
        max_updates: int | None = None,
        max_seconds: float | None = None,
        workers: Workers | None = None,
        micro_batch: int | None = None,
        gpu_updates: GpuUpdateConfig | None = None,
    ) -> None:
        import torch

        self.environments, self.recipe, self.seed = list(environments), recipe, seed
        self.max_evaluations, self.max_updates = max_evaluations, max_updates
        self.max_seconds = max_seconds
        with torch_threads():
            fresh = policy or recipe.policy_config.build(self.environments[0].problem, seed)
            self.micro_batches = MicroBatches.of(recipe, fresh, workers, micro_batch)
            if self.micro_batches is not None:
                device = check_cpu(device)
            if device == "auto":
                device = "cuda" if torch.cuda.is_available() else "cpu"
            self.policy: Policy = fresh.to(device)  # type: ignore[attr-defined]
        self.policy.use_clock(CountingClock(self))
        self.optimizer: torch.optim.Optimizer = torch.optim.Adam(
            self.policy.parameters(), lr=recipe.learning_rate(0.0)
        )
        self.baseline, self.hooks = recipe.baseline(), recipe.hooks()
        self.gpu_updates: GpuUpdates | None = None
        self.updates = 0
        self.finished = False
        self.seconds = 0.0
        """Seconds of training so far."""
        self.log: list[UpdateLog] = []
        self.best_episodes: dict[int, Episodes] = {}
        """For each problem the episode that made its best plan."""
        self.greedy_plans: dict[int, tuple[bytes, float]] = {}
        """For each problem the argmax plan that was judged last, and its objective."""
        self.pending: EpisodeBatch | None = None
        """Episodes that the next update learns from, with hooks that overlap."""
        self._executor: ThreadPoolExecutor | None = None
        self.hooks.start(self)
        self.planned_updates = max_updates or self.hooks.planned_updates(self)
        if gpu_updates is not None:
            from placewright.training.gpu_updates import GpuUpdates, make_optimizer

            self.gpu_updates = GpuUpdates(self, gpu_updates)
            self.optimizer = make_optimizer(self.policy, recipe.learning_rate(0.0))

    @property
    def evaluations(self) -> int:
        """Plans judged so far."""
        return sum(environment.evaluations for environment in self.environments)

    @property
    def progress(self) -> float:
        """The share of the budget used, 0 to 1."""
        shares = [0.0]
        if self.planned_updates is not None:
            shares.append(self.updates / self.planned_updates)
        if self.max_evaluations is not None:
            shares.append(self.evaluations / self.max_evaluations)
        if self.max_seconds is not None and self.max_updates is None:
            shares.append(self.seconds / self.max_seconds)
        return min(max(shares), 1.0)

    @property
    def mode(self) -> dict[str, Any]:
        """How updates are computed, as plain data, as far as it changes the results."""
        size = None if self.micro_batches is None else self.micro_batches.size
        gpu = None if self.gpu_updates is None else self.gpu_updates.config.identity
        return {"micro_batch": size, "asynchronous": None, "gpu_updates": gpu}

    def run(self, on_update: Callable[[Trainer], bool] | None = None, threads: int = 1) -> None:
        """Train until the budget is used.

        Args:
            on_update: Called after each update; training pauses if it returns false.
        """
        earlier, started = self.seconds, time.perf_counter()
        with torch_threads(threads):
            while not self.finished:
                self.update()
                self.seconds = earlier + time.perf_counter() - started
                if on_update is not None and not on_update(self):
                    break
        if self.pending is not None:
            self.pending.judged()

    def update(self) -> None:
        """Sample plans, judge them, learn from them, and judge the argmax plan."""
        if self._is_over():
            self.finished = True
            return
        if self.gpu_updates is not None:
            self.gpu_updates.update()
            return
        progress = self.progress
        self.hooks.begin_update(self)
        steps = self.hooks.pretrain(self, progress)
        if steps is not None:
            self.updates += 1
            for index, stats, learning_rate in steps:
                self.log_update(index, self.hooks.pretraining, stats, learning_rate)
            return
        batch = self._collect(progress)
        if batch is None:
            return
        learned: EpisodeBatch | None = batch
        if self.hooks.overlap:
            learned, self.pending = self.pending, batch
        if learned is None:
            self.updates += 1
        else:
            self._learn_from(learned, progress)
        self.hooks.end_update(self, progress)

    def judge(
        self,
        index: int,
        placements: NDArray[np.int32],
        found_by: str,
        priority: NDArray[np.float64] | None = None,
        fusion: NDArray[np.int32] | None = None,
    ) -> Outcome | None:
        """The outcome of plans; None, and training is over, if the budget does not allow them all.

        The first update is always made, however small the budget.
        """
        self._wait()
        if not self._allows(len(placements)):
            return None
        outcome = self.environments[index].judge(placements, found_by, priority, fusion)
        if len(outcome.seconds) < len(placements):
            self.finished = True
            return None
        return outcome

    def judge_last_plan(self, index: int, episodes: Episodes, found_by: str) -> float:
        """The objective of an episode's last plan, judged again only where it has changed."""
        placement = episodes.placements[-1:]
        last_placement, value = self.greedy_plans.get(index, (b"", math.nan))
        if placement.tobytes() != last_placement:
            last_plan = replace(
                episodes,
                placements=placement,
                episode_of=episodes.episode_of[-1:],
                priority=None if episodes.priority is None else episodes.priority[-1:],
            )
            outcome = self._judge_episodes(index, last_plan, found_by)
            if outcome is not None:
                value = float(outcome.seconds[-1])
                self.greedy_plans[index] = placement.tobytes(), value
        return value

    def log_update(
        self, index: int, phase: str, stats: dict[str, float], rate: float, **figures: float
    ) -> None:
        """Add a row of the update under way to the log; figures not given are not numbers."""
        best = self.environments[index].best_key[1]
        known = {"mean": math.nan, "greedy": math.nan, "entropy": math.nan, "infeasible": math.nan}
        self.log.append(
            UpdateLog(
                self.updates,
                self.evaluations,
                best if math.isfinite(best) else math.nan,
                **{**known, **figures},
                gradient=stats.get("gradient", 0.0),
                rate=rate,
                problem=index,
                phase=phase,
                stats={name: value for name, value in stats.items() if name != "gradient"},
            )
        )

    def _is_over(self) -> bool:
        """Whether all updates are made, or the time is over."""
        return (self.max_updates is not None and self.updates >= self.max_updates) or (
            self.max_seconds is not None and self.seconds >= self.max_seconds
        )

    def _collect(self, progress: float) -> EpisodeBatch | None:
        """Sample episodes and judge them; None if the budget does not allow them."""
        indices = self.hooks.next_problems(self)
        requests = self.hooks.requests(self, indices, self.recipe.logit_noise(progress))
        if self.finished:
            return None
        problems = [self.environments[index].problem for index in indices]
        judged: list[JudgedPlans | None] = [None] * len(indices)
        if self.micro_batches is None:
            batches = sample_all(self.policy, problems, requests)
        else:
            batches, judged = self.micro_batches.sample(self, indices, requests)
        outcomes: list[Outcome | Future[Outcome]] = []
        for index, episodes, plans in zip(indices, batches, judged, strict=True):
            outcome: Outcome | Future[Outcome] | None
            background = self.hooks.overlap and self.environments[index].in_background
            if background and plans is None:
                outcome = self._submit(index, episodes)
            else:
                outcome = self._judge_episodes(index, episodes, SAMPLED, plans)
            if outcome is None:
                return None
            outcomes.append(outcome)
        return EpisodeBatch(indices, batches, outcomes)

    def _learn_from(self, batch: EpisodeBatch, progress: float) -> None:
        recipe, indices, outcomes = self.recipe, batch.indices, batch.judged()
        learning_rate = recipe.learning_rate(progress)
        credits = [
            advantages_of(
                recipe,
                self.baseline,
                self.policy,
                environment.problem,
                environment.reference_seconds,
                episodes,
                outcome,
                progress,
            )
            for environment, episodes, outcome in zip(
                [self.environments[index] for index in indices],
                batch.episodes,
                outcomes,
                strict=True,
            )
        ]
        set_learning_rate(self.optimizer, learning_rate)
        stats: dict[str, float] = {}
        if any(included for _, included in credits):
            advantages = [advantage for advantage, _ in credits]
            stats = self._learn(indices, batch.episodes, advantages, progress)
        self.updates += 1
        for judged in zip(indices, batch.episodes, outcomes, strict=True):
            self.hooks.on_outcome(self, *judged)
        if self.micro_batches is not None:
            self.micro_batches.prefetch_episodes(self)
        greedy = [math.nan] * len(indices)
        if recipe.greedy_every and self.updates % recipe.greedy_every == 0:
            greedy = self.hooks.greedy_values(self, indices)
        for index, outcome, value in zip(indices, outcomes, greedy, strict=True):
            self.log_outcome(index, outcome, stats, learning_rate, value)

    def log_outcome(
        self, index: int, outcome: Outcome, stats: dict[str, float], rate: float, greedy: float
    ) -> None:
        """Add a row of an update that learned from rewards to the log.

        Args:
            greedy: The objective of the argmax plan; not finite if there is none.
        """
        shares = [value for name, value in stats.items() if name.startswith("entropy/")]
        finite = outcome.seconds[np.isfinite(outcome.seconds)]
        self.log_update(
            index,
            LEARNED,
            stats,
            rate,
            mean=float(finite.mean()) if len(finite) else math.nan,
            greedy=greedy if math.isfinite(greedy) else math.nan,
            entropy=float(np.mean(shares)) if shares else math.nan,
            infeasible=float(1 - outcome.feasible.mean()),
        )

    def _learn(
        self,
        indices: list[int],
        batches: list[Episodes],
        advantages: list[NDArray[np.float64]],
        progress: float,
    ) -> dict[str, float]:
        recipe, policy = self.recipe, self.policy
        problems = [self.environments[index].problem for index in indices]
        regularization = recipe.regularization(progress, self.best_episodes.get(indices[0]))
        if self.micro_batches is not None:
            return self.micro_batches.learn(self, indices, batches, advantages, regularization)
        episodes, advantage = batches[0], advantages[0]
        if len(indices) > 1:
            policy = MultiGraphPolicy(policy, problems)  # type: ignore[assignment]
            episodes = MultiGraphEpisodes.of(batches)
            advantage = np.concatenate(pad_columns(advantages))
            best_episode = MultiGraphEpisodes.of([self.best_episodes[index] for index in indices])
            regularization = replace(regularization, best_episode=best_episode)
        return recipe.algorithm.update(
            policy, problems[0], episodes, advantage, self.optimizer, regularization
        )

    def _judge_episodes(
        self, index: int, episodes: Episodes, found_by: str, judged: JudgedPlans | None = None
    ) -> Outcome | None:
        """See `judge`; the episode of the best plan is kept for self-imitation.

        Args:
            judged: The episodes' plans, if a worker has judged them.
        """
        environment = self.environments[index]
        previous_key = environment.best_key
        if judged is None:
            outcome = self.judge(
                index, episodes.placements, found_by, episodes.priority, episodes.fusion
            )
        else:
            allowed = self._allows(len(judged.placements))
            outcome = environment.record(judged, found_by) if allowed else None
        if outcome is not None and environment.best_key < previous_key:
            best = int(episodes.episode_of[best_plan(outcome)])
            self.best_episodes[index] = self.policy.select(episodes, best)
        return outcome

    def _submit(self, index: int, episodes: Episodes) -> Future[Outcome] | None:
        """Judge episodes on another thread; None if the budget does not allow them."""
        self._wait()
        if not self._allows(len(episodes.placements)):
            return None
        if self._executor is None:
            self._executor = ThreadPoolExecutor(1)
        plans = episodes.placements, SAMPLED, episodes.priority, episodes.fusion
        return self._executor.submit(self.environments[index].judge, *plans)

    def _allows(self, plans: int) -> bool:
        limit = self.max_evaluations
        if limit is not None and self.updates and self.evaluations + plans > limit:
            self.finished = True
        return not self.finished

    def _wait(self) -> None:
        """Finish judging on the other thread: what an environment counts must not depend on it."""
        if self.pending is not None:
            self.pending.judged()
