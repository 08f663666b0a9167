"""Offline job: the small CLIP that FocalLens starts from, on drawn pictures and captions."""

from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import torch
import torch.nn.functional as F
import typer
from accelerate.utils import set_seed
from torch import nn

from services.core.refusals import Refused
from services.jobs import training_options as options
from services.jobs.checkpoints import check_publication, publish_trained
from services.jobs.interruption import interruptible, resumable
from services.jobs.options import StoreUrl, command_line, finite
from services.jobs.training import Run, rank, train
from services.nn.clip_model import MERGES, ClipModel, create_clip, load_clip, save_clip
from starters.embed.clip_objectives import AttributeHeads, AttributeLoss, CaptionData, CaptionLoss
from starters.embed.measures import ImagesPerClass, measure_colorshape
from starters.embed.questions import learn_merges
from starters.merges import vocabulary_size, write_merges
from starters.options import multiple_of

NAME = "clip-shapes"
HEAD_WIDTH = 32
PATCH_SIZE = 16

STATEMENT = (
    "Trained on generated drawings of colored shapes and their captions. It knows colors, shapes, sizes, textures,"
    " backgrounds and positions of drawn things; of photographs it knows nothing."
)

app = command_line(help="Train the small CLIP that FocalLens starts from.")


@app.command()
@interruptible(resumable)
def clip(
    output: options.RunFolder,
    warmup_steps: Annotated[
        int, typer.Option(min=0, help="Steps of the supervised warm-up before; 0 leaves it out.")
    ] = 1500,
    steps: Annotated[int, typer.Option(min=1, help="Optimizer steps of the contrastive training.")] = 5000,
    batch_size: options.BatchSize = 128,
    learning_rate: options.LearningRate = 1e-3,
    weight_decay: Annotated[
        float, typer.Option(min=0, callback=finite, help="On matrices; biases, gains and scales have none.")
    ] = 0.1,
    seed: options.Seed = 0,
    precision: options.ComputePrecision = "bf16",
    num_workers: options.NumWorkers = 0,
    checkpoint_every: options.CheckpointEvery = 500,
    width: Annotated[int, typer.Option(callback=multiple_of(HEAD_WIDTH), help="Width of the ViT.")] = 128,
    layers: Annotated[int, typer.Option(min=1, help="Number of blocks of the ViT.")] = 4,
    image_size: Annotated[
        int, typer.Option(callback=multiple_of(PATCH_SIZE), help="Side of the images in pixels.")
    ] = 96,
    start: Annotated[
        Path | None,
        typer.Option(exists=True, file_okay=False, help="CLIP checkpoint whose image tower to continue from."),
    ] = None,
    images_per_class: ImagesPerClass = 125,
    publish: options.Publish = True,
    store_url: StoreUrl = None,
) -> None:
    """Train the small CLIP that FocalLens starts from, on drawn pictures and captions."""
    asked = dict(locals())
    check_publication(NAME, store_url, is_wanted=publish)
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
        metrics = measure_colorshape(directory, images_per_class)
        publish_trained(directory, NAME, "open-clip", {**asked, "statement": STATEMENT}, metrics)


def _first_clip(output: Path, start: Path | None, config: dict[str, Any]) -> ClipModel:
    """Create a CLIP with a new vocabulary, whose image tower may continue from another CLIP's."""
    write_merges(learn_merges(), output / MERGES)
    clip = create_clip(config, output / MERGES)
    if start is not None:
        continue_image_tower(clip.model.visual, load_clip(str(start)).model.visual)
    # convolutions of few channels are several times as fast so on a CPU
    clip.model.visual.conv1.to(memory_format=torch.channels_last)
    return clip


def continue_image_tower(visual: Any, earlier: Any) -> None:
    """Copy an earlier image tower's weights into one with as many blocks, possibly for larger images and with residual
    blocks in its stem: positions are interpolated (Dosovitskiy et al. 2021).

    Raises Refused for towers that differ in anything else.
    """
    state = {**earlier.state_dict()}
    class_token, *patches = state["positional_embedding"].split([1, earlier.positional_embedding.shape[0] - 1])
    grid = patches[0].view(1, *earlier.grid_size, -1).permute(0, 3, 1, 2)
    larger = F.interpolate(grid, size=visual.grid_size, mode="bicubic").flatten(2)[0].T
    state["positional_embedding"] = torch.cat([class_token, larger])
    if isinstance(earlier.conv1, nn.Sequential) and isinstance(visual.conv1, nn.Sequential):
        last, new_last = f"conv1.{len(earlier.conv1) - 1}.", f"conv1.{len(visual.conv1) - 1}."
        state = {new_last + name.removeprefix(last) if name.startswith(last) else name: x for name, x in state.items()}
    try:
        found = visual.load_state_dict(state, strict=False)
    except RuntimeError as error:
        raise Refused(f"the image towers differ: {error}") from error
    missing = [name for name in found.missing_keys if ".layers." not in name]
    if missing or found.unexpected_keys:
        raise Refused(f"the image towers differ in {', '.join([*missing, *found.unexpected_keys][:3])}")


def _clip_config(width: int, layers: int, image_size: int) -> dict[str, Any]:
    """An open_clip configuration; the vocabulary is SimpleTokenizer's bytes, merges and two special tokens."""
    vision = {"image_size": image_size, "patch_size": PATCH_SIZE, "width": width, "layers": layers}
    text = {"context_length": 77, "vocab_size": vocabulary_size(learn_merges()), "width": 128, "heads": 4, "layers": 3}
    model = {"embed_dim": 128, "vision_cfg": {**vision, "head_width": HEAD_WIDTH}, "text_cfg": text}
    stem = {"conv_stem": [24, 48, 96], "conv_stem_blocks": 2}
    return {"model_cfg": model, "preprocess_cfg": {"resize_mode": "longest"}, **stem}


if __name__ == "__main__":
    app()
