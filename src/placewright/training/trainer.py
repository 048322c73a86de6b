"""The trainer: problems and a recipe in, a trained policy and the best plans it made out."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from placewright.training.algorithms import Pressure
from placewright.training.multi_graph import (
    Joined,
    Several,
    act_all,
    padded,
)
from placewright.training.rewards import returns
from placewright.training.start_plans import start_times
from placewright.training.threads import torch_threads

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    import torch
    from numpy.typing import NDArray

    from placewright.policies import Episodes, Policy
    from placewright.problem import Problem
    from placewright.training.environment import Environment, Judged
    from placewright.training.recipes.base import Recipe

SAMPLED, LIKELIEST = "sampled", "argmax"
"""Who found a plan: it was drawn, or it was the policy's likeliest."""


@dataclass(frozen=True)
class Row:
    """What one update was like.

    Args:
        plans: Judged so far.
        best: The best objective so far of the problem at hand, whether or not it fits.
        mean: Of the plans drawn in this update.
        likeliest: The objective of the argmax plan after the update; not a number where it was not
            asked for.
        entropy: Of the decisions, as a share of an even choice's; the first head's mean.
        invalid: The share of the plans drawn that do not fit.
    """

    update: int
    plans: int
    best: float
    mean: float
    likeliest: float
    entropy: float
    invalid: float
    gradient: float
    rate: float


