"""Recipes for tuning FocalLens: the dissertation's, and Fovea's own. The published ones are in `recipes/`.

A recipe contains neither the data nor the number of processes that share its batch. The defaults are the paper's.
"""

import math
from collections.abc import Mapping
from dataclasses import asdict, replace
from typing import Annotated, Any, ClassVar, TypeVar

import typer
from accelerate.utils import set_seed
from pydantic import Field
from pydantic.dataclasses import dataclass

from services.embed.data.triplets import LlavaData
from services.embed.focallens import Visibility
from services.embed.training.objectives import Contrast
from services.jobs.recipes import PublishedRecipe, chosen_recipe
from services.jobs.training import Run

Number = Annotated[int, Field(ge=1)]
Weight = Annotated[float, Field(ge=0, allow_inf_nan=False)]

# Options of the commands that change a recipe.
Steps = Annotated[int | None, typer.Option(min=1, help="Optimizer steps, instead of the recipe's length.")]
Epochs = Annotated[int | None, typer.Option(min=1, help="Passes over the images, instead of the recipe's length.")]
BatchSize = Annotated[int | None, typer.Option(min=1, help="Images per step, over all processes.")]
Symmetric = Annotated[
    bool | None, typer.Option("--symmetric/--rows-only", help="Loss: whether each answer also chooses among the rows.")
]


@dataclass(frozen=True)
class Recipe(PublishedRecipe):
    """The hyper-parameters that both models have.

    `batch_size` counts images, whose turns are the rows. A run takes `steps` optimizer steps, or if that is None,
    `epochs` of its images. `scale` is a fixed logit scale, 0 CLIP's own, trained further. If `symmetric`, the loss also
    chooses among the rows for each answer. If `merges_answers`, equal answers of a batch are one, and rows that give it
    no false negatives. Raises ValueError for invalid values.
    """

    batch_size: Number = 2048
    epochs: Number = 20
    steps: Number | None = None
    learning_rate: Annotated[float, Field(gt=0, le=1)] = 2e-5
    weight_decay: Weight = 0.0
    warmup_ratio: Annotated[float, Field(ge=0, le=1)] = 0.03
    scale: Weight = 0.0
    symmetric: bool = False
    merges_answers: bool = False

    package: ClassVar[str] = "services.embed.training"

    @property
    def contrast(self) -> Contrast:
        """The constants of the loss."""
        return Contrast(self.symmetric, self.merges_answers)

    def run(self, num_images: int, **options: Any) -> Run:
        """Make the schedule over `num_images`, with the other `options` of a Run. Raises Refused as that does."""
        own = {name: getattr(self, name) for name in ("batch_size", "learning_rate", "weight_decay", "warmup_ratio")}
        num_steps = self.steps or math.ceil(self.epochs * num_images / self.batch_size)
        arguments = {key: value for key, value in asdict(self).items() if key not in ("epochs", "steps")}
        return Run(num_steps=num_steps, stage="tuning", arguments=arguments, **own, **options)


@dataclass(frozen=True)
class ClipRecipe(Recipe):
    """FocalLens-CLIP: `base` is a CLIP's name in the store or open_clip's, with `pretrained` weights, or a folder.

    `condition_layer` is the block before which the condition joins, `visibility` what sees it.
    """

    base: str = "ViT-L-14-336"
    pretrained: str | None = None
    condition_layer: Annotated[int, Field(ge=0)] = 0
    visibility: Visibility = "full"

    folder: ClassVar[str] = "recipes/focallens"


@dataclass(frozen=True)
class MllmRecipe(Recipe):
    """FocalLens-MLLM: `lora_rank` 0 tunes the whole language model, otherwise only matrices of that rank."""

    batch_size: Number = 384
    epochs: Number = 2
    lora_rank: Annotated[int, Field(ge=0)] = 0

    folder: ClassVar[str] = "recipes/focallens-mllm"


RecipeT = TypeVar("RecipeT", bound=Recipe)


def tuning(kind: type[RecipeT], asked: Mapping[str, Any]) -> tuple[RecipeT, LlavaData, Run]:
    """Choose the recipe by a command's options, open its data, and make its schedule, folder and seed."""
    changes = {key: value for key, value in asked.items() if key in kind.known_keys()}
    chosen = chosen_recipe(kind, asked["recipe"], asked["overrides"], changes)
    data = LlavaData(asked["llava"], asked["image_folder"])
    names = ("output", "seed", "accumulate", "precision", "num_workers", "checkpoint_every")
    run = chosen.run(len(data.records), **{name: asked[name] for name in names})
    run = replace(run, arguments={**run.arguments, "llava": str(asked["llava"])})
    run.output.mkdir(parents=True, exist_ok=True)
    set_seed(run.seed)
    return chosen, data, run
