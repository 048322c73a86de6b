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
)
from placewright.training.checkpoints import read_checkpoint, restore, save_checkpoint
from placewright.training.environment import Environment, simulate_plans
from placewright.training.hooks import TrainerHooks
from placewright.training.recipes.base import Recipe
from placewright.training.recipes.registry import RECIPES, find_recipe
from placewright.training.rewards import FixedPenalty, GradedPenalty, Reward
from placewright.training.schedules import Constant, Decay, Linear, Schedule, Staircase, Step
from placewright.training.trained_solver import TrainedSolver, training_result
from placewright.training.trainer import Trainer
from placewright.training.updates import UpdateLog

__all__ = [
    "PPO",
    "RECIPES",
    "Algorithm",
    "AsynchronousTrainer",
    "Baseline",
    "BatchNormalised",
    "Constant",
    "Controllers",
    "Decay",
    "Environment",
    "FixedPenalty",
    "GradedPenalty",
    "Linear",
    "MovingAverage",
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
    "TrainedSolver",
    "Trainer",
    "TrainerHooks",
    "UpdateLog",
    "find_recipe",
    "read_checkpoint",
    "restore",
    "save_checkpoint",
    "simulate_plans",
    "training_result",
]
