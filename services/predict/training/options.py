"""Command-line options shared by a training and a sweep of trainings."""

from typing import Annotated

import typer

from services.predict.training.recipe import Precision as PrecisionName

DropEmpty = Annotated[bool, typer.Option("--drop-empty", help="Drop outputs that could not be parsed.")]
NumTrain = Annotated[int, typer.Option(min=1, help="Number of generated training rows.")]
Alpha = Annotated[float | None, typer.Option(help="Weight of the labels' loss.", show_default="0.5")]
RationaleWeight = Annotated[float | None, typer.Option(help="λ, the weight of rationales, instead of --alpha.")]
LabelPrefix = Annotated[str, typer.Option(help="Prefix of inputs for labels.")]
RationalePrefix = Annotated[str, typer.Option(help="Prefix of inputs for rationales.")]
LearningRate = Annotated[float, typer.Option(help="Initial learning rate, decaying linearly to 0.")]
Steps = Annotated[int, typer.Option(help="Optimizer steps.")]
EvaluateEvery = Annotated[int, typer.Option(help="Steps between evaluations and resume states.")]
WarmupSteps = Annotated[int, typer.Option(help="Steps of learning-rate warm-up.")]
MicroBatchSize = Annotated[int | None, typer.Option(help="Examples per forward pass.")]
MaxInputTokens = Annotated[int, typer.Option(help="Longer inputs are truncated.")]
MaxTargetTokens = Annotated[int, typer.Option(help="Longer targets are truncated.")]
MaxNewTokens = Annotated[int, typer.Option(help="Maximum length of a generated label.")]
MaxEvaluated = Annotated[int | None, typer.Option(help="Maximum number of validation examples.")]
MaxGradientNorm = Annotated[float, typer.Option(help="Maximum norm of the gradient.")]
LoraRank = Annotated[int | None, typer.Option(help="Train LoRA matrices of this rank on the attention weights.")]
Precision = Annotated[PrecisionName, typer.Option(help="Precision of the computation; weights are float32.")]
ProbeWeight = Annotated[
    float | None, typer.Option(help="Weight of probes that read the labels of an input's words, for generated tasks.")
]
Average = Annotated[
    float | None, typer.Option(help="Share of the trained weights in an average with those before the training.")
]
NumWorkers = Annotated[int, typer.Option(min=0, help="Number of processes that tokenize batches.")]
GradientCheckpointing = Annotated[
    bool, typer.Option("--gradient-checkpointing", help="Recompute activations to save memory.")
]
