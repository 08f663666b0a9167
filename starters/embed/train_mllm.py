"""Offline job: FocalLens tuning of the small LLaVA on drawn pictures and questions about them."""

from typing import Annotated

import torch
import typer
from accelerate.utils import set_seed

from services.embed.model.mllm_engine import MLLM_KIND, load_mllm, save_mllm
from services.embed.training.mllm_objective import MllmLoss, merge, prepare_tuning
from services.embed.training.objectives import MERGED_ROWS, TripletData
from services.embed.training.train_mllm import NAME, Base, TextTower
from services.jobs import training_options as options
from services.jobs.checkpoints import check_publication, find_checkpoint, publish_trained
from services.jobs.clip_base import load_base
from services.jobs.interruption import interruptible, resumable
from services.jobs.options import StoreUrl, command_line
from services.jobs.training import Run, rank, train
from services.nn.plain_clip import embedding_width
from starters.embed.measures import ImagesPerClass, measure_colorshape
from starters.embed.questions import TUNING_PICTURE_SHARE, Asked, DrawnTriplets
from starters.embed.train_focallens import Questions

app = command_line(help="Tune the small LLaVA to embed images under instructions, on drawn pictures.")


@app.command()
@interruptible(resumable)
def focallens_mllm(
    output: options.RunFolder,
    base: Base = "llava-shapes",
    text_tower: TextTower = "clip-shapes",
    steps: options.Steps = 1000,
    batch_size: options.BatchSize = 64,
    lora_rank: Annotated[int, typer.Option(min=0, help="Rank of LoRA's matrices; 0: tune the whole model.")] = 128,
    learning_rate: options.LearningRate = 2e-4,
    seed: options.Seed = 0,
    precision: options.ComputePrecision = "bf16",
    num_workers: options.NumWorkers = 0,
    checkpoint_every: options.CheckpointEvery = 500,
    questions: Questions = 3,
    picture_share: Annotated[
        float, typer.Option(min=0, max=1, help="Share of drawn pictures that are wider than ColorShape.")
    ] = TUNING_PICTURE_SHARE,
    scale: options.LogitScale = 0.0,
    images_per_class: ImagesPerClass = 125,
    publish: options.Publish = True,
    store_url: StoreUrl = None,
) -> None:
    """Tune a LLaVA to embed images under instructions (FocalLens-MLLM), on drawn pictures."""
    given = dict(locals())
    check_publication(NAME, store_url, is_wanted=publish)
    run = Run(
        output, steps, batch_size, learning_rate, 0.0, 0.03, seed, stage="tuning", precision=precision,
        num_workers=num_workers, checkpoint_every=checkpoint_every,
    )  # fmt: skip
    output.mkdir(parents=True, exist_ok=True)
    set_seed(seed)
    found = find_checkpoint(base, store_url)
    checkpoint = load_mllm(found.directory)
    clip, targets = load_base(text_tower, None, store_url)
    model = checkpoint.model
    prepare_tuning(model, embedding_width(clip), lora_rank, torch.bfloat16 if precision == "bf16" else torch.float32)
    loss = MllmLoss((model, checkpoint.transform), clip, scale or None, MERGED_ROWS)
    asked = Asked(questions, has_unconditional=False, picture_share=picture_share)
    source = DrawnTriplets(seed, run.num_examples, checkpoint.transform.size[0], asked)
    train(run, loss, TripletData(clip.tokenizer, source, checkpoint.tokenizer))
    if rank() == 0:
        directory = output / "checkpoint"
        merge(model)
        save_mllm(model, found.directory, directory)
        described = {**given, "base": found.label if found.manifest else base, "text_tower": targets}
        publish_trained(directory, NAME, MLLM_KIND, described, measure_colorshape(directory, images_per_class))


if __name__ == "__main__":
    app()
