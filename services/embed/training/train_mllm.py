"""Offline job: FocalLens tuning of a LLaVA (dissertation, section 5.3.1).

`torchrun -m services.embed.training.train_mllm …` splits each batch over several processes, which share their
negatives.
"""

from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import torch
import typer

from services.embed.data.triplets import LlavaTriplets
from services.embed.model.mllm_engine import LLAVA, MLLM_KIND, load_mllm, save_mllm
from services.embed.training import recipe as option
from services.embed.training.mllm_objective import MllmLoss, merge, prepare_tuning, recompute_activations
from services.embed.training.objectives import TripletData
from services.embed.training.recipe import MllmRecipe, tuning
from services.embed.training.train import ImageFolder, LlavaFile
from services.jobs import training_options as options
from services.jobs.checkpoints import check_publication, find_checkpoint, publish_trained
from services.jobs.clip_base import load_base
from services.jobs.interruption import interruptible, resumable
from services.jobs.options import StoreUrl, command_line
from services.jobs.recipes import Overrides, RecipeName
from services.jobs.training import Precision, rank, train
from services.nn.loading import model_type_of
from services.nn.plain_clip import embedding_width

NAME = "focallens-mllm"

app = command_line(help="Tune a LLaVA to embed images under instructions (FocalLens-MLLM).")

Base = Annotated[str, typer.Option(help="LLaVA to tune: a folder as llava-hf publishes it, or a name in the store.")]
TextTower = Annotated[
    str, typer.Option(help="CLIP whose texts are the targets: a name in the store, a folder, or an open_clip name.")
]


@app.command()
@interruptible(resumable)
def focallens_mllm(
    output: options.RunFolder,
    base: Base,
    llava: LlavaFile,
    image_folder: ImageFolder = Path(),
    recipe: RecipeName = "fovea",
    overrides: Overrides = None,
    text_tower: TextTower = "clip-shapes",
    pretrained: options.Pretrained = None,
    steps: option.Steps = None,
    epochs: option.Epochs = None,
    batch_size: option.BatchSize = None,
    symmetric: option.Symmetric = None,
    accumulate: options.Accumulate = 1,
    seed: options.Seed = 0,
    precision: Annotated[
        Precision, typer.Option(help="Precision of the computation and, under LoRA, of the weights that stay.")
    ] = "bf16",
    recompute: Annotated[bool, typer.Option(help="Compute activations again on the way back, to save memory.")] = False,
    num_workers: options.NumWorkers = 0,
    checkpoint_every: options.CheckpointEvery = 500,
    publish: options.Publish = True,
    store_url: StoreUrl = None,
) -> None:
    """Tune a LLaVA to embed images under instructions (FocalLens-MLLM) on visual instruction data."""
    asked = dict(locals())
    check_publication(NAME, store_url, is_wanted=publish)
    chosen, data, run = tuning(MllmRecipe, asked)
    found = find_checkpoint(base, store_url)
    if model_type_of(found.directory) != LLAVA:
        raise typer.BadParameter(f"{base} is no LLaVA", param_hint="--base")
    checkpoint = load_mllm(found.directory)
    clip, targets = load_base(text_tower, pretrained, store_url)
    model = checkpoint.model
    if recompute:
        recompute_activations(model)
    dtype = torch.bfloat16 if precision == "bf16" else torch.float32
    prepare_tuning(model, embedding_width(clip), chosen.lora_rank, dtype)
    loss = MllmLoss((model, checkpoint.transform), clip, chosen.scale or None, chosen.contrast)
    source = LlavaTriplets(data, checkpoint.transform, seed, run.num_examples)
    train(run, loss, TripletData(clip.tokenizer, source, checkpoint.tokenizer))
    if rank() == 0:
        directory = output / "checkpoint"
        merge(model)
        save_mllm(model, found.directory, directory)
        label = found.label if found.manifest else base
        made = {**asked, **asdict(chosen), "steps": run.num_steps, "base": label, "text_tower": targets}
        publish_trained(directory, NAME, MLLM_KIND, made, {})


if __name__ == "__main__":
    app()
