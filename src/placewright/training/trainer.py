"""The trainer: problems and a recipe in, a trained policy and the best plans it made out."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from placewright.training.algorithms import Pressure
from placewright.training.rewards import returns
from placewright.training.threads import torch_threads

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    import torch

    from placewright.policies import Episodes, Policy
    from placewright.training.environment import Environment, Judged
    from placewright.training.recipe import Recipe

SAMPLED, LIKELIEST = "sampled", "argmax"
"""Who found a plan: it was drawn, or it was the policy's likeliest."""


@dataclass(frozen=True)
class Row:
    """What one update was like.

    Args:
        plans: Judged so far.
        best: The best objective so far of the problem at hand, whether or not it fits.
        mean: Of the plans drawn in this update.
        likeliest: The objective of the argmax plan after the update.
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
        at = self.updates % len(self.environments)
        environment, policy = self.environments[at], self.policy
        noise, rate = recipe.noise(done), recipe.rate(done)
        episodes = policy.act(environment.problem, recipe.samples, self._draw_seed(), noise=noise)
        judged = self._judge(at, episodes, SAMPLED)
        if judged is None:
            return
        reward = recipe.reward(judged, environment.reference)
        credit = returns(reward, episodes.owner, len(episodes))
        last = len(judged.seconds) // len(episodes) - 1
        counted = np.ones(len(episodes), dtype=bool)
        if done >= recipe.valid_only:
            counted = judged.valid.reshape(len(episodes), -1)[:, last]
        graph = environment.problem.graph.fingerprint
        advantage = self.baseline.advantage(credit, counted, graph)
        for group in self.optimizer.param_groups:
            group["lr"] = rate
        pressure = Pressure(
            recipe.bonus(done),
            recipe.floor(done),
            recipe.clip,
            recipe.imitate(done),
            self.elite.get(at),
        )
        said: dict[str, float] = {}
        if counted.any():
            said = recipe.algorithm.update(
                policy, environment.problem, episodes, advantage, self.optimizer, pressure
            )
        self.updates += 1
        self._log(environment, judged, self._judge_likeliest(at), said, rate)

    def _judge(self, at: int, episodes: Episodes, who: str) -> Judged | None:
        """Plans judged; None, and training is over, if the budget does not allow them all."""
        environment, device = self.environments[at], episodes.device
        if self.evaluations and self.evaluations + len(device) > self.plans:
            self.over = True
            return None
        before = environment.key
        judged = environment.judge(device, who)
        if len(judged.seconds) < len(device):
            self.over = True
            return None
        if environment.key < before:
            best = int(np.lexsort((judged.seconds, judged.over))[0])
            self.elite[at] = self.policy.only(episodes, int(episodes.owner[best]))
        return judged

    def _judge_likeliest(self, at: int) -> float:
        """The objective of the argmax plan, which is judged, and counted, whenever it changes."""
        environment = self.environments[at]
        episodes = self.policy.act(environment.problem, 1, 0, greedy=True)
        device = episodes.device[-1:]
        mark, value = self.likeliest.get(at, (b"", float("nan")))
        if device.tobytes() != mark:
            judged = self._judge(at, episodes, LIKELIEST)
            if judged is not None:
                value = float(judged.seconds[0])
                self.likeliest[at] = device.tobytes(), value
        return value

    def _draw_seed(self) -> int:
        return int(np.random.SeedSequence([self.seed, self.updates]).generate_state(1)[0])

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
