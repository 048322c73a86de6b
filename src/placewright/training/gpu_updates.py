"""Updates of a trainer that stay on a GPU: samples, times, gradients and the optimizer's step.

For ColocRL on one problem whose plans lanes can evaluate. Sampling and learning are captured in
CUDA graphs; plans never leave the GPU but for the best of them, which are judged exactly after a
few updates. Only exact figures are reported. Policies learn from float32 times, and from the least
that a plan's memory can be: of the plans whose bounds leave open if they fit, some are judged
exactly too, and the share that does not fit is logged. The same samples give the same update as
`BatchedReinforce` on the CPU, but for rounding (a test). The samples of an update depend on the
seed and its number alone, so that a checkpoint needs no random state.
"""

from __future__ import annotations

import math
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch

from placewright.errors import ConfigError
from placewright.policies.colocrl.policy import ColocRL
from placewright.policies.colocrl.rollout import ColocRLRollouts
from placewright.simulator.gpu_lanes import GpuLanes
from placewright.training.batched_reinforce import BatchedReinforce
from placewright.training.control_algorithms import NoUpdate
from placewright.training.cuda_graphs import CapturedFunction
from placewright.training.environment import JudgedPlans, simulate_plans
from placewright.training.gpu_candidates import Candidates
from placewright.training.gpu_objectives import (
    LaneOutcome,
    advantages,
    check_objective,
    graded_rewards,
)
from placewright.training.hooks import GREEDY, TrainerHooks
from placewright.training.sampling import episode_seed
from placewright.training.updates import UpdateLog

if TYPE_CHECKING:
    from collections.abc import Iterator

    from placewright.policies.seq2seq_rollout import PlacerRollout
    from placewright.simulator.lane_batch import LaneVerdict
    from placewright.training.environment import Environment
    from placewright.training.trainer import Trainer

_FIGURES = ("mean", "infeasible", "open", "tied", "entropy", "gradient", "gradient/other", "cosine")
_LOSSES = 2  # rewards and entropy
_OPEN_PLANS = 16  # of the last update, judged exactly to know how many of them fit
_SLACK = 1e-3  # candidates slower than the best by more than this are not judged


@dataclass(frozen=True)
class GpuUpdateConfig:
    """How updates on a GPU are made.

    Args:
        updates: Updates between two exact judgements of the best plans; the first ones are 1, 1, 2,
            4, … updates apart.
        candidates: Plans of each kind that are judged then.
        precision: Of matrix products: `float32`, or `tf32`, which is faster and rounds inputs to
            11 bits. Samples and gradients are of the same rounded policy.
        captures: Whether CUDA graphs are captured.
    """

    updates: int = 16
    candidates: int = 8
    precision: str = "float32"
    captures: bool = True

    def __post_init__(self) -> None:
        if self.updates < 1 or self.candidates < 1:
            raise ConfigError(
                f"{self.updates} updates with {self.candidates} candidates: expected 1 or more"
            )
        if self.precision not in ("float32", "tf32"):
            raise ConfigError(f"no precision is named {self.precision!r}: expected float32 or tf32")

    @property
    def identity(self) -> str:
        """What changes results, for checkpoints."""
        return f"{self.updates} updates, {self.candidates} candidates, {self.precision}"


