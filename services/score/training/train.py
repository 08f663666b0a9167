"""Offline job: tuning of any CLIP on captioned images and hard negatives by a recipe.

`torchrun -m services.score.training.train …` splits each batch over several processes; the softmax contains all
captions of a step.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Annotated, Any, Literal

import torch
import typer
from accelerate.utils import set_seed
from torch import Tensor, nn

from services.jobs.checkpoints import check_publication, publish_trained
from services.jobs.clip_base import RANDOM, load_base
from services.jobs.interruption import interruptible, resumable
from services.jobs.options import MAX_SEED, StoreUrl, command_line, output_folder
from services.jobs.recipes import Overrides, RecipeName, chosen_recipe
from services.jobs.training import Precision, Run, rank, train
from services.nn.clip_model import ClipModel, create_clip, save_clip
from services.nn.plain_clip import OPEN_CLIP_KIND
from services.nn.text_transformer import MAX_LOG_SCALE
from services.score.data.captioned_images import CaptionedImages, StoredNegatives, open_shards, open_table, read_stored
from services.score.fsc_clip import interpolate
from services.score.model.checkpoint import FSC_CLIP_KIND, FscClipCheckpoint, save_fsc_clip
from services.score.model.dense_features import missing_for_tokens, missing_in_texts
from services.score.negatives.hard_negatives import installed_hard_negatives
from services.score.training.batches import ImageSource, TuningData
from services.score.training.lora import add_lora, merged_state_dict
from services.score.training.objectives import TuningLoss
from services.score.training.recipe import Recipe

DataKind = Literal["folder", "tars"]

Output = Annotated[
    Path, typer.Option(callback=output_folder, help="Folder for the checkpoint, the log and the resume state.")
]
Seed = Annotated[int, typer.Option(min=0, max=MAX_SEED, help="Seed of the weights, the data and the negatives.")]
ComputePrecision = Annotated[Precision, typer.Option(help="Precision of the computation.")]
NumWorkers = Annotated[
    int, typer.Option(min=0, help="Number of processes that load or render images and tokenize batches.")
]
CheckpointEvery = Annotated[int, typer.Option(min=1, help="Number of steps between resume states.")]
Name = Annotated[str, typer.Option(help="Name to publish under.")]
Publish = Annotated[bool, typer.Option(help="Publish to the model store when done.")]

app = command_line()


@app.command()
@interruptible(resumable)
def fsc_clip(
    output: Output,
    images: Annotated[list[str], typer.Option(help="TSV or JSONL table, or tar files (shards-{000..010}.tar).")],
    data: Annotated[DataKind, typer.Option(help="folder (with a table) or tars (webdataset).")] = "folder",
    image_folder: Annotated[
        Path | None, typer.Option(help="Folder of a table's images. Default: the folder of the table.")
    ] = None,
    recipe: RecipeName = "fsc-clip-laion-coco",
    overrides: Overrides = None,
    base: Annotated[
        str | None,
        typer.Option(help="CLIP to tune: a name in the store, an open_clip directory, or an open_clip name."),
    ] = None,
    pretrained: Annotated[
        str | None, typer.Option(help="Weights for an open_clip name: a tag, a file, or random to train from scratch.")
    ] = None,
    negatives: Annotated[
        list[str] | None,
        typer.Option(help="Kind of hard negatives; with --stored, a form or type of pairs. Repeatable."),
    ] = None,
    stored: Annotated[
        Path | None,
        typer.Option(exists=True, help="Pairs of `fovea curate` whose false captions are the hard negatives."),
    ] = None,
    steps: Annotated[int | None, typer.Option(help="Number of optimizer steps, instead of epochs.")] = None,
    batch_size: Annotated[int | None, typer.Option(help="Images per step, over all processes.")] = None,
    accumulate: Annotated[int, typer.Option(min=1, help="Batches accumulated in one optimizer step.")] = 1,
    seed: Seed = 0,
    precision: ComputePrecision = "bf16",
    num_workers: NumWorkers = 0,
    checkpoint_every: CheckpointEvery = 100,
    name: Name = "fsc-clip",
    publish: Publish = True,
    store_url: StoreUrl = None,
) -> None:
    """Tune a CLIP on captions and hard negatives, which are made during training or stored."""
    kinds = tuple(negatives) if negatives and stored is None else None
    changes = {"base": base, "pretrained": pretrained, "negatives": kinds, "steps": steps, "batch_size": batch_size}
    chosen = chosen_recipe(Recipe, recipe, overrides, changes)
    given = _stored(stored, negatives or (), chosen, data)
    files = _files(data, images, image_folder, given)
    check_publication(name, store_url, is_wanted=publish)
    set_seed(seed)
    clip, reference = load_base(chosen.base, chosen.pretrained, store_url)
    _check_towers(clip, chosen)
    run = tuning_run(chosen, output, len(files), seed, accumulate)
    arguments = {**run.arguments, "images": images, "stored": stored and str(stored)}
    run = replace(
        run, precision=precision, num_workers=num_workers, checkpoint_every=checkpoint_every, arguments=arguments
    )
    made, names = installed_hard_negatives(), chosen.kinds if given is None else given.names
    source = ImageSource(files, clip.transform, chosen.min_area)
    found = tuned(run, chosen, clip, TuningData(source, clip.tokenizer, made, names, seed, run.num_examples))
    options = {
        "negatives": names, "stored": stored, "base": reference, "recipe": recipe, "data": data, "images": images,
        "seed": seed, "precision": precision, "accumulate": accumulate,
        "sources": dict(made.sources) if given is None else {}, "publish": publish, "store_url": store_url,
    }  # fmt: skip
    publish_tuned(found, chosen, run, name, options)


def tuning_run(recipe: Recipe, output: Path, num_examples: int | None, seed: int, accumulate: int = 1) -> Run:
    """Make the folder and the schedule of a recipe. Raises BadParameter for data or a batch that do not fit it."""
    output.mkdir(parents=True, exist_ok=True)
    try:
        return recipe.run(output, num_examples, seed=seed, accumulate=accumulate)
    except ValueError as error:
        raise typer.BadParameter(str(error)) from None


def tuned(run: Run, recipe: Recipe, clip: ClipModel, data: TuningData, naming: nn.Module | None = None) -> ClipModel:
    """Train `clip` in place, and interpolate its weights before and after by the recipe's `alpha`."""
    before = {name: tensor.clone() for name, tensor in clip.model.state_dict().items()}
    if recipe.lora_rank is not None:
        add_lora(clip.model, recipe.lora_rank, official_init=recipe.lora_official_init)
    loss = TuningLoss(
        (clip.model, clip.transform), recipe.method, recipe.weights, gather_negatives=recipe.gather_negatives,
        naming=naming, from_scratch=recipe.pretrained == RANDOM,
    )  # fmt: skip
    train(run, loss, data)
    with torch.no_grad():
        clip.model.logit_scale.clamp_(0, MAX_LOG_SCALE)
    after: dict[str, Tensor] = clip.model.state_dict() if recipe.lora_rank is None else merged_state_dict(clip.model)
    found = create_clip(clip.config, clip.merges)
    found.model.load_state_dict(interpolate(before, after, recipe.alpha))
    found.model.eval()
    return found


