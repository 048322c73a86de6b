"""Trains GO on many graphs: imitation of demonstrations first, then PPO; it can resume.

First imitation of teachers' plans, then PPO, with a step of imitation beside every update so that
neither the passes nor the answer to a search forget what strong plans are like. A plan that the
policy finds and that is better than its teacher's becomes what is taught (expert iteration).
"""

from __future__ import annotations

import time
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from placewright.files.header import body, make_header
from placewright.policies import load, restore
from placewright.policies.storage import load_with_tensors, save_with_tensors
from placewright.solvers.ordering.priority_rules import rule_priorities
from placewright.training.algorithms import PPO, Regularization
from placewright.training.go.elites import Elites
from placewright.training.go.imitation import Imitation
from placewright.training.go.issue_order import IssueOrderEnvironment, ready_times
from placewright.training.rewards import GradedPenalty, Reward
from placewright.training.threads import torch_threads

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    import torch
    from numpy.typing import NDArray

    from placewright.policies import Episodes
    from placewright.policies.go.config import GoConfig
    from placewright.policies.go.policy import Go
    from placewright.training.environment import Outcome
    from placewright.training.go.demonstrations import Demonstration

_POLICY, _ADAM = "policy.", "adam."
TEACHER, GREEDY, SAMPLED, REORDERED = "teacher", "argmax", "sampled", "ordered"


@dataclass(frozen=True)
class GoRecipe:
    """How GO is trained on many graphs.

    Args:
        imitation_share: The share of the seconds, or steps, that goes to imitation alone.
        imitation_epochs: Gradient steps in one such step of imitation, as PPO has its epochs.
        imitation_steps: Steps of imitation beside each later update.
        episodes: Episodes of an update.
        learning_rates: Adam's learning rate in imitation and in PPO; both fall to a tenth in a straight line.
        entropy_floor: A share of an even choice's entropy, below which entropy is worth 1 a nat.
    """

    imitation_share: float = 0.3
    imitation_epochs: int = 1
    imitation_steps: int = 1
    episodes: int = 16
    learning_rates: tuple[float, float] = (1e-3, 1e-3)
    entropy_floor: float = 0.1
    max_grad_norm: float = 1.0
    algorithm: PPO = field(default_factory=PPO)
    imitation: Imitation = field(default_factory=Imitation)
    reward: Reward = field(default_factory=lambda: GradedPenalty(overflow_step=1.0))


@dataclass(frozen=True)
class GoUpdateLog:
    """What a step was like.

    Args:
        ratio: The likeliest plan, or in imitation nothing, over the teacher's plan.
        best: The best plan so far over the teacher's plan.
        said: What imitation or PPO said.
    """

    step: int
    seconds: float
    part: str
    task: str
    ratio: float
    best: float
    said: dict[str, float]