class GpuUpdates:
    """Makes the updates of a trainer, where its policy is.

    Raises:
        ConfigError: The recipe, policy or environment has settings that these updates do not know.
        ProblemError: The problem is not one that lanes can evaluate.
    """

    def __init__(self, trainer: Trainer, config: GpuUpdateConfig) -> None:
        self.config = config
        self.trainer, recipe = trainer, trainer.recipe
        policy = _check_scope(trainer)
        self.environment = trainer.environments[0]
        problem = self.environment.problem
        self.reward, self.baseline = check_objective(recipe.reward, trainer.baseline)
        self.device, self.count = policy.placer.go.device, recipe.episodes
        self.grouping = policy.grouping(problem)
        self.rollouts = ColocRLRollouts(policy, problem)
        self.batch = GpuLanes(problem, self.grouping.group, device=self.device).make_batch(
            self.count
        )
        steps, devices = self.rollouts.shape
        self.candidates = Candidates(steps, min(config.candidates, self.count), self.device)
        self.parameters = list(policy.parameters())
        self.generator = torch.Generator(self.device)
        self._exponential = torch.empty((steps, self.count, devices), device=self.device)
        self._advantage = torch.zeros(self.count, device=self.device)
        self._entropy_bonus = torch.zeros((), device=self.device)
        self._gradient_figures = torch.zeros(3, device=self.device)
        self._is_infinite = torch.zeros((), device=self.device)
        self._figures = torch.zeros(
            (config.updates, len(_FIGURES)), dtype=torch.float64, device=self.device
        )
        self._sample = CapturedFunction(self._sample_plans, self.device, config.captures)
        self._learn = CapturedFunction(self._take_step, self.device, config.captures)
        self._rollout: PlacerRollout | None = None
        self._outcome: LaneOutcome | None = None
        self._moments: object = None
        self.max_lane_error = 0.0
        """The largest relative difference found between the lanes' times and exact ones."""
        self.open_plans = self.open_unfit_plans = 0
        """Open plans that were judged exactly, and how many of them did not fit."""

    @property
    def learns(self) -> bool:
        """Whether the policy changes."""
        return not isinstance(self.trainer.recipe.algorithm, NoUpdate)

    @property
    def notes(self) -> list[str]:
        """What is slower than it could be, and why."""
        reasons = {
            "PyTorch computes what CUDA kernels could": self.rollouts.fallback_reason,
            "sampling is not captured in a CUDA graph": self._sample.error,
            "learning is not captured in a CUDA graph": self._learn.error,
        }
        return [f"{what}: {why}" for what, why in reasons.items() if why]

    def update(self) -> None:
        """Make some updates, judge the best of their plans, and log them."""
        trainer = self.trainer
        first, limit, rates = trainer.updates, trainer.max_evaluations, []
        is_over = False
        for row in range(min(self.config.updates, max(1, first))):
            # One plan is left for the argmax plan at the end. The first update is always made.
            needed = self.environment.evaluations + self.count + 1
            if limit is not None and trainer.updates and needed > limit:
                is_over = True
                break
            if trainer.max_updates is not None and trainer.updates >= trainer.max_updates:
                break
            progress = trainer.progress
            rates.append(trainer.recipe.learning_rate(progress))
            self.environment.evaluations += self.count
            self.sample(trainer.updates)
            self.judge(row)
            if self.learns:
                self.learn(progress)
            self._figures[row, 5:] = self._gradient_figures
            trainer.updates += 1
        self._judge_candidates()
        open_unfit = self._judge_open_plans() if rates else math.nan
        self._log(first, rates, self._judge_argmax(first, is_over), open_unfit)
        trainer.finished = is_over

    def sample(self, update: int) -> None:
        """Sample the plans of an update."""
        self.generator.manual_seed(episode_seed(self.trainer.seed, update))
        self._exponential.exponential_(generator=self.generator)
        with self._precision():
            self._rollout = self._sample()

    def judge(self, row: int = 0) -> None:
        """Evaluate them in lanes: advantages, candidates for the best plan, and figures.

        Args:
            row: The row of the figures.
        """
        verdict = self.batch.evaluate()
        outcome = self._outcome = LaneOutcome.of(verdict)
        returns = graded_rewards(self.reward, outcome, self.environment.reference_seconds)
        self._advantage.copy_(advantages(self.baseline, returns))
        self.candidates.add(self.batch.places, outcome, self.environment.evaluations)
        self._add_figures(self._figures[row], outcome, verdict)

    def learn(self, progress: float) -> None:
        """Take the optimizer's step."""
        recipe, group = self.trainer.recipe, self.trainer.optimizer.param_groups[0]
        regularization = recipe.regularization(progress, None)
        if regularization.self_imitation or regularization.entropy_floor:
            raise ConfigError("updates on a GPU know neither self-imitation nor an entropy floor")
        moments = self.trainer.optimizer.state.get(self.parameters[0])
        if moments is not self._moments:  # a checkpoint was restored, or this is the first step
            self._learn.reset()
        group["lr"].fill_(recipe.learning_rate(progress))
        self._entropy_bonus.fill_(regularization.entropy_bonus)
        with self._precision():
            self._learn(may_capture=self._sample.is_captured)  # else each rollout is elsewhere
        self._moments = self.trainer.optimizer.state[self.parameters[0]]

    def _sample_plans(self) -> PlacerRollout:
        rollout = self.rollouts.sample(self._exponential.log().neg_())
        self.batch.places.copy_(rollout.devices)
        return rollout

    def _take_step(self) -> bool:
        """The gradients of rewards and of entropy, clipped one by one, and Adam's step."""
        rollout = self._rollout
        assert rollout is not None
        terms = torch.stack(
            [
                rollout.log_prob_gradient(self._advantage / -self.count),
                rollout.entropy_gradient() * (self._entropy_bonus / -self.count),
            ],
            dim=1,
        )
        gradients = self.rollouts.gradients(rollout, terms)
        flat = torch.cat([gradient.reshape(_LOSSES, -1) for gradient in gradients], dim=1)
        norms = torch.linalg.vector_norm(flat, dim=1)
        limit = self.trainer.recipe.max_grad_norm
        scale = (limit / norms.clamp(min=limit)) if limit > 0 else torch.ones_like(norms)
        product = (flat[0] * flat[1]).sum()
        cosine = product / norms.prod().clamp(min=torch.finfo(norms.dtype).tiny)
        self._gradient_figures.copy_(torch.cat([norms, cosine[None]]))
        for parameter, gradient in zip(self.parameters, gradients, strict=True):
            if parameter.grad is None:
                parameter.grad = torch.empty_like(parameter)
            shape = (_LOSSES, *(1 for _ in parameter.shape))
            parameter.grad.copy_((gradient * scale.view(shape)).sum(dim=0))
        # Adam's fused step leaves everything as it is where this is not 0.
        self._is_infinite.copy_(~torch.isfinite(norms).all())
        self.trainer.optimizer.found_inf = self._is_infinite  # type: ignore[attr-defined]
        self.trainer.optimizer.step()
        return True

    def _add_figures(self, row: torch.Tensor, outcome: LaneOutcome, verdict: LaneVerdict) -> None:
        assert self._rollout is not None
        entropy = self._rollout.entropy.mean(dim=1).sum() / self.rollouts.max_entropy
        figures = [
            outcome.seconds.mean(),
            outcome.is_unfit.double().mean(),
            outcome.is_open.double().mean(),
            verdict.is_tied.double().mean(),
            entropy.double(),
        ]
        row[: len(figures)] = torch.stack(figures)

    def _judge_candidates(self) -> None:
        """Judge the best plans exactly and keep the best of them; this waits for the GPU."""
        found, environment = self.candidates.take(), self.environment
        over, best = environment.best_key
        chosen = np.arange(len(found.seconds))
        if over == 0 and np.isfinite(best):
            chosen = np.flatnonzero(found.seconds <= best * (1 + _SLACK))
        if not len(chosen):
            return
        problem = environment.problem
        placements = problem.legalize(self.grouping.expand(found.places[chosen]))
        outcome = environment.measure(problem, placements)
        plans = JudgedPlans(placements, outcome)
        for index, count in enumerate(found.found_at[chosen]):
            environment.keep(plans, index, int(count), "sampled")
        error = np.abs(found.seconds[chosen] / outcome.seconds - 1)
        self.max_lane_error = max(self.max_lane_error, float(np.nanmax(error, initial=0.0)))

    def _judge_open_plans(self) -> float:
        """Of some open plans of the last update, the share that does not fit."""
        assert self._outcome is not None
        index = self._outcome.is_open.nonzero()[:_OPEN_PLANS, 0]
        if not len(index):
            return math.nan
        problem = self.environment.problem
        places = self.batch.places[:, index].T.cpu().numpy().astype(np.int32)
        placements = problem.legalize(self.grouping.expand(places))
        unfit = int((self.environment.measure(problem, placements).overflow > 0).sum())
        self.open_plans += len(index)
        self.open_unfit_plans += unfit
        return unfit / len(index)

    def _judge_argmax(self, first: int, is_over: bool) -> float:
        """The objective of the argmax plan; not a number if it is not its turn."""
        trainer, interval = self.trainer, self.trainer.recipe.greedy_every
        if not interval or not (is_over or first // interval < trainer.updates // interval):
            return math.nan
        episodes = trainer.policy.act(self.environment.problem, 1, 0, greedy=True)
        value = self.environment.judge(episodes.placements, GREEDY).seconds[0]
        trainer.greedy_plans[0] = episodes.placements.tobytes(), float(value)
        return float(value)

    def _log(self, first: int, rates: list[float], greedy: float, open_unfit: float) -> None:
        """Add rows for the updates since the first one; the last has further figures.

        Args:
            open_unfit: The share of open plans that do not fit.
        """
        rows = self._figures[: len(rates)].cpu().tolist()
        total = self.environment.evaluations - math.isfinite(greedy)
        for index, (row, rate) in enumerate(zip(rows, rates, strict=True)):
            figures, is_last = dict(zip(_FIGURES, row, strict=True)), index == len(rates) - 1
            plans = total - (len(rates) - 1 - index) * self.count
            log = UpdateLog(
                first + index + 1,
                self.environment.evaluations if is_last else plans,
                _best_after(self.environment, plans),
                figures["mean"],
                greedy if is_last else math.nan,
                figures["entropy"],
                figures["infeasible"],
                figures["gradient"],
                rate,
                stats={
                    "open": figures["open"],
                    "tied": figures["tied"],
                    "entropy/devices": figures["entropy"],
                    "gradient/other": figures["gradient/other"],
                    "gradient/cosine": figures["cosine"],
                },
            )
            if is_last and math.isfinite(open_unfit):
                log.stats["open/unfit"] = open_unfit
            self.trainer.log.append(log)

    @contextmanager
    def _precision(self) -> Iterator[None]:
        """Products of matrices with the precision that was chosen."""
        before = torch.get_float32_matmul_precision()
        torch.set_float32_matmul_precision("high" if self.config.precision == "tf32" else "highest")
        try:
            yield
        finally:
            torch.set_float32_matmul_precision(before)


def make_optimizer(policy: ColocRL, learning_rate: float) -> torch.optim.Optimizer:
    """Adam whose step and learning rate are on the policy's device, so that it can be captured."""
    device = policy.placer.go.device
    rate = torch.tensor(learning_rate, device=device)
    is_cuda = device.type == "cuda"
    return torch.optim.Adam(policy.parameters(), lr=rate, fused=True, capturable=is_cuda)


def _best_after(environment: Environment, plans: int) -> float:
    values = [value for count, _, value in environment.history if count <= plans]
    return values[-1] if values else math.nan


def _check_scope(trainer: Trainer) -> ColocRL:
    """The policy of a trainer whose updates can be made on a GPU."""
    recipe, policy = trainer.recipe, trainer.policy
    ends = (0.0, 0.5, 1.0)
    reasons = {
        f"the policy is {policy.name!r}, not 'colocrl'": not isinstance(policy, ColocRL),
        f"there are {len(trainer.environments)} problems, not 1": len(trainer.environments) != 1,
        "plans are measured": trainer.environments[0].measure is not simulate_plans,
        "there are micro-batches": trainer.micro_batches is not None,
        f"the algorithm is {type(recipe.algorithm).__name__}": not isinstance(
            recipe.algorithm, (BatchedReinforce, NoUpdate)
        ),
        "the recipe has hooks": type(trainer.hooks) is not TrainerHooks,
        "there is noise on the logits": any(recipe.logit_noise(end) for end in ends),
        "there is self-imitation": any(recipe.self_imitation(end) for end in ends),
        "there is an entropy floor": any(recipe.entropy_floor(end) for end in ends),
        "plans that do not fit are left out": recipe.drop_infeasible_after < 1,
    }
    found = [reason for reason, holds in reasons.items() if holds]
    if found:
        raise ConfigError(
            f"updates cannot be made on a GPU: {' and '.join(found)}; expected ColocRL with "
            "BatchedReinforce or NoUpdate, from rewards and entropy alone, or leave out gpu_updates"
        )
    assert isinstance(policy, ColocRL)
    return policy
