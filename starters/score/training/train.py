"""Offline jobs that make the score starter: a small CLIP on generated scenes and pictures, and its tuning."""

from dataclasses import replace
from typing import Annotated

import torch
import typer
from accelerate.utils import set_seed

from services.jobs.checkpoints import check_publication, publish_trained
from services.jobs.clip_base import load_base
from services.jobs.interruption import interruptible, resumable
from services.jobs.options import StoreUrl, command_line, positive
from services.jobs.recipes import Overrides, RecipeName, chosen_recipe
from services.jobs.training import Run, rank, train
from services.nn.clip_model import ClipModel, save_clip
from services.score.negatives.annotation import TextBlobAnnotator
from services.score.negatives.hard_negatives import HardNegatives
from services.score.training.batches import Source, TuningData
from services.score.training.train import (
    CheckpointEvery,
    ComputePrecision,
    Name,
    NumWorkers,
    Output,
    Publish,
    Seed,
    publish_tuned,
    tuned,
    tuning_run,
)
from starters.options import multiple_of
from starters.score.data.claimed_pictures import ClaimedPictures, Pictures
from starters.score.evaluation.claim_protocol import claim_metrics
from starters.score.evaluation.scene_protocol import SceneProtocol
from starters.score.training.claim_losses import (
    ClaimChoice,
    ClaimNaming,
    FactChoice,
    FactSeeing,
    PictureSeeing,
    SaidThings,
    StemSeeing,
)
from starters.score.training.fact_space import FactSpace
from starters.score.training.mixed import MixedData, MixedLoss, MixedReading
from starters.score.training.picture_naming import PictureNaming
from starters.score.training.scene_clip import (
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
from starters.score.training.size_alignment import align_sizes
from starters.score.training.tuning import ClaimedSource, SceneLexicon, SceneRecipe, SceneSource
from starters.score.training.wise_ft import wise_ft
from starters.score.training.word_labels import WordLabels, WordNaming

BASE_NAME = "clip-scenes"
FSC_CLIP_NAME = "fsc-clip-scenes"
CLIP_KIND = "open-clip"
# The convolutions alone, the fact space and the text tower alone learn at multiples of the rate of both towers. Whoever
# only reads claims needs no pixels.
STEM_RATE, FACT_RATE, READ_RATE = 2.0, 3.0, 2.0
READ_SIDE = 4

app = command_line(help="Train and publish the score starter.", no_args_is_help=True)
app.command("wise-ft-scenes")(wise_ft)
app.command("align-sizes")(align_sizes)


@app.command("clip-scenes")
@interruptible(resumable)
def clip_scenes(
    output: Output,
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
    seed: Seed = 0,
    precision: ComputePrecision = "bf16",
    num_workers: NumWorkers = 0,
    checkpoint_every: CheckpointEvery = 200,
    width: Annotated[int, typer.Option(callback=multiple_of(HEAD_WIDTH), help="Width of both towers.")] = 256,
    layers: Annotated[int, typer.Option(min=1, help="Number of blocks of the ViT.")] = 3,
    num_evaluated: Annotated[int, typer.Option(min=1, help="Scenes of each task for the evaluation.")] = 1000,
    publish: Publish = True,
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
        metrics = scene_metrics(model, num_evaluated)
        publish_trained(directory, BASE_NAME, CLIP_KIND, options, metrics)


@app.command("fsc-clip-scenes")
@interruptible(resumable)
def fsc_clip_scenes(
    output: Output,
    recipe: RecipeName = "scenes",
    overrides: Overrides = None,
    base: Annotated[
        str | None, typer.Option(help="CLIP to tune: a name in the store, or an open_clip directory.")
    ] = None,
    steps: Annotated[int | None, typer.Option(help="Number of optimizer steps.")] = None,
    batch_size: Annotated[int | None, typer.Option(help="Images per step, over all processes.")] = None,
    seed: Seed = 0,
    precision: ComputePrecision = "bf16",
    num_workers: NumWorkers = 0,
    checkpoint_every: CheckpointEvery = 100,
    num_evaluated: Annotated[
        int, typer.Option(min=0, help="Scenes of each task for the evaluation. 0: no evaluation.")
    ] = 1000,
    name: Name = FSC_CLIP_NAME,
    publish: Publish = True,
    store_url: StoreUrl = None,
) -> None:
    """Tune a CLIP on generated scenes, pictures with claims, and hard negatives."""
    changes = {"base": base, "steps": steps, "batch_size": batch_size}
    chosen = chosen_recipe(SceneRecipe, recipe, overrides, changes)
    check_publication(name, store_url, is_wanted=publish)
    set_seed(seed)
    clip, reference = load_base(chosen.base, None, store_url)
    run = tuning_run(chosen, output, None, seed)
    run = replace(run, precision=precision, num_workers=num_workers, checkpoint_every=checkpoint_every)
    made = HardNegatives(TextBlobAnnotator(), SceneLexicon())
    source = _source(chosen, clip, seed, run.num_examples)
    naming = PictureNaming(clip.model, chosen.named) if chosen.named > 0 else None
    data = TuningData(source, clip.tokenizer, made, chosen.kinds, seed, run.num_examples)
    found = tuned(run, chosen, clip, data, naming)
    metrics = scene_metrics(found, num_evaluated, chosen.local_weight) if rank() == 0 else {}
    options = {
        "negatives": chosen.kinds, "base": reference, "recipe": recipe, "seed": seed, "precision": precision,
        "sources": dict(made.sources), "publish": publish, "store_url": store_url,
    }  # fmt: skip
    publish_tuned(found, chosen, run, name, options, metrics)


def _source(recipe: SceneRecipe, clip: ClipModel, seed: int, num_images: int) -> Source:
    """Make the images of a tuning: scenes, and pictures with claims if the recipe has a share of them."""
    side, num_claimed = clip.transform.size[0], int(recipe.claimed * num_images)
    scenes = SceneSource(side)
    if not num_claimed:
        return scenes
    claims = ClaimedPictures(clip.tokenizer, Pictures(seed + 4_000, num_claimed, side), num_claimed, recipe.close)
    return ClaimedSource(scenes, claims, recipe.kinds, recipe.excludes_true)


def scene_metrics(clip: ClipModel, num_evaluated: int, local_weight: float = 0.0) -> dict[str, float]:
    """Measure scenes and claims; nothing if none are to be evaluated."""
    if not num_evaluated:
        return {}
    scores = SceneProtocol("test", num_evaluated).evaluate(clip).metrics(local_weight)
    return scores | claim_metrics(clip, num_evaluated, local_weight)


if __name__ == "__main__":
    app()
