"""Options that the trainings of several services share."""

from pathlib import Path
from typing import Annotated

import typer

from services.jobs.options import MAX_SEED, finite, output_folder, positive
from services.jobs.training import Precision

RunFolder = Annotated[
    Path, typer.Option(callback=output_folder, help="Folder for the checkpoint, the log and the resume state.")
]
Steps = Annotated[int, typer.Option(min=1, help="Optimizer steps.")]
BatchSize = Annotated[int, typer.Option(min=1, help="Images per step, over all processes and accumulated batches.")]
Accumulate = Annotated[int, typer.Option(min=1, help="Batches accumulated in one optimizer step.")]
LearningRate = Annotated[float, typer.Option(callback=positive, help="Peak learning rate.")]
Seed = Annotated[int, typer.Option(min=0, max=MAX_SEED, help="Seed of the weights and the data.")]
ComputePrecision = Annotated[Precision, typer.Option(help="Precision of the computation.")]
NumWorkers = Annotated[int, typer.Option(min=0, help="Number of processes that make batches ahead.")]
CheckpointEvery = Annotated[int, typer.Option(min=1, help="Number of steps between resume states.")]
Pretrained = Annotated[str | None, typer.Option(help="Weights for an open_clip name: a tag or a file.")]
LogitScale = Annotated[
    float, typer.Option(min=0, callback=finite, help="Fixed logit scale. 0: train CLIP's own scale, as in the paper.")
]
Publish = Annotated[bool, typer.Option(help="Publish to the model store when done.")]
