"""Offline jobs: a small CLIP on generated scenes, tuning of any CLIP on hard negatives, and WiSE-FT.

`torchrun -m services.score.training.train …` splits each batch over several processes; the softmax contains all
captions of a step.
"""

from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Annotated, Any, Literal, get_args

import torch
import typer
from accelerate.utils import set_seed
from torch import Tensor

from services.jobs.clip_base import load_base
from services.jobs.interruption import interruptible, resumable
from services.jobs.options import MAX_SEED, StoreUrl, command_line, finite, multiple_of, output_folder, positive
from services.jobs.publication import check_publication, publish_trained
from services.jobs.published_data import MissingData
from services.jobs.training import Precision, Run, rank, train
from services.nn.clip_model import ClipModel, create_clip, save_clip
from services.nn.text_transformer import MAX_LOG_SCALE
from services.score.data.captioned_images import CaptionedImages, open_shards, open_table
from services.score.data.claimed_pictures import ClaimedPictures, Pictures
from services.score.data.stored_negatives import StoredNegatives, read_stored
from services.score.evaluation.claim_protocol import claim_metrics
from services.score.evaluation.scene_protocol import SceneProtocol
from services.score.fsc_clip import Missing, interpolate
from services.score.model.checkpoint import FSC_CLIP_KIND, FscClipCheckpoint, save_fsc_clip
from services.score.negatives.annotation import TextBlobAnnotator
from services.score.negatives.hard_negatives import HardNegatives, installed_hard_negatives
from services.score.training.batches import ImageSource, SceneLexicon, SceneSource, Source, TuningData
from services.score.training.claim_losses import (
    ClaimChoice,
    ClaimNaming,
    FactChoice,
    FactSeeing,
    PictureSeeing,
    SaidThings,
    StemSeeing,
)
from services.score.training.fact_space import FactSpace
from services.score.training.lora import add_lora, merged_state_dict
from services.score.training.mixed import MixedData, MixedLoss, MixedReading
from services.score.training.objectives import TuningLoss
from services.score.training.picture_naming import PictureNaming
from services.score.training.recipe import Recipe, read_recipe
from services.score.training.reconstruction import Reading, prepare_reading
from services.score.training.scene_clip import (
    CAPTION_PAIRS,
    HEAD_WIDTH,
    IMAGE_SIDE,
    READ_PAIRS,
    SEEN_PAIRS,
    SceneCaptions,
    SceneContrast,
    SceneWarmup,
    create_scene_clip,
)
from services.score.training.size_alignment import align_sizes
from services.score.training.wise_ft import wise_ft
from services.score.training.word_labels import WordLabels, WordNaming

BASE_NAME = "clip-scenes"
FSC_CLIP_NAME = "fsc-clip-scenes"
CLIP_KIND = "open-clip"
# The convolutions alone, the fact space and the text tower alone learn at multiples of the rate of both towers. Whoever
# only reads claims needs no pixels.
STEM_RATE, FACT_RATE, READ_RATE = 2.0, 3.0, 2.0
READ_SIDE = 4

DataKind = Literal["scenes", "folder", "tars"]

app = command_line(help="Train and publish checkpoints of the score service.", no_args_is_help=True)
app.command("wise-ft")(wise_ft)
app.command("align-sizes")(align_sizes)


