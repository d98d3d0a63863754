"""Training: recipes, the one loop, checkpoints."""

from fixstar.training.loop import EpochLog, Training, train
from fixstar.training.recipe import CIFAR_CORES, CIFAR_LIFELONG, Recipe, paper_recipe

__all__ = ["CIFAR_CORES", "CIFAR_LIFELONG", "EpochLog", "Recipe", "Training", "paper_recipe", "train"]
