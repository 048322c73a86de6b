"""Trains policies on placement problems with RL recipes; it needs torch."""

from placewright.outcome import Outcome
from placewright.training.algorithms import PPO, Algorithm, Regularization, Reinforce
from placewright.training.asynchronous import AsynchronousTrainer, Controllers
from placewright.training.baselines import (
    Baseline,
    BatchNormalised,
    MovingAverage,
    PerGraph,
    PerStep,
    StartNormalised,
    TopShare,
)
from placewright.training.batched_reinforce import BatchedReinforce
from placewright.training.checkpoints import read_checkpoint, restore, save_checkpoint
from placewright.training.control_algorithms import NoUpdate, WithoutRewards
from placewright.training.environment import Environment, simulate_plans
from placewright.training.hooks import TrainerHooks
from placewright.training.recipes.arms import ARMS, with_arm
from placewright.training.recipes.base import Recipe
from placewright.training.recipes.registry import RECIPES, find_recipe
from placewright.training.rewards import FixedPenalty, GradedPenalty, Reward
from placewright.training.schedules import (
    Constant,
    Decay,
    Linear,
    Schedule,
    Staircase,
    Step,
    Until,
)
from placewright.training.trained_solver import TrainedSolver, training_result
from placewright.training.trainer import Trainer
from placewright.training.updates import UpdateLog

__all__ = [
    "ARMS",
    "PPO",
    "RECIPES",
    "Algorithm",
    "AsynchronousTrainer",
    "Baseline",
    "BatchNormalised",
    "BatchedReinforce",
    "Constant",
    "Controllers",
    "Decay",
    "Environment",
    "FixedPenalty",
    "GradedPenalty",
    "Linear",
    "MovingAverage",
    "NoUpdate",
    "Outcome",
    "PerGraph",
    "PerStep",
    "Recipe",
    "Regularization",
    "Reinforce",
    "Reward",
    "Schedule",
    "Staircase",
    "StartNormalised",
    "Step",
    "TopShare",
    "TrainedSolver",
    "Trainer",
    "TrainerHooks",
    "Until",
    "UpdateLog",
    "WithoutRewards",
    "find_recipe",
    "read_checkpoint",
    "restore",
    "save_checkpoint",
    "simulate_plans",
    "training_result",
    "with_arm",
]