class GoTrainer:
    """Trains a policy on lessons for so many seconds.

    Args:
        device: Where the policy lives; judging is always on the CPU.
        threads: That judge plans.
        fused: Whether plans that say nothing of fusion are fused as a compiler would.
    """

    def __init__(
        self,
        policy: Go,
        demonstrations: Sequence[Demonstration],
        recipe: GoRecipe | None = None,
        seed: int = 0,
        device: str = "auto",
        threads: int = 1,
        fuse_by_default: bool = False,
    ) -> None:
        import torch

        self.recipe, self.seed = recipe or GoRecipe(), seed
        self.demonstrations = list(demonstrations)
        if device == "auto":
            device = "cuda" if torch.cuda.is_available() else "cpu"
        self.policy: Go = policy.to(device)
        self.policy.clock = ready_times
        self.optimizer = torch.optim.Adam(
            self.policy.parameters(), lr=self.recipe.learning_rates[0]
        )
        self.environments = [
            IssueOrderEnvironment(demonstration.problem, threads, fuse_by_default)
            for demonstration in self.demonstrations
        ]
        self.references: dict[int, float] = {}
        """What each teacher's plan takes in the order that GO gives it."""
        self.best_keys: dict[int, tuple[float, float]] = {}
        """Bytes over and objective of the best plan that the policy itself made."""
        self.curves: dict[int, list[tuple[int, float, float]]] = {}
        """For each problem (plans judged, seconds, `own`) each time that it improved."""
        self.elites = [Elites(len(self.policy.config.slots)) for _ in self.demonstrations]
        """The best plans of each problem, where half of all episodes begin."""
        self.steps, self.seconds = 0, 0.0
        self.log: list[GoUpdateLog] = []
        self._pool = ThreadPoolExecutor(1)

    def run(
        self,
        seconds: float,
        on_step: Callable[[GoTrainer], bool] | None = None,
        max_steps: int | None = None,
    ) -> None:
        """Go on until training has taken so many seconds in all, or so many steps if given.

        Args:
            on_step: Called after each step; training pauses if it says false.
        """
        earlier_seconds, started = self.seconds, time.perf_counter()
        pending: tuple[int, Episodes, Future[Outcome]] | None = None
        with torch_threads(1):
            while self.seconds < seconds and (max_steps is None or self.steps < max_steps):
                progress = self.seconds / seconds if max_steps is None else self.steps / max_steps
                rng = np.random.default_rng([self.seed, self.steps, 11])
                if progress < self.recipe.imitation_share:
                    for _ in range(self.recipe.imitation_epochs):
                        self._imitate(
                            rng,
                            self._learning_rate(
                                0, progress / max(self.recipe.imitation_share, 1e-9)
                            ),
                        )
                else:
                    ppo_progress = (progress - self.recipe.imitation_share) / (
                        1 - self.recipe.imitation_share
                    )
                    # While one problem's plans are judged, the policy learns from another's.
                    sampled = self._sample(rng)
                    if pending is not None:
                        self._reinforce(*pending, self._learning_rate(1, ppo_progress))
                    pending = sampled
                    for _ in range(self.recipe.imitation_steps):
                        self._imitate(rng, self._learning_rate(1, ppo_progress), quiet=True)
                self.steps += 1
                self.seconds = earlier_seconds + time.perf_counter() - started
                if on_step is not None and not on_step(self):
                    break
            if pending is not None:
                pending[2].result()

    def _learning_rate(self, phase: int, progress: float) -> float:
        return self.recipe.learning_rates[phase] * (1 - 0.9 * min(progress, 1.0))

    def _imitate(self, rng: np.random.Generator, learning_rate: float, quiet: bool = False) -> None:
        index = int(rng.integers(len(self.demonstrations)))
        self._set_learning_rate(learning_rate)
        stats = self.recipe.imitation.step(
            self.policy, self.optimizer, self.demonstrations[index], rng
        )
        if not quiet:
            self._log_step("imitation", index, float("nan"), stats)

    def _sample(self, rng: np.random.Generator) -> tuple[int, Episodes, Future[Outcome]]:
        index = int(rng.integers(len(self.demonstrations)))
        self.reference_seconds(index)
        seed = int(rng.integers(2**31))
        problem, count = self.demonstrations[index].problem, self.recipe.episodes
        start_plans = self.elites[index].start_plans(
            self.policy.initial_decisions(problem, count), rng
        )
        slots = self.elites[index].slot_probabilities
        episodes = self.policy.act(problem, count, seed, initial=start_plans, slot_weights=slots)
        judge = self.environments[index].judge
        return (
            index,
            episodes,
            self._pool.submit(
                judge, episodes.placements, SAMPLED, episodes.priority, episodes.fusion
            ),
        )

    def _reinforce(
        self, index: int, episodes: Episodes, pending_outcome: Future[Outcome], learning_rate: float
    ) -> None:
        from placewright.policies.go.policy import decisions_at

        outcome, demonstration = pending_outcome.result(), self.demonstrations[index]
        environment, recipe = self.environments[index], self.recipe
        reward = recipe.reward(outcome, environment.reference_seconds)
        advantage = _advantage(reward, decisions_at(episodes, "start"))
        self._set_learning_rate(learning_rate)
        regularization = Regularization(
            entropy_floor=recipe.entropy_floor, max_grad_norm=recipe.max_grad_norm
        )
        stats = recipe.algorithm.update(
            self.policy, demonstration.problem, episodes, advantage, self.optimizer, regularization
        )
        self._update_best(index, outcome)
        self.elites[index].add(episodes, outcome)
        stats["invalid"] = float(1 - outcome.feasible.mean())
        stats["mean"] = float(outcome.seconds.mean()) / self.reference_seconds(index)
        greedy_seconds = self.greedy_seconds(index)
        self._improve_demonstration(index)
        self._log_step("ppo", index, greedy_seconds / self.reference_seconds(index), stats)

    def reference_seconds(self, index: int) -> float:
        """What a teacher's plan takes in GO's order; judged, and counted, once."""
        if index not in self.references:
            demonstration = self.demonstrations[index]
            placement = demonstration.placements[:1]
            priority = self.policy.priorities(demonstration.problem, placement)
            outcome = self.environments[index].judge(placement, TEACHER, priority)
            self.references[index] = float(outcome.seconds[0])
        return self.references[index]

    def greedy_seconds(self, index: int) -> float:
        """What the best argmax plan takes, one from each first plan; judged, and counted."""
        count = self.policy.config.starts
        episodes = self.policy.act(self.demonstrations[index].problem, count, 0, greedy=True)
        outcome = self.environments[index].judge(
            episodes.placements, GREEDY, episodes.priority, episodes.fusion
        )
        self._update_best(index, outcome)
        self.elites[index].add(episodes, outcome)
        return float(np.where(outcome.feasible, outcome.seconds, np.inf).min())

    def try_priority_rules(self, index: int) -> None:
        """Judge its best plans of a problem in every order that a rule gives them, too.

        The policy's own order is the longest way first, with classes before and behind. Which rule
        suits a plan differs by graph (of RNNLM-2 9 %), and a dozen plans judged tell.
        """
        problem, environment = self.demonstrations[index].problem, self.environments[index]
        for placement in self.policy.observe(problem).legalize(self.elites[index].placements):
            priorities = np.stack(list(rule_priorities(problem, placement).values()))
            placements = np.repeat(placement[None], len(priorities), axis=0)
            self._update_best(index, environment.judge(placements, REORDERED, priorities))

    def _update_best(self, index: int, outcome: Outcome) -> None:
        best = int(np.lexsort((outcome.seconds, outcome.overflow))[0])
        key = float(outcome.overflow[best]), float(outcome.seconds[best])
        if key < self.best_keys.get(index, (np.inf, np.inf)):
            self.best_keys[index] = key
            plans = self.environments[index].evaluations
            self.curves.setdefault(index, []).append(
                (plans, self.environments[index].seconds, key[1])
            )

    def _improve_demonstration(self, index: int) -> None:
        """What is better than the teacher is taught from now on."""
        environment, demonstration = self.environments[index], self.demonstrations[index]
        if environment.best_placement is None or environment.found_by == TEACHER:
            return
        if environment.best_key >= (float(demonstration.overflow[0]), self.references[index]):
            return
        if (environment.best_placement == demonstration.placements[0]).all():
            return
        self.demonstrations[index] = replace(
            demonstration,
            found_by=("go", *demonstration.found_by),
            placements=np.concatenate([environment.best_placement[None], demonstration.placements])[
                :6
            ],
            objective_values=np.append(environment.best_key[1], demonstration.objective_values)[:6],
            overflow=np.append(int(environment.best_key[0]), demonstration.overflow)[:6],
        )

    def _set_learning_rate(self, learning_rate: float) -> None:
        for param_group in self.optimizer.param_groups:
            param_group["lr"] = learning_rate

    def _log_step(self, phase: str, index: int, ratio: float, stats: dict[str, float]) -> None:
        environment = self.environments[index]
        best = (
            environment.best_key[1] / self.references[index]
            if index in self.references
            else float("nan")
        )
        task = self.demonstrations[index].task.key
        self.log.append(GoUpdateLog(self.steps, self.seconds, phase, task, ratio, best, stats))

    def save(self, path: Path) -> None:
        """Write the policy, Adam's averages and how far training is; see `resume`."""
        tensors = {f"{_POLICY}{key}": value for key, value in self.policy.state_dict().items()}
        for parameter, moments in self.optimizer.state_dict()["state"].items():
            tensors |= {f"{_ADAM}{parameter}.{name}": value for name, value in moments.items()}
        data = {
            **make_header("go-training"),
            "policy": self.policy.name,
            "config": self.policy.to_config(),
            "steps": self.steps,
            "seconds": self.seconds,
            "seed": self.seed,
            "lessons": [demonstration.task.key for demonstration in self.demonstrations],
        }
        path.parent.mkdir(parents=True, exist_ok=True)
        save_with_tensors(path, data, {key: val.detach().cpu() for key, val in tensors.items()})

    def resume(self, path: Path) -> None:
        """Stand where a file says; plans better than the teachers' are found anew.

        Raises:
            FileError: It is missing, damaged or no training of GO.
        """
        data, tensors = load_with_tensors(path)
        checkpoint = body(data, "go-training")
        policy_tensors = {
            key.removeprefix(_POLICY): val
            for key, val in tensors.items()
            if key.startswith(_POLICY)
        }
        self.policy.load_state_dict(restore(checkpoint, policy_tensors).state_dict())
        moments: dict[int, dict[str, torch.Tensor]] = {}
        for key, value in tensors.items():
            if key.startswith(_ADAM):
                parameter, _, name = key.removeprefix(_ADAM).partition(".")
                moments.setdefault(int(parameter), {})[name] = value
        fresh_state = self.optimizer.state_dict()
        self.optimizer.load_state_dict({**fresh_state, "state": moments})
        self.steps, self.seconds = int(checkpoint["steps"]), float(checkpoint["seconds"])


