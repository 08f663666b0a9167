"""`python -m starters evaluate distill`: the dissertation's comparison of methods on generated rows."""

from dataclasses import replace
from typing import Annotated, Any

import typer

from services.jobs.options import among, command_line, parse_numbers, split
from services.predict.evaluation import evaluate
from services.predict.evaluation.sweep import Cell
from services.predict.training import recipe as option
from services.predict.training.recipe import METHODS, Recipe
from starters.predict.generated import GENERATED_TASKS, GeneratedSource

TEACHER = "templates"

app = command_line()


@app.command()
def sweep(
    output: evaluate.Output,
    tasks: Annotated[str, typer.Option(help=f"Among {', '.join(GENERATED_TASKS)}.")] = "word-problems",
    models: evaluate.Models = "mini",
    fractions: evaluate.Fractions = "1,0.5,0.25,0.125",
    methods: evaluate.Methods = "standard,step-by-step",
    seeds: evaluate.Seeds = "0,1,2,3",
    num_train: Annotated[int, typer.Option(min=1, help="Number of training rows.")] = GeneratedSource.num_train,
    num_valid: Annotated[int, typer.Option(min=1, help="Number of validation rows.")] = GeneratedSource.num_valid,
    num_test: Annotated[int, typer.Option(min=1, help="Number of test rows.")] = GeneratedSource.num_test,
    recipe: option.RecipeFile = None,
    steps: option.Steps = None,
    batch_size: option.BatchSize = None,
    learning_rate: option.LearningRate = None,
    workers: evaluate.Workers = 1,
    scores_only: evaluate.ScoresOnly = False,
    save: evaluate.Save = None,
    report_only: evaluate.ReportOnly = False,
) -> None:
    """Train a student for each combination of the options, and print the tables of `fovea evaluate distill sweep`."""
    options: dict[str, Any] = dict(locals())
    evaluate.run_sweep("python -m starters evaluate distill", options, lambda: _cells(options))


def _cells(options: dict[str, Any]) -> list[Cell]:
    """List every student once, all students of a seed before those of the next."""
    given = option.recipe_of(Recipe, options)
    numbers = {name: options[name] for name in ("num_train", "num_valid", "num_test")}
    return [
        Cell(
            GeneratedSource(task, fraction=fraction, **numbers),
            model,
            replace(given, method=method, seed=seed),
            None if method == "standard" else TEACHER,
        )
        for seed in parse_numbers(options["seeds"], int, "--seeds")
        for task in split(options["tasks"])
        for model in evaluate.models_of(options["models"])
        for fraction in parse_numbers(options["fractions"], float, "--fractions")
        for method in among(options["methods"], METHODS, "--methods")
    ]


if __name__ == "__main__":
    app()
