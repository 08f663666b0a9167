"""Offline jobs: a small CLIP on ColorShape captions, and FocalLens tuning of any CLIP (dissertation, section 5.3).

`torchrun -m services.embed.training.train …` splits each batch over several processes, which share their negatives.
"""

from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import torch
import typer
from accelerate.utils import set_seed

from services.embed.data.llava import LlavaData
from services.embed.data.triplets import CONDITIONS, UNSEEN_CONDITIONS, Asked, all_answers, learn_merges
from services.embed.evaluation.colorshape import ColorShapeProtocol, evaluate_colorshape, summary
from services.embed.evaluation.loading import load_embedder
from services.embed.focallens import FocalLens, Visibility
from services.embed.model.checkpoint import load_focallens, save_focallens
from services.embed.training.measures import evaluate_wordings
from services.embed.training.objectives import (
    AttributeHeads,
    AttributeLoss,
    CaptionData,
    CaptionLoss,
    TripletData,
    TripletLoss,
)
from services.jobs.clip_base import load_base
from services.jobs.interruption import interruptible, resumable
from services.jobs.options import MAX_SEED, StoreUrl, among, command_line, finite, multiple_of, output_folder, positive
from services.jobs.publication import check_publication, publish_trained
from services.jobs.training import Precision, Run, rank, train
from services.nn.clip_model import MERGES, ClipModel, continue_image_tower, create_clip, load_clip, save_clip
from services.nn.clip_tokenizer import vocabulary_size, write_merges

CLIP_NAME = "clip-shapes"
FOCALLENS_NAME = "focallens-shapes"
HEAD_WIDTH = 32
PATCH_SIZE = 16

CLIP_STATEMENT = (
    "Trained on generated drawings of colored shapes and their captions. It knows colors, shapes, sizes, textures,"
    " backgrounds and positions of drawn things; of photographs it knows nothing."
)
FOCALLENS_STATEMENT = (
    "Tuned on generated drawings to follow conditions that ask for color, shape, size, texture, background or position,"
    " in many wordings and some other languages. Other conditions and photographs it does not know."
)

app = command_line(help="Train and publish checkpoints of the embed service.", no_args_is_help=True)


@app.command()
@interruptible(resumable)
def clip(
    output: Annotated[
        Path, typer.Option(callback=output_folder, help="Folder for the checkpoint, the log and the resume state.")
    ],
    warmup_steps: Annotated[
        int, typer.Option(min=0, help="Steps of the supervised warm-up before; 0 leaves it out.")
    ] = 1500,
    steps: Annotated[int, typer.Option(min=1, help="Optimizer steps of the contrastive training.")] = 5000,
    batch_size: Annotated[int, typer.Option(min=1, help="Images per step, over all processes.")] = 128,
    learning_rate: Annotated[float, typer.Option(callback=positive, help="Peak learning rate.")] = 1e-3,
    weight_decay: Annotated[
        float, typer.Option(min=0, callback=finite, help="On matrices; biases, gains and scales have none.")
    ] = 0.1,
    seed: Annotated[int, typer.Option(min=0, max=MAX_SEED, help="Seed of the weights and the data.")] = 0,
    precision: Annotated[Precision, typer.Option(help="Precision of the computation.")] = "bf16",
    num_workers: Annotated[int, typer.Option(min=0, help="Number of processes that render and tokenize batches.")] = 0,
    checkpoint_every: Annotated[int, typer.Option(min=1, help="Number of steps between resume states.")] = 500,
    width: Annotated[int, typer.Option(callback=multiple_of(HEAD_WIDTH), help="Width of the ViT.")] = 128,
    layers: Annotated[int, typer.Option(min=1, help="Number of blocks of the ViT.")] = 4,
    image_size: Annotated[
        int, typer.Option(callback=multiple_of(PATCH_SIZE), help="Side of the images in pixels.")
    ] = 96,
    start: Annotated[
        Path | None,
        typer.Option(exists=True, file_okay=False, help="CLIP checkpoint whose image tower to continue from."),
    ] = None,
    images_per_class: Annotated[int, typer.Option(min=2, help="ColorShape images per class for the evaluation.")] = 125,
    publish: Annotated[bool, typer.Option(help="Publish to the model store when done.")] = True,
    store_url: StoreUrl = None,
) -> None:
    """Train the small CLIP that FocalLens starts from, on drawn pictures and captions."""
    options = dict(locals())
    check_publication(CLIP_NAME, store_url, is_wanted=publish)
    warmup = Run(
        output, warmup_steps, batch_size, 1.5 * learning_rate, weight_decay, 0.05, seed, stage="warmup",
        precision=precision, num_workers=num_workers, checkpoint_every=checkpoint_every,
    )  # fmt: skip
    run = replace(warmup, num_steps=steps, learning_rate=learning_rate, stage="contrastive")
    output.mkdir(parents=True, exist_ok=True)
    set_seed(seed)
    model = _first_clip(output, start, _clip_config(width, layers, image_size))
    visual = model.model.visual
    heads = AttributeHeads(width)
    data = CaptionData(model.tokenizer, model.transform, visual.grid_size[0], seed, run.num_examples)
    if warmup_steps > 0:
        # a seed of its own: the contrastive stage sees other pictures
        train(warmup, AttributeLoss(visual, model.transform, heads), replace(data, seed=seed + 1_000))
    train(run, CaptionLoss(model.model, model.transform, heads), data)
    if rank() == 0:
        directory = output / "checkpoint"
        save_clip(model, directory)
        protocol = ColorShapeProtocol(num_per_class=images_per_class)
        result = evaluate_colorshape(load_embedder(str(directory)), protocol)
        publish_trained(directory, CLIP_NAME, "open-clip", {**options, "statement": CLIP_STATEMENT}, summary(result))


