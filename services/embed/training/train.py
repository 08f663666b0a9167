"""Offline job: FocalLens tuning of any CLIP (dissertation, section 5.3).

`torchrun -m services.embed.training.train …` splits each batch over several processes, which share their negatives.
"""

from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from services.embed.data.triplets import LlavaTriplets
from services.embed.focallens import FocalLens
from services.embed.model.focallens_engine import load_focallens, save_focallens
from services.embed.training import recipe as option
from services.embed.training.objectives import TripletData, TripletLoss
from services.embed.training.recipe import ClipRecipe, tuning
from services.jobs import training_options as options
from services.jobs.checkpoints import check_publication, publish_trained
from services.jobs.clip_base import load_base
from services.jobs.interruption import interruptible, resumable
from services.jobs.options import StoreUrl, command_line
from services.jobs.recipes import Overrides, RecipeName
from services.jobs.training import rank, train

NAME = "focallens-shapes"
KIND = "focallens-clip"

app = command_line(help="Tune a CLIP to follow conditions (FocalLens-CLIP).")

Base = Annotated[
    str | None,
    typer.Option(
        help="CLIP to tune: a name in the store, an open_clip directory, or an open_clip name.",
        show_default="the recipe's",
    ),
]
Start = Annotated[
    Path | None,
    typer.Option(exists=True, file_okay=False, help="FocalLens checkpoint, tuned from --base, to continue from."),
]
LlavaFile = Annotated[Path, typer.Option(help="Visual instruction data: a JSON file in LLaVA's format.")]
ImageFolder = Annotated[Path, typer.Option(help="Folder with the images of --llava.")]


@app.command()
@interruptible(resumable)
def focallens(
    output: options.RunFolder,
    llava: LlavaFile,
    image_folder: ImageFolder = Path(),
    recipe: RecipeName = "fovea",
    overrides: Overrides = None,
    base: Base = None,
    pretrained: options.Pretrained = None,
    start: Start = None,
    steps: option.Steps = None,
    epochs: option.Epochs = None,
    batch_size: option.BatchSize = None,
    symmetric: option.Symmetric = None,
    accumulate: options.Accumulate = 1,
    seed: options.Seed = 0,
    precision: options.ComputePrecision = "bf16",
    num_workers: options.NumWorkers = 0,
    checkpoint_every: options.CheckpointEvery = 500,
    publish: options.Publish = True,
    store_url: StoreUrl = None,
) -> None:
    """Tune a CLIP to follow conditions (FocalLens-CLIP) on visual instruction data."""
    asked = dict(locals())
    check_publication(NAME, store_url, is_wanted=publish)
    chosen, data, run = tuning(ClipRecipe, asked)
    clip, base_reference = load_base(chosen.base, chosen.pretrained, store_url)
    model = FocalLens(clip.model, condition_layer=chosen.condition_layer, visibility=chosen.visibility)
    model.clip.logit_scale.requires_grad_(chosen.scale == 0)
    source = LlavaTriplets(data, clip.transform, seed, run.num_examples)
    if start is not None:
        model.load_state_dict(load_focallens(start).model.state_dict())
    loss = TripletLoss(model, clip.transform, chosen.scale or None, chosen.contrast)
    train(run, loss, TripletData(clip.tokenizer, source))
    if rank() == 0:
        directory = output / "checkpoint"
        save_focallens(model, clip, directory)
        made = {**asked, **asdict(chosen), "steps": run.num_steps, "base": base_reference}
        publish_trained(directory, NAME, KIND, made, {})


if __name__ == "__main__":
    app()
