"""Command-line options shared by a training and a sweep of trainings."""

from pathlib import Path
from typing import Annotated

import typer

from services.predict.training.recipe import Recipe, recipe_keys

KEYS = ", ".join(sorted(recipe_keys()))

RecipeFile = Annotated[
    Path | None, typer.Option("--recipe", help=f"TOML file of hyperparameters: {KEYS}.", show_default="as published")
]
Steps = Annotated[int | None, typer.Option(help="Optimizer steps.", show_default=str(Recipe.num_steps))]
BatchSize = Annotated[
    int | None, typer.Option(help="Examples per step, over all processes.", show_default=str(Recipe.batch_size))
]
LearningRate = Annotated[
    float | None,
    typer.Option(help="Initial learning rate, decaying linearly to 0.", show_default=str(Recipe.learning_rate)),
]