@app.command()
@interruptible(resumable)
def focallens(
    output: Annotated[
        Path, typer.Option(callback=output_folder, help="Folder for the checkpoint, the log and the resume state.")
    ],
    base: Annotated[
        str, typer.Option(help="CLIP to tune: a name in the store, an open_clip directory, or an open_clip name.")
    ] = CLIP_NAME,
    pretrained: Annotated[str | None, typer.Option(help="Weights for an open_clip name: a tag or a file.")] = None,
    start: Annotated[
        Path | None,
        typer.Option(exists=True, file_okay=False, help="FocalLens checkpoint, tuned from --base, to continue from."),
    ] = None,
    llava: Annotated[Path | None, typer.Option(help="LLaVA's JSON file, to use instead of drawn pictures.")] = None,
    image_folder: Annotated[Path, typer.Option(help="Folder with the images of --llava.")] = Path(),
    steps: Annotated[int, typer.Option(min=1, help="Optimizer steps.")] = 1500,
    batch_size: Annotated[
        int, typer.Option(min=1, help="Images per step, over all processes and accumulated batches.")
    ] = 64,
    accumulate: Annotated[int, typer.Option(min=1, help="Batches accumulated in one optimizer step.")] = 1,
    learning_rate: Annotated[float, typer.Option(callback=positive, help="Peak learning rate.")] = 5e-4,
    seed: Annotated[int, typer.Option(min=0, max=MAX_SEED, help="Seed of the weights and the data.")] = 0,
    precision: Annotated[Precision, typer.Option(help="Precision of the computation.")] = "bf16",
    num_workers: Annotated[int, typer.Option(min=0, help="Number of processes that render and tokenize batches.")] = 0,
    checkpoint_every: Annotated[int, typer.Option(min=1, help="Number of steps between resume states.")] = 500,
    condition_layer: Annotated[
        int, typer.Option(min=0, help="Block before which the condition token is inserted.")
    ] = 0,
    visibility: Annotated[
        Visibility, typer.Option(help="Tokens that see the condition. The paper uses full.")
    ] = "readout",
    questions: Annotated[
        int, typer.Option(min=1, help="Number of different questions about each generated scene.")
    ] = 3,
    scale: Annotated[
        float,
        typer.Option(min=0, callback=finite, help="Fixed logit scale. 0: train CLIP's own scale, as in the paper."),
    ] = 10.0,
    bank: Annotated[bool, typer.Option(help="Use all known answers as negatives, not only those of the batch.")] = True,
    plain_weight: Annotated[
        float,
        typer.Option(
            min=0,
            callback=finite,
            help="Weight of the loss that preserves the unconditional embedding. The paper uses 0.",
        ),
    ] = 0.5,
    never_asked: Annotated[
        str, typer.Option(help="Conditions to leave out of tuning, to see what an unseen one does.")
    ] = ",".join(UNSEEN_CONDITIONS),
    images_per_class: Annotated[int, typer.Option(min=2, help="ColorShape images per class for the evaluation.")] = 125,
    publish: Annotated[bool, typer.Option(help="Publish to the model store when done.")] = True,
    store_url: StoreUrl = None,
) -> None:
    """Tune a CLIP to follow conditions (FocalLens-CLIP), on drawn pictures or on visual instruction data."""
    options = dict(locals())
    unseen = among(never_asked, list(CONDITIONS), "--never-asked") if never_asked else ()
    asked = Asked(questions, plain_weight > 0, unseen)
    check_publication(FOCALLENS_NAME, store_url, is_wanted=publish)
    run = Run(
        output, steps, batch_size, learning_rate, 0.0, 0.03, seed, accumulate=accumulate, stage="tuning",
        precision=precision, num_workers=num_workers, checkpoint_every=checkpoint_every,
    )  # fmt: skip
    output.mkdir(parents=True, exist_ok=True)
    set_seed(seed)
    clip, base_reference = load_base(base, pretrained, store_url)
    model = FocalLens(clip.model, condition_layer=condition_layer, visibility=visibility)
    records = None if llava is None else LlavaData(llava, image_folder)
    answers = None
    if bank and records is None:
        with torch.no_grad():
            answers = model.encode_texts(clip.tokenizer(all_answers(unseen)))
    model.clip.logit_scale.requires_grad_(scale == 0)
    data = TripletData(clip.tokenizer, clip.transform, seed, run.num_examples, asked, records)
    loss = TripletLoss((model, clip.transform), answers, scale or None, plain_weight)
    if start is not None:
        model.load_state_dict(load_focallens(start).model.state_dict())
    train(run, loss, data)
    if rank() == 0:
        directory = output / "checkpoint"
        save_focallens(model, clip, directory)
        metrics = {} if llava else _measure(directory, images_per_class)
        described = {**options, "base": base_reference, "statement": None if llava else FOCALLENS_STATEMENT}
        publish_trained(directory, FOCALLENS_NAME, "focallens-clip", described, metrics)


