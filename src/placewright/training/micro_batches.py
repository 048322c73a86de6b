"""Micro-batches: the parts of an update that workers compute, each on its own.

An update's episodes are cut into micro-batches of a fixed size. Each has its own seed; its loss is
that of its episodes alone, and the update takes the mean of the micro-batches' gradients, added in
a fixed order. So neither the number of workers nor their kind changes a bit of the result.
Baselines, which see all episodes, and the optimizer stay with the driver, as do measured plans.
"""

from __future__ import annotations

import math
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np

from placewright.errors import ConfigError
from placewright.outcome import Outcome
from placewright.training.algorithms import clipped_step
from placewright.training.environment import JudgedPlans
from placewright.training.episode_prefetch import EpisodePrefetch
from placewright.training.gradients import mean_gradient, set_gradient
from placewright.training.hooks import TrainerHooks
from placewright.training.replica import PolicyReplica
from placewright.training.threads import torch_threads
from placewright.training.worker_tasks import ComputeGradients, SampledEpisodes, SampleEpisodes

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from placewright.policies import Episodes, Policy
    from placewright.problem import Problem
    from placewright.training.algorithms import Regularization
    from placewright.training.environment import Environment
    from placewright.training.episode_prefetch import FutureRows
    from placewright.training.recipes.base import Recipe
    from placewright.training.sampling import EpisodeRequest
    from placewright.training.trainer import Trainer
    from placewright.workers import Task, Workers

_MAX_PARTS = 8  # micro-batches of an update by default
_FULL_SIZE = 8  # episodes; smaller micro-batches, ColocRL's of 2 say, take twice as long for each


def default_size(episodes: int, tied: int = 1) -> int:
    """Episodes of a micro-batch: an eighth of an update, or eight, but no more than half of it."""
    size = max(math.ceil(episodes / _MAX_PARTS), min(_FULL_SIZE, math.ceil(episodes / 2)))
    return math.ceil(size / tied) * tied