def publish_tuned(
    clip: ClipModel,
    recipe: Recipe,
    run: Run,
    name: str,
    options: Mapping[str, Any],
    metrics: Mapping[str, float] = {},
) -> None:
    """Save, describe and publish a tuned CLIP, a plain one if it has no token features, in the first process alone."""
    if rank() == 0:
        directory, kind = run.output / "checkpoint", FSC_CLIP_KIND
        if missing_for_tokens(clip.model):
            save_clip(clip, directory)
            kind = OPEN_CLIP_KIND
        else:
            save_fsc_clip(FscClipCheckpoint(clip, recipe.local_weight), directory)
        publish_trained(directory, name, kind, {**asdict(recipe), **options}, metrics)


def _check_towers(clip: ClipModel, recipe: Recipe) -> None:
    """Raises BadParameter for a model that lacks what the method reads."""
    reads_tokens = recipe.method in ("fsc-clip", "global") or recipe.local_weight > 0 or recipe.lora_rank is not None
    if needed := (missing_for_tokens if reads_tokens else missing_in_texts)(clip.model):
        told = f"{recipe.base}: this recipe needs {needed}; the methods clip and negclip take any image tower"
        raise typer.BadParameter(told, param_hint="--base")


def _stored(path: Path | None, names: Sequence[str], recipe: Recipe, data: DataKind) -> StoredNegatives | None:
    """Read stored hard negatives, None if there are none. Raises BadParameter if nothing would use them."""
    if path is None:
        return None
    if recipe.method == "clip":
        raise typer.BadParameter("the method clip uses no hard negatives", param_hint="--stored")
    if data == "tars":
        raise typer.BadParameter("stored hard negatives are of a table: --data folder", param_hint="--stored")
    try:
        return read_stored(path, names)
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint="--stored") from None


def _files(
    data: DataKind, images: Sequence[str], image_folder: Path | None, stored: StoredNegatives | None
) -> CaptionedImages:
    """Open the images on disk."""
    try:
        if data == "tars":
            return open_shards(images)
        if len(images) != 1:
            raise ValueError("a folder has one table of captions")
        return open_table(Path(images[0]), image_folder, stored)
    except (OSError, ValueError) as error:
        raise typer.BadParameter(str(error), param_hint="--images") from None


if __name__ == "__main__":
    app()
