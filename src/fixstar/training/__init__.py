"""Training: recipes, the one loop, checkpoints, model selection."""

from fixstar.training.loop import EpochLog, train
from fixstar.training.recipe import CIFAR_CORES, CIFAR_LIFELONG, Recipe, paper_recipe
from fixstar.training.run import Training
from fixstar.training.selection import Standing

__all__ = ["CIFAR_CORES", "CIFAR_LIFELONG", "EpochLog", "Recipe", "Standing", "Training", "paper_recipe", "train"]