@dataclass(frozen=True, eq=False)
class MicroBatches:
    """Samples and learns in micro-batches.

    Args:
        size: Episodes of a micro-batch; the last one of a problem may have fewer.
        workers: Where they are computed; None for this thread.
        prefetch: Episodes of the next update that workers have begun to sample.
    """

    size: int
    workers: Workers | None = None
    prefetch: EpisodePrefetch = field(default_factory=EpisodePrefetch, repr=False)

    @classmethod
    def of(
        cls, recipe: Recipe, policy: Policy, workers: Workers | None, size: int | None
    ) -> MicroBatches | None:
        """Those of a trainer; None if there are neither workers nor a size.

        Raises:
            ConfigError: The policy cannot be sent to workers, or the size does not suit it.
        """
        if workers is None and size is None:
            return None
        PolicyReplica.of(policy)
        tied = policy.tied_episodes
        if size is None:
            size = default_size(recipe.episodes, tied)
        if size < 1 or (size % tied and size < recipe.episodes):
            raise ConfigError(
                f"micro-batches of {size} episodes: expected a multiple of {tied}, since "
                f"{policy.name} samples that many episodes as one"
                if tied > 1
                else f"micro-batches of {size} episodes: expected 1 or more"
            )
        return cls(size, workers)

    def sample(
        self, trainer: Trainer, indices: list[int], requests: Sequence[EpisodeRequest]
    ) -> tuple[list[Episodes], list[JudgedPlans | None]]:
        """Sample the episodes of problems and judge the simulated ones; nothing is counted but
        plans that were simulated inside episodes."""
        replica = PolicyReplica.of(trainer.policy)
        environments = [trainer.environments[index] for index in indices]
        futures = self.prefetch.take(replica, indices, requests)
        if futures is None:
            calls, problems = self._sampling(environments, replica, requests)
            results = self._run(calls, problems)
        else:
            results = _collect(futures)
        episodes: list[Episodes] = []
        judged: list[JudgedPlans | None] = []
        for environment, parts in zip(environments, results, strict=True):
            if not trainer.policy.judges_steps:  # those are judged again with each step
                environment.evaluations += sum(part.simulated for part in parts)
            episodes.append(trainer.policy.join_episodes([part.episodes for part in parts]))
            judged.append(_join_judged(parts))
        return episodes, judged

    def prefetch_episodes(self, trainer: Trainer) -> None:
        """Let other processes begin with the next update's episodes, by the policy as it is now.

        Not where plans are measured: they would slow the argmax plan down.
        """
        workers, hooks, recipe = self.workers, trainer.hooks, trainer.recipe
        if workers is None or workers.kind == "threads":  # which have no time of their own
            return
        # Hooks of other kinds have requests that depend on what happens until then.
        if type(hooks) is not TrainerHooks or not self.prefetch.may_guess:
            return
        indices = hooks.next_problems(trainer)
        plans = len(indices) * (recipe.episodes + 1)
        limit = trainer.max_evaluations
        if trainer.updates == trainer.max_updates or (
            limit is not None and trainer.evaluations + plans > limit
        ):
            return
        environments = [trainer.environments[index] for index in indices]
        if any(environment.simulation is None for environment in trainer.environments):
            return
        requests = hooks.requests(trainer, indices, recipe.logit_noise(trainer.progress))
        replica = PolicyReplica.of(trainer.policy)
        futures = self._submit(workers, *self._sampling(environments, replica, requests))
        self.prefetch.put(replica, indices, requests, futures)

    def _sampling(
        self,
        environments: Sequence[Environment],
        replica: PolicyReplica,
        requests: Sequence[EpisodeRequest],
    ) -> tuple[list[tuple[Task[Any], list[Any]]], list[Problem]]:
        """The calls that sample the episodes of problems, and these problems."""
        calls: list[tuple[Task[Any], list[Any]]] = [
            (SampleEpisodes(replica, environment.simulation), request.split(self.size))
            for environment, request in zip(environments, requests, strict=True)
        ]
        return calls, [environment.problem for environment in environments]

    def learn(
        self,
        trainer: Trainer,
        indices: list[int],
        batches: list[Episodes],
        advantages: list[NDArray[np.float64]],
        regularization: Regularization,
    ) -> dict[str, float]:
        """Update the policy; see `Algorithm.update`.

        Args:
            regularization: That of the first problem; others have best episodes of their own.
        """
        policy, algorithm = trainer.policy, trainer.recipe.algorithm
        problems = [trainer.environments[index].problem for index in indices]
        parts = [
            [
                (policy.take(episodes, first, first + self.size), advantage[first:][: self.size])
                for first in range(0, len(episodes), self.size)
            ]
            for episodes, advantage in zip(batches, advantages, strict=True)
        ]
        runs = self._numbered_runs(parts)
        best_episodes = [trainer.best_episodes.get(index) for index in indices]
        stats: dict[str, float] = {}
        for epoch in range(algorithm.epochs):
            replica = PolicyReplica.of(policy)
            tasks = [
                ComputeGradients(replica, algorithm, replace(regularization, best_episode=best))
                for best in best_episodes
            ]
            results = self._run(list(zip(tasks, runs, strict=True)), problems)
            gradient = mean_gradient([each for row in results for sums in row for each in sums])
            set_gradient(policy, gradient)
            if algorithm.ends_before(epoch, gradient.figures):
                break
            norm = clipped_step(policy, trainer.optimizer, regularization.max_grad_norm)
            stats = {"gradient": norm, **gradient.figures}
        trainer.optimizer.zero_grad(set_to_none=True)
        return stats

    def _numbered_runs(self, parts: Sequence[list[Any]]) -> list[list[tuple[int, list[Any]]]]:
        """For each problem its micro-batches, a run for each chunk; they are numbered throughout.

        A run has the number of its first micro-batch.
        """
        rows, first = [], 0
        for row in parts:
            runs = []
            for chunk in _chunks(row, self._chunk_count(len(parts))):
                runs.append((first, chunk))
                first += len(chunk)
            rows.append(runs)
        return rows

    def _chunk_count(self, calls: int) -> int:
        """Chunks of each call, so that all workers have one."""
        return 1 if self.workers is None else math.ceil(self.workers.count / calls)

    def _run(
        self, calls: Sequence[tuple[Task[Any], list[Any]]], problems: Sequence[Problem]
    ) -> list[list[Any]]:
        """The results of each call's items, in their order."""
        workers = self.workers
        in_process = workers is None or workers.kind == "threads"
        with torch_threads() if in_process else nullcontext():
            if workers is None:
                return [
                    task(problem, items)
                    for (task, items), problem in zip(calls, problems, strict=True)
                ]
            return _collect(self._submit(workers, calls, problems))

    def _submit(
        self,
        workers: Workers,
        calls: Sequence[tuple[Task[Any], list[Any]]],
        problems: Sequence[Problem],
    ) -> FutureRows:
        chunk_count = self._chunk_count(len(calls))
        return [
            [workers.submit(task, chunk, problem) for chunk in _chunks(items, chunk_count)]
            for (task, items), problem in zip(calls, problems, strict=True)
        ]


def _collect(futures: FutureRows) -> list[list[Any]]:
    """The results of each call's chunks, one after the other."""
    return [[result for future in row for result in future.result()] for row in futures]


def check_cpu(device: str) -> str:
    """The device of a policy whose replicas compute on CPUs.

    Raises:
        ConfigError: It is a GPU.
    """
    if device not in ("auto", "cpu"):
        raise ConfigError(
            f"the policy is to compute on {device!r}: with workers or micro-batches expected 'cpu'"
        )
    return "cpu"


def _chunks(items: list[Any], count: int) -> list[list[Any]]:
    """At most that many chunks, whose sizes differ by one at most."""
    count = min(count, len(items))
    bounds = [len(items) * at // count for at in range(count + 1)]
    return [items[first:last] for first, last in pairwise(bounds)]


def _join_judged(parts: Sequence[SampledEpisodes]) -> JudgedPlans | None:
    """The plans of all micro-batches of a problem; None if the driver is to measure them."""
    judged = [part.judged for part in parts if part.judged is not None]
    if len(judged) < len(parts):
        return None
    arrays = {
        name: [getattr(plans, name) for plans in judged if getattr(plans, name) is not None]
        for name in ("placements", "priority", "fusion")
    }
    joined = {name: np.concatenate(rows) if rows else None for name, rows in arrays.items()}
    outcome = Outcome(
        np.concatenate([plans.outcome.seconds for plans in judged]),
        np.concatenate([plans.outcome.overflow for plans in judged]),
        np.concatenate([plans.outcome.overflow_share for plans in judged]),
    )
    placements = joined.pop("placements")
    assert placements is not None
    return JudgedPlans(placements, outcome, **joined)