class Trainer:
    """Trains one policy on one problem or several, an update at a time.

    The same problems, recipe, seed and budget give the same plans: what is drawn in an update
    depends on the seed and the update's number alone.

    Args:
        plans: How many plans to judge, all problems together; schedules go by it.
        policy: A policy to go on with; a fresh one for the first problem by default.
        device: Where the policy lives: `cpu`, `cuda`, or `auto` for a GPU if there is one.
    """

    def __init__(
        self,
        environments: Sequence[Environment],
        recipe: Recipe,
        seed: int = 0,
        plans: int = 5000,
        policy: Policy | None = None,
        device: str = "auto",
    ) -> None:
        import torch

        self.environments, self.recipe = list(environments), recipe
        self.seed, self.plans = seed, plans
        with torch_threads():
            fresh = policy or recipe.shape.build(self.environments[0].problem, seed)
            if device == "auto":
                device = "cuda" if torch.cuda.is_available() else "cpu"
            self.policy: Policy = fresh.to(device)  # type: ignore[attr-defined]
        if hasattr(self.policy, "starts"):
            self.policy.starts = self._starts
        self.optimizer: torch.optim.Optimizer = torch.optim.Adam(
            self.policy.parameters(), lr=recipe.rate(0.0)
        )
        self.baseline = recipe.baseline()
        self.updates = 0
        self.over = False
        self.rows: list[Row] = []
        self.elite: dict[int, Episodes] = {}
        """For each problem the episode that made its best plan."""
        self.likeliest: dict[int, tuple[bytes, float]] = {}
        """For each problem the argmax plan that was judged last, and its objective."""

    @property
    def evaluations(self) -> int:
        """Plans judged so far."""
        return sum(environment.evaluations for environment in self.environments)

    def run(self, watch: Callable[[Trainer], bool] | None = None, threads: int = 1) -> None:
        """Train until the budget is used.

        Args:
            watch: Called after each update; training pauses if it says false.
        """
        with torch_threads(threads):
            while not self.over:
                self.update()
                if watch is not None and not watch(self):
                    return

    def update(self) -> None:
        """Draw plans, judge them, learn from them, and judge what the policy now likes best."""
        recipe, done = self.recipe, min(self.evaluations / self.plans, 1.0)
        turns = self._turns()
        problems = [self.environments[at].problem for at in turns]
        noise, rate = recipe.noise(done), recipe.rate(done)
        seeds = [self._draw_seed(place) for place in range(len(turns))]
        drawn = act_all(self.policy, problems, recipe.samples, seeds, noise=noise)
        judged = []
        for at, episodes in zip(turns, drawn, strict=True):
            found = self._judge(at, episodes, SAMPLED)
            if found is None:
                return
            judged.append(found)
        credits = [self._credit(*each, done) for each in zip(turns, drawn, judged, strict=True)]
        for group in self.optimizer.param_groups:
            group["lr"] = rate
        said: dict[str, float] = {}
        if any(counted for _, counted in credits):
            said = self._learn(turns, drawn, [advantage for advantage, _ in credits], done)
        self.updates += 1
        liked: Sequence[Episodes | None] = [None] * len(turns)
        if recipe.asked and self.updates % recipe.asked == 0:
            liked = act_all(self.policy, problems, 1, [0] * len(turns), greedy=True)
        for at, found, likes in zip(turns, judged, liked, strict=True):
            value = float("nan") if likes is None else self._judge_likeliest(at, likes)
            self._log(self.environments[at], found, value, said, rate)

    def _turns(self) -> list[int]:
        """The problems of this update."""
        count = min(self.recipe.graphs, len(self.environments))
        first = self.updates * count
        return [(first + place) % len(self.environments) for place in range(count)]

    def _credit(
        self, at: int, episodes: Episodes, judged: Judged, done: float
    ) -> tuple[NDArray[np.float64], bool]:
        """Episodes × steps: how much better than expected each went; whether any counts."""
        recipe, environment = self.recipe, self.environments[at]
        reward = recipe.reward(judged, environment.reference)
        credit = returns(reward, episodes.owner, len(episodes), recipe.discount)
        last = len(judged.seconds) // len(episodes) - 1
        counted = np.ones(len(episodes), dtype=bool)
        if done >= recipe.valid_only:
            counted = judged.valid.reshape(len(episodes), -1)[:, last]
        graph = environment.problem.graph.fingerprint
        return self.baseline.advantage(credit, counted, graph), bool(counted.any())

    def _learn(
        self,
        turns: list[int],
        drawn: list[Episodes],
        advantages: list[NDArray[np.float64]],
        done: float,
    ) -> dict[str, float]:
        recipe, policy = self.recipe, self.policy
        problems = [self.environments[at].problem for at in turns]
        episodes, advantage, best = drawn[0], advantages[0], self.elite.get(turns[0])
        if len(turns) > 1:
            policy = Joined(policy, problems)  # type: ignore[assignment]
            episodes, advantage = Several.of(drawn), np.concatenate(padded(advantages))
            best = Several.of([self.elite[at] for at in turns])
        pressure = Pressure(
            recipe.bonus(done), recipe.floor(done), recipe.clip, recipe.imitate(done), best
        )
        return recipe.algorithm.update(
            policy, problems[0], episodes, advantage, self.optimizer, pressure
        )

    def _judge(self, at: int, episodes: Episodes, who: str) -> Judged | None:
        """Plans judged; None, and training is over, if the budget does not allow them all."""
        environment, device = self.environments[at], episodes.device
        if self.evaluations and self.evaluations + len(device) > self.plans:
            self.over = True
            return None
        before = environment.key
        judged = environment.judge(device, who, episodes.priority)
        if len(judged.seconds) < len(device):
            self.over = True
            return None
        if environment.key < before:
            best = int(np.lexsort((judged.seconds, judged.over))[0])
            self.elite[at] = self.policy.only(episodes, int(episodes.owner[best]))
        return judged

    def _judge_likeliest(self, at: int, episodes: Episodes) -> float:
        """The objective of the argmax plan, which is judged, and counted, whenever it changes."""
        device = episodes.device[-1:]
        mark, value = self.likeliest.get(at, (b"", float("nan")))
        if device.tobytes() != mark:
            order = None if episodes.priority is None else episodes.priority[-1:]
            alone = replace(episodes, device=device, owner=episodes.owner[-1:], priority=order)
            judged = self._judge(at, alone, LIKELIEST)
            if judged is not None:
                value = float(judged.seconds[-1])
                self.likeliest[at] = device.tobytes(), value
        return value

    def _draw_seed(self, place: int) -> int:
        words = [self.seed, self.updates, *([place] if place else [])]
        return int(np.random.SeedSequence(words).generate_state(1)[0])

    def _starts(self, problem: Problem, device: NDArray[np.int32]) -> NDArray[np.float64]:
        """When ops start, for a policy that wants to know inside an episode.

        Such plans are judged too, and counted, unless they are judged again with each step.
        """
        if not getattr(self.policy.shape, "steps", False):  # type: ignore[attr-defined]
            for environment in self.environments:
                if environment.problem is problem:
                    environment.evaluations += len(device)
        return start_times(problem, device)

    def _log(
        self,
        environment: Environment,
        judged: Judged,
        likeliest: float,
        said: dict[str, float],
        rate: float,
    ) -> None:
        shares = [value for name, value in said.items() if name.startswith("entropy/")]
        ran = judged.seconds[np.isfinite(judged.seconds)]
        self.rows.append(
            Row(
                self.updates,
                self.evaluations,
                environment.key[1],
                float(ran.mean()) if len(ran) else float("nan"),
                likeliest,
                float(np.mean(shares)) if shares else float("nan"),
                float(1 - judged.valid.mean()),
                said.get("gradient", 0.0),
                rate,
            )
        )