@app.command("clip-scenes")
@interruptible(resumable)
def clip_scenes(
    output: Annotated[
        Path, typer.Option(callback=output_folder, help="Folder for the checkpoint, the log and the resume state.")
    ],
    stem_steps: Annotated[
        int, typer.Option(min=0, help="Steps of the supervised warm-up of the convolutions. 0: no warm-up.")
    ] = 600,
    seeing_steps: Annotated[
        int, typer.Option(min=0, help="Steps of the image tower's supervised warm-up. 0: no warm-up.")
    ] = 600,
    naming_steps: Annotated[
        int, typer.Option(min=0, help="Steps in which the text tower's words learn to name facts. 0: none.")
    ] = 800,
    reading_steps: Annotated[
        int, typer.Option(min=0, help="Steps of the text tower's supervised warm-up. 0: no warm-up.")
    ] = 4500,
    fact_steps: Annotated[
        int,
        typer.Option(min=0, help="Steps in which facts and claims learn their places in the shared space. 0: none."),
    ] = 800,
    matching_steps: Annotated[
        int, typer.Option(min=0, help="Steps in which the image tower learns the places of facts. 0: none.")
    ] = 1500,
    steps: Annotated[int, typer.Option(min=1, help="Optimizer steps of the contrastive training.")] = 600,
    batch_size: Annotated[int, typer.Option(min=1, help="Scenes per step, over all processes.")] = 64,
    pictures: Annotated[int, typer.Option(min=2, help="Pictures of any kind per step, in each process.")] = 128,
    warmup_batch_size: Annotated[int, typer.Option(min=1, help="Scenes per step of both warm-ups.")] = 32,
    learning_rate: Annotated[
        float,
        typer.Option(callback=positive, help="Peak learning rate. That of the convolutions alone is twice as high."),
    ] = 1e-3,
    seed: Annotated[int, typer.Option(min=0, max=MAX_SEED, help="Seed of the weights and the data.")] = 0,
    precision: Annotated[Precision, typer.Option(help="Precision of the computation.")] = "bf16",
    num_workers: Annotated[int, typer.Option(min=0, help="Number of processes that render and tokenize batches.")] = 0,
    checkpoint_every: Annotated[int, typer.Option(min=1, help="Number of steps between resume states.")] = 200,
    width: Annotated[int, typer.Option(callback=multiple_of(HEAD_WIDTH), help="Width of both towers.")] = 256,
    layers: Annotated[int, typer.Option(min=1, help="Number of blocks of the ViT.")] = 3,
    num_evaluated: Annotated[int, typer.Option(min=1, help="Scenes of each task for the evaluation.")] = 1000,
    publish: Annotated[bool, typer.Option(help="Publish to the model store when done.")] = True,
    store_url: StoreUrl = None,
) -> None:
    """Train the small CLIP that the starter is tuned from, on generated scenes and captions."""
    options = dict(locals())
    check_publication(BASE_NAME, store_url, is_wanted=publish)
    run = Run(
        output, steps, batch_size, learning_rate, 0.1, 0.05, seed, stage="contrastive",
        precision=precision, num_workers=num_workers, checkpoint_every=checkpoint_every,
    )  # fmt: skip
    warmup = replace(run, batch_size=warmup_batch_size)
    output.mkdir(parents=True, exist_ok=True)
    set_seed(seed)
    model = create_scene_clip(output, width=width, layers=layers)
    visual, transform, tokenizer = model.model.visual, model.transform, model.tokenizer
    # separate seeds, so that each stage sees different scenes and pictures
    if stem_steps > 0:
        seen = Pictures(seed + 3_000, pictures, IMAGE_SIDE, num_easy=stem_steps)
        stem = replace(run, num_steps=stem_steps, learning_rate=STEM_RATE * learning_rate, stage="stem")
        train(stem, StemSeeing(visual, transform), seen)
    seeing, space = PictureSeeing(visual, transform), FactSpace(model.model.text_projection.shape[1])
    seen_scenes = SceneWarmup(visual, transform)
    if seeing_steps > 0:
        scenes = SceneCaptions(tokenizer, seed + 1_000, warmup.num_examples, SEEN_PAIRS)
        seen = Pictures(seed + 1_000, pictures, IMAGE_SIDE, num_easy=seeing_steps // 2)
        seen_run = replace(warmup, num_steps=seeing_steps, stage="warmup")
        train(seen_run, MixedLoss(visual, seen_scenes, seeing), MixedData(scenes, seen))
    if fact_steps > 0:
        facts = ClaimedPictures(tokenizer, Pictures(seed + 5_000, pictures, READ_SIDE), pictures)
        placing = replace(run, num_steps=fact_steps, learning_rate=FACT_RATE * learning_rate, stage="facts")
        train(placing, FactChoice(space), facts)
    space.fixed()
    # a step of reading costs little: many small ones teach more than few large ones
    num_read, reading = max(2, pictures // 4), replace(run, learning_rate=READ_RATE * learning_rate)
    text_width, embed_dim = model.model.text_projection.shape
    naming, read = ClaimNaming(model.model, WordNaming(text_width, WordLabels(tokenizer))), SaidThings(embed_dim)
    if naming_steps > 0:
        claims = ClaimedPictures(tokenizer, Pictures(seed + 7_000, num_read, READ_SIDE), num_read)
        train(replace(reading, num_steps=naming_steps, stage="naming"), naming, claims)
    if reading_steps > 0:
        scenes = SceneCaptions(tokenizer, seed + 2_000, max(1, warmup.num_examples // 2), READ_PAIRS)
        claims = ClaimedPictures(tokenizer, Pictures(seed + 2_000, num_read, READ_SIDE), num_read)
        reading = replace(reading, num_steps=reading_steps, stage="reading")
        train(reading, MixedReading(naming, read, space), MixedData(scenes, claims))
    if matching_steps > 0:
        scenes = SceneCaptions(tokenizer, seed + 6_000, warmup.num_examples, SEEN_PAIRS)
        claims = ClaimedPictures(tokenizer, Pictures(seed + 6_000, pictures, IMAGE_SIDE), pictures)
        matching = MixedLoss(visual, seen_scenes, FactSeeing(seeing, space))
        train(replace(warmup, num_steps=matching_steps, stage="matching"), matching, MixedData(scenes, claims))
    scenes = SceneCaptions(tokenizer, seed, run.num_examples, CAPTION_PAIRS)
    claims = ClaimedPictures(tokenizer, Pictures(seed, pictures, IMAGE_SIDE), pictures // 2)
    with torch.no_grad():
        model.model.logit_scale.copy_(space.log_scale)
    choice = MixedLoss(visual, SceneContrast(model.model, transform), ClaimChoice(model.model, seeing, space))
    train(run, choice, MixedData(scenes, claims))
    if rank() == 0:
        directory = output / "checkpoint"
        save_clip(model, directory)
        metrics = _metrics(model, num_evaluated, 0.0)
        publish_trained(directory, BASE_NAME, CLIP_KIND, options, metrics)


@app.command("fsc-clip")
@interruptible(resumable)
def fsc_clip(
    output: Annotated[
        Path, typer.Option(callback=output_folder, help="Folder for the checkpoint, the log and the resume state.")
    ],
    recipe: Annotated[str, typer.Option(help="Name of a recipe, or a TOML file.")] = "scenes",
    base: Annotated[
        str | None,
        typer.Option(help="CLIP to tune: a name in the store, an open_clip directory, or an open_clip name."),
    ] = None,
    pretrained: Annotated[str | None, typer.Option(help="Weights for an open_clip name: a tag or a file.")] = None,
    method: Annotated[str | None, typer.Option(help="clip, negclip, global or fsc-clip.")] = None,
    data: Annotated[
        str, typer.Option(help="scenes (generated), folder (with a table) or tars (webdataset).")
    ] = "scenes",
    images: Annotated[
        list[str] | None, typer.Option(help="TSV or JSONL table, or tar files (shards-{000..010}.tar).")
    ] = None,
    image_folder: Annotated[
        Path | None, typer.Option(help="Folder of a table's images. Default: the folder of the table.")
    ] = None,
    negatives: Annotated[
        list[str] | None,
        typer.Option(help="Kind of hard negatives; with --stored, a form or type of pairs. Repeatable."),
    ] = None,
    stored: Annotated[
        Path | None,
        typer.Option(
            exists=True,
            help="Pairs of `fovea curate`, whose false captions are the hard negatives, in place of those made during "
            "training. Their images and captions are in the table.",
        ),
    ] = None,
    missing: Annotated[
        Missing | None,
        typer.Option(help="A negative that a caption lacks: exclude it, or count it as a logit of 0, as released."),
    ] = None,
    wordnet: Annotated[
        Path | None, typer.Option(help="Folder of WordNet's database, if not in a default location.")
    ] = None,
    steps: Annotated[int | None, typer.Option(help="Number of optimizer steps, instead of epochs.")] = None,
    batch_size: Annotated[int | None, typer.Option(help="Images per step, over all processes.")] = None,
    accumulate: Annotated[int, typer.Option(min=1, help="Batches accumulated in one optimizer step.")] = 1,
    learning_rate: Annotated[float | None, typer.Option(help="Peak learning rate.")] = None,
    lora: Annotated[int | None, typer.Option(help="Rank of LoRA matrices. If given, only these are trained.")] = None,
    reconstruction: Annotated[
        float | None,
        typer.Option(help="Weight of READ-CLIP's reconstruction of captions from their embeddings (there: 0.1)."),
    ] = None,
    alignment: Annotated[
        float | None,
        typer.Option(help="Weight of READ-CLIP's alignment of captions with others of the same image (there: 0.5)."),
    ] = None,
    decoder: Annotated[
        str | None,
        typer.Option(
            help="Folder of the T5 whose frozen decoder reconstructs captions. Without one, a small decoder learns it "
            "before the tuning."
        ),
    ] = None,
    seed: Annotated[int, typer.Option(min=0, max=MAX_SEED, help="Seed of the data and the negatives.")] = 0,
    precision: Annotated[Precision, typer.Option(help="Precision of the computation.")] = "bf16",
    num_workers: Annotated[
        int, typer.Option(min=0, help="Number of processes that load, crop and tokenize batches.")
    ] = 0,
    checkpoint_every: Annotated[int, typer.Option(min=1, help="Number of steps between resume states.")] = 100,
    alpha: Annotated[
        float,
        typer.Option(
            min=0, max=1, callback=finite, help="WiSE-FT weight: 1 keeps the tuned weights, 0 those of the base."
        ),
    ] = 1.0,
    local_weight: Annotated[
        float,
        typer.Option(
            min=0, max=1, callback=finite, help="Weight of the local (word-level) score in the published checkpoint."
        ),
    ] = 0.0,
    num_evaluated: Annotated[
        int, typer.Option(min=0, help="Scenes of each task for the evaluation. 0: no evaluation.")
    ] = 1000,
    name: Annotated[str, typer.Option(help="Name to publish under.")] = FSC_CLIP_NAME,
    publish: Annotated[bool, typer.Option(help="Publish to the model store when done.")] = True,
    store_url: StoreUrl = None,
) -> None:
    """Tune a CLIP on captions and hard negatives generated during training."""
    chosen = _chosen(
        recipe, base=base, pretrained=pretrained, method=method,
        negatives=tuple(negatives) if negatives and stored is None else None, missing=missing, steps=steps,
        batch_size=batch_size, learning_rate=learning_rate, lora_rank=lora,
        lambda_reconstruction=reconstruction, lambda_alignment=alignment, decoder=decoder,
    )  # fmt: skip
    given = _stored(stored, negatives or (), chosen)
    files = _files(data, images or [], image_folder, given)
    check_publication(name, store_url, is_wanted=publish)
    output.mkdir(parents=True, exist_ok=True)
    set_seed(seed)
    before, reference = load_base(chosen.base, chosen.pretrained, store_url)
    try:
        run = chosen.run(output, None if files is None else len(files), seed=seed, accumulate=accumulate)
    except ValueError as error:
        raise typer.BadParameter(str(error)) from None
    run = replace(run, precision=precision, num_workers=num_workers, checkpoint_every=checkpoint_every)
    source: Source = SceneSource() if files is None else ImageSource(files, before.transform, chosen.min_area)
    made = HardNegatives(TextBlobAnnotator(), SceneLexicon()) if files is None else installed_hard_negatives(wordnet)
    theta0 = {weight: tensor.clone() for weight, tensor in before.model.state_dict().items()}
    claims = None
    if files is None and (num_claimed := int(chosen.claimed * run.num_examples)):
        pictures = Pictures(seed + 4_000, num_claimed, before.transform.size[0])
        claims = ClaimedPictures(before.tokenizer, pictures, num_claimed, chosen.close)
    names, kinds = (given.names, ()) if given is not None else ((), chosen.kinds)
    made_batches = TuningData(
        source, before.tokenizer, made, kinds, seed, run.num_examples, claims, chosen.excludes_true, names
    )
    reading, made_batches = prepare_reading(run, chosen.reading, before, made_batches)
    theta1 = _tune(run, chosen, before, made_batches, reading)
    if rank() == 0:
        tuned = create_clip(before.config, before.merges)
        tuned.model.load_state_dict(interpolate(theta0, theta1, alpha))
        tuned.model.eval()
        directory = output / "checkpoint"
        save_fsc_clip(FscClipCheckpoint(tuned, local_weight), directory)
        metrics = _metrics(tuned, num_evaluated, local_weight)
        options = {
            **asdict(chosen), "negatives": names or kinds, "stored": stored, "base": reference, "recipe": recipe,
            "data": data, "images": images, "alpha": alpha,
            "local_weight": local_weight, "seed": seed, "precision": precision, "accumulate": accumulate,
            "sources": {} if names else dict(made.sources), "publish": publish, "store_url": store_url,
        }  # fmt: skip
        publish_trained(directory, name, FSC_CLIP_KIND, options, metrics)


def _metrics(clip: ClipModel, num_evaluated: int, local_weight: float) -> dict[str, float]:
    """Measure scenes and claims; nothing if none are to be evaluated."""
    if not num_evaluated:
        return {}
    scores = SceneProtocol("test", num_evaluated).evaluate(clip).metrics(local_weight)
    return scores | claim_metrics(clip, num_evaluated, local_weight)


def _tune(run: Run, recipe: Recipe, clip: ClipModel, data: TuningData, reading: Reading | None) -> dict[str, Tensor]:
    """Train `clip` in place, and return the tuned weights with low-rank matrices merged."""
    if recipe.lora_rank is not None:
        add_lora(clip.model, recipe.lora_rank, official_init=recipe.lora_official_init)
    naming = PictureNaming(clip.model, recipe.named) if recipe.named > 0 else None
    loss = TuningLoss(
        (clip.model, clip.transform), recipe.method, recipe.weights, gather_negatives=recipe.gather_negatives,
        naming=naming, reading=reading,
    )  # fmt: skip
    train(run, loss, data)
    with torch.no_grad():
        clip.model.logit_scale.clamp_(0, MAX_LOG_SCALE)
    return clip.model.state_dict() if recipe.lora_rank is None else merged_state_dict(clip.model)


def _chosen(name: str, **given: Any) -> Recipe:
    """Read a recipe and override it with the command line's options."""
    try:
        recipe = read_recipe(name)
        if given["base"] is not None:  # the recipe's pretrained weights belong to its own base
            recipe = replace(recipe, pretrained=None)
        return replace(recipe, **{key: value for key, value in given.items() if value is not None})
    except (OSError, ValueError) as error:
        raise typer.BadParameter(str(error)) from None


def _stored(path: Path | None, names: Sequence[str], recipe: Recipe) -> StoredNegatives | None:
    """Read stored hard negatives, None if there are none. Raises BadParameter if nothing would use them."""
    if path is None:
        return None
    if recipe.method == "clip":
        raise typer.BadParameter("the method clip uses no hard negatives", param_hint="--stored")
    try:
        return read_stored(path, names)
    except (MissingData, OSError, ValueError) as error:
        raise typer.BadParameter(str(error), param_hint="--stored") from None


def _files(
    data: str, images: list[str], image_folder: Path | None, stored: StoredNegatives | None
) -> CaptionedImages | None:
    """Open the images on disk, None for generated scenes."""
    if data not in get_args(DataKind):
        raise typer.BadParameter(f"{data!r} is not one of {', '.join(get_args(DataKind))}", param_hint="--data")
    if stored is not None and data != "folder":
        raise typer.BadParameter("stored hard negatives are of a table: --data folder", param_hint="--stored")
    if data == "scenes":
        return None
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