def _advantage(
    reward: NDArray[np.float64], start_plans: dict[str, NDArray[np.int64]]
) -> NDArray[np.float64]:
    """Episodes × 1: rewards less the mean of those that began alike, in deviations of all."""
    start = np.concatenate(list(start_plans.values()), axis=1)
    _, start_group = np.unique(start, axis=0, return_inverse=True)
    start_group = start_group.reshape(-1)
    mean = np.bincount(start_group, reward) / np.bincount(start_group)
    residual = reward - mean[start_group]
    return (residual / max(float(residual.std()), 1e-6))[:, None]


def initial_policy(
    config: GoConfig,
    demonstrations: Sequence[Demonstration],
    seed: int,
    checkpoint: Path | None = None,
) -> Go:
    """A fresh policy, or one that was trained before."""
    if checkpoint is None:
        return config.build(demonstrations[0].problem, seed)
    policy: Any = load(checkpoint)
    policy.config = replace(policy.config, max_groups=config.max_groups)
    resumed: Go = policy
    return resumed


def report_rows(trainer: GoTrainer) -> list[dict[str, Any]]:
    """For each lesson the likeliest plan and the best one found, over its teacher's plan."""
    rows = []
    for index, demonstration in enumerate(trainer.demonstrations):
        reference_seconds = trainer.reference_seconds(index)
        rows.append(
            {
                "task": demonstration.task.key,
                "units": len(trainer.policy.observe(demonstration.problem)),
                "teacher": reference_seconds,
                "likeliest": trainer.greedy_seconds(index) / reference_seconds,
                "best": trainer.environments[index].best_key[1] / reference_seconds,
                "plans": trainer.environments[index].evaluations,
            }
        )
    return rows
