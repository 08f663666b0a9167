"""Recipes for tuning a CLIP: method, model, constants and schedule. The published ones are in `recipes/*.toml`.

A recipe contains neither the location of the data nor the number of processes that share its batch.
"""

import math
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, ClassVar

from pydantic import Field
from pydantic.dataclasses import dataclass

from services.jobs.recipes import PublishedRecipe
from services.jobs.training import Run
from services.score.fsc_clip import FscClipWeights, Missing
from services.score.negatives.hard_negatives import PAPER_KINDS, Kind
from services.score.training.objectives import Method

# What a training that goes on may change: its length is the schedule's.
AFTER_TRAINING = ("alpha", "local_weight", "epochs", "steps")
Number = Annotated[int, Field(ge=1)]
Share = Annotated[float, Field(ge=0, le=1)]
Weight = Annotated[float, Field(ge=0, allow_inf_nan=False)]


@dataclass(frozen=True)
class Recipe(PublishedRecipe):
    """The hyper-parameters of a training; the defaults are the paper's.

    `base` is an open_clip name with `pretrained` weights, "random" for a training from scratch, or a name or folder of
    a checkpoint. A run takes `steps` optimizer steps, or if that is None, `epochs` of its data. AdamW (0.9, `beta2`,
    `epsilon`), whose defaults are those of CLIP's ViTs, not of its residual networks; the learning rate rises over
    `warmup_steps` and falls by a cosine to 0; `weight_decay` does not apply to vectors and the temperature. `beta` 0
    means no label smoothing. A negative that a caption lacks is left out of a softmax or, with `missing` "zero", has a
    logit of 0, as in the released code. With a `lora_rank`, only low-rank matrices are trained; `lora_official_init`
    initialises them as in the released code. `min_area` is the smallest part of an image that a random crop keeps.
    `alpha` is WiSE-FT's share of the tuned weights, the rest are those of the base; `local_weight` is that of the local
    (word-level) score in the checkpoint.

    Raises ValueError for invalid values.
    """

    method: Method = "fsc-clip"
    base: str = "ViT-B-32"
    pretrained: str | None = None
    negatives: tuple[Kind, ...] = PAPER_KINDS
    lambda_global: Weight = 0.5
    lambda_local: Weight = 0.2
    gamma: Weight = 2.0
    beta: Annotated[float, Field(ge=0, lt=1)] = 0.02
    missing: Missing = "exclude"
    gather_negatives: bool = True
    batch_size: Number = 256
    learning_rate: Annotated[float, Field(gt=0, le=1)] = 5e-6
    warmup_steps: Annotated[int, Field(ge=0)] = 50
    weight_decay: Weight = 0.1
    beta2: Annotated[float, Field(ge=0, lt=1)] = 0.98
    epsilon: Annotated[float, Field(gt=0, le=1)] = 1e-6
    epochs: Number = 5
    steps: Number | None = None
    lora_rank: Number | None = None
    lora_official_init: bool = False
    min_area: Annotated[float, Field(gt=0, le=1)] = 0.9
    alpha: Share = 1.0
    local_weight: Share = 0.0

    package: ClassVar[str] = "services.score.training"

    def __post_init__(self) -> None:
        if len(set(self.negatives)) < len(self.negatives):
            raise ValueError(f"negatives are kinds, each once: {', '.join(self.negatives)}")
        if self.method != "clip" and not self.negatives:
            raise ValueError(f"{self.method} needs at least one kind of hard negatives")

    @property
    def weights(self) -> FscClipWeights:
        """The constants of FSC-CLIP's loss."""
        return FscClipWeights(
            lambda_global=self.lambda_global,
            lambda_local=self.lambda_local,
            gamma=self.gamma,
            beta=self.beta or None,
            missing=self.missing,
        )

    @property
    def kinds(self) -> tuple[Kind, ...]:
        """Kinds of hard negatives that the method uses."""
        return () if self.method == "clip" else self.negatives

    def num_steps(self, num_examples: int | None) -> int:
        """Count the optimizer steps over data of `num_examples`, None for endless data.

        Raises ValueError if neither the steps nor the data's size are known, or no batch is full.
        """
        if self.steps is not None:
            return self.steps
        if num_examples is None:
            raise ValueError("generated data is endless: the recipe must set the number of steps")
        if num_examples < self.batch_size:
            raise ValueError(f"{num_examples} examples do not fill a batch of {self.batch_size}")
        return self.epochs * math.ceil(num_examples / self.batch_size)

    def run(self, output: Path, num_examples: int | None, *, seed: int, accumulate: int = 1) -> Run:
        """Make the schedule for the training loop; `batch_size` is the total over all processes and micro-batches.

        Raises ValueError as `num_steps` does, and for a batch that can't be divided among them.
        """
        num_steps = self.num_steps(num_examples)
        warmup_ratio = min(self.warmup_steps, num_steps) / num_steps
        return Run(
            output, num_steps, self.batch_size, self.learning_rate, self.weight_decay, warmup_ratio, seed,
            accumulate=accumulate, stage="tuning", beta2=self.beta2, epsilon=self.epsilon,
            arguments={key: value for key, value in asdict(self).items() if key not in AFTER_TRAINING},
        )  # fmt: skip
