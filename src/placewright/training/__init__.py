"""Problems and a recipe in, a trained policy and its best plans out. It needs torch."""

from placewright.training.algorithms import PPO, Algorithm, Pressure, Reinforce
from placewright.training.baselines import (
    Baseline,
    BatchNormalised,
    MovingAverage,
    PerGraph,
    PerStep,
)
from placewright.training.checkpoints import read_checkpoint, restore, save_checkpoint
from placewright.training.environment import Environment, Judged, simulated
from placewright.training.recipes.base import Recipe
from placewright.training.recipes.registry import RECIPES, recipe
from placewright.training.rewards import Constant, Graded, Reward
from placewright.training.schedules import Always, Schedule, Staircase, Straight, Until
from placewright.training.trained_solver import Learned, result_of
from placewright.training.trainer import Row, Trainer

__all__ = [
    "PPO",
    "RECIPES",
    "Algorithm",
    "Always",
    "Baseline",
    "BatchNormalised",
    "Constant",
    "Environment",
    "Graded",
    "Judged",
    "Learned",
    "MovingAverage",
    "PerGraph",
    "PerStep",
    "Pressure",
    "Recipe",
    "Reinforce",
    "Reward",
    "Row",
    "Schedule",
    "Staircase",
    "Straight",
    "Trainer",
    "Until",
    "read_checkpoint",
    "recipe",
    "restore",
    "result_of",
    "save_checkpoint",
    "simulated",
]