def _measure(directory: Path, images_per_class: int) -> dict[str, float]:
    tuned = load_embedder(str(directory))
    result = evaluate_colorshape(tuned, ColorShapeProtocol(num_per_class=images_per_class))
    return {**summary(result), **evaluate_wordings(tuned, num_per_class=max(2, images_per_class // 16))}


def _first_clip(output: Path, start: Path | None, config: dict[str, Any]) -> ClipModel:
    """Create a CLIP with a new vocabulary, whose image tower may continue from another CLIP's."""
    write_merges(learn_merges(), output / MERGES)
    clip = create_clip(config, output / MERGES)
    if start is not None:
        continue_image_tower(clip.model.visual, load_clip(str(start)).model.visual)
    # convolutions of few channels are several times as fast so on a CPU
    clip.model.visual.conv1.to(memory_format=torch.channels_last)
    return clip


def _clip_config(width: int, layers: int, image_size: int) -> dict[str, Any]:
    """An open_clip configuration; the vocabulary is SimpleTokenizer's bytes, merges and two special tokens."""
    vision = {"image_size": image_size, "patch_size": PATCH_SIZE, "width": width, "layers": layers}
    text = {"context_length": 77, "vocab_size": vocabulary_size(learn_merges()), "width": 128, "heads": 4, "layers": 3}
    model = {"embed_dim": 128, "vision_cfg": {**vision, "head_width": HEAD_WIDTH}, "text_cfg": text}
    stem = {"conv_stem": [24, 48, 96], "conv_stem_blocks": 2}
    return {"model_cfg": model, "preprocess_cfg": {"resize_mode": "longest"}, **stem}


if __name__ == "__main__":
    app()
