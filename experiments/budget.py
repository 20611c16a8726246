"""Print the number of training steps in a time on this machine: budget.py MINUTES RECIPE DATA SETTINGS..."""

import sys

from phiseg.data.store import Dataset
from phiseg.training.budget import seconds_per_step
from phiseg.training.recipe import load_recipe

minutes, recipe, data, *settings = sys.argv[1:]
dataset = Dataset.open(data)
print(max(1, round(60 * float(minutes) / seconds_per_step(load_recipe(recipe, settings), dataset))))
