"""Offline job: FocalLens tuning of any CLIP (dissertation, section 5.3).

`torchrun -m services.embed.training.train …` splits each batch over several processes, which share their negatives.
"""

from pathlib import Path
from typing import Annotated

import typer
from accelerate.utils import set_seed

from services.embed.data.triplets import LlavaData, LlavaTriplets
from services.embed.focallens import FocalLens, Visibility
from services.embed.model.focallens_engine import load_focallens, save_focallens
from services.embed.training.objectives import TripletData, TripletLoss
from services.jobs import training_options as options
from services.jobs.checkpoints import check_publication, publish_trained
from services.jobs.clip_base import load_base
from services.jobs.interruption import interruptible, resumable
from services.jobs.options import StoreUrl, command_line
from services.jobs.training import Run, rank, train

NAME = "focallens-shapes"
KIND = "focallens-clip"

app = command_line(help="Tune a CLIP to follow conditions (FocalLens-CLIP).")

Base = Annotated[
    str, typer.Option(help="CLIP to tune: a name in the store, an open_clip directory, or an open_clip name.")
]
Start = Annotated[
    Path | None,
    typer.Option(exists=True, file_okay=False, help="FocalLens checkpoint, tuned from --base, to continue from."),
]
ConditionLayer = Annotated[int, typer.Option(min=0, help="Block before which the condition token is inserted.")]
VisibilityOption = Annotated[Visibility, typer.Option(help="Tokens that see the condition. The paper uses full.")]
LlavaFile = Annotated[Path, typer.Option(help="Visual instruction data: a JSON file in LLaVA's format.")]
ImageFolder = Annotated[Path, typer.Option(help="Folder with the images of --llava.")]


@app.command()
@interruptible(resumable)
def focallens(
    output: options.RunFolder,
    llava: LlavaFile,
    image_folder: ImageFolder = Path(),
    base: Base = "clip-shapes",
    pretrained: options.Pretrained = None,
    start: Start = None,
    steps: options.Steps = 1500,
    batch_size: options.BatchSize = 64,
    accumulate: options.Accumulate = 1,
    learning_rate: options.LearningRate = 5e-4,
    seed: options.Seed = 0,
    precision: options.ComputePrecision = "bf16",
    num_workers: options.NumWorkers = 0,
    checkpoint_every: options.CheckpointEvery = 500,
    condition_layer: ConditionLayer = 0,
    visibility: VisibilityOption = "readout",
    scale: options.LogitScale = 10.0,
    publish: options.Publish = True,
    store_url: StoreUrl = None,
) -> None:
    """Tune a CLIP to follow conditions (FocalLens-CLIP) on visual instruction data."""
    asked = dict(locals())
    check_publication(NAME, store_url, is_wanted=publish)
    run = Run(
        output, steps, batch_size, learning_rate, 0.0, 0.03, seed, accumulate=accumulate, stage="tuning",
        precision=precision, num_workers=num_workers, checkpoint_every=checkpoint_every,
    )  # fmt: skip
    output.mkdir(parents=True, exist_ok=True)
    set_seed(seed)
    data = LlavaData(llava, image_folder)
    clip, base_reference = load_base(base, pretrained, store_url)
    model = FocalLens(clip.model, condition_layer=condition_layer, visibility=visibility)
    model.clip.logit_scale.requires_grad_(scale == 0)
    source = LlavaTriplets(data, clip.transform, seed, run.num_examples)
    if start is not None:
        model.load_state_dict(load_focallens(start).model.state_dict())
    train(run, TripletLoss(model, clip.transform, scale or None), TripletData(clip.tokenizer, source))
    if rank() == 0:
        directory = output / "checkpoint"
        save_focallens(model, clip, directory)
        publish_trained(directory, NAME, KIND, {**asked, "base": base_reference}, {})


if __name__ == "__main__":
    app()
