"""Offline job: FocalLens tuning of a LLaVA (dissertation, section 5.3.1).

`torchrun -m services.embed.training.train_mllm …` splits each batch over several processes, which share their
negatives.
"""

from pathlib import Path
from typing import Annotated

import torch
import typer
from accelerate.utils import set_seed

from services.embed.data.triplets import LlavaData, LlavaTriplets
from services.embed.model.mllm_engine import MLLM_KIND, is_llava, load_mllm, save_mllm
from services.embed.training.mllm_objective import MllmLoss, merge, prepare_tuning, recompute_activations
from services.embed.training.objectives import TripletData
from services.embed.training.train import ImageFolder, LlavaFile
from services.jobs import training_options as options
from services.jobs.checkpoints import check_publication, find_checkpoint, publish_trained
from services.jobs.clip_base import load_base
from services.jobs.interruption import interruptible, resumable
from services.jobs.options import StoreUrl, command_line
from services.jobs.training import Precision, Run, rank, train
from services.nn.plain_clip import embedding_width

NAME = "focallens-mllm"

app = command_line(help="Tune a LLaVA to embed images under instructions (FocalLens-MLLM).")

Base = Annotated[str, typer.Option(help="LLaVA to tune: a folder as llava-hf publishes it, or a name in the store.")]
TextTower = Annotated[
    str, typer.Option(help="CLIP whose texts are the targets: a name in the store, a folder, or an open_clip name.")
]
LoraRank = Annotated[
    int, typer.Option(min=0, help="Rank of LoRA's matrices. 0: tune the whole language model, as in the paper.")
]


@app.command()
@interruptible(resumable)
def focallens_mllm(
    output: options.RunFolder,
    base: Base,
    llava: LlavaFile,
    image_folder: ImageFolder = Path(),
    text_tower: TextTower = "clip-shapes",
    pretrained: options.Pretrained = None,
    steps: options.Steps = 1000,
    batch_size: options.BatchSize = 64,
    accumulate: options.Accumulate = 1,
    lora_rank: LoraRank = 128,
    learning_rate: options.LearningRate = 2e-4,
    seed: options.Seed = 0,
    precision: Annotated[
        Precision, typer.Option(help="Precision of the computation and, under LoRA, of the weights that stay.")
    ] = "bf16",
    recompute: Annotated[bool, typer.Option(help="Compute activations again on the way back, to save memory.")] = False,
    num_workers: options.NumWorkers = 0,
    checkpoint_every: options.CheckpointEvery = 500,
    scale: options.LogitScale = 0.0,
    publish: options.Publish = True,
    store_url: StoreUrl = None,
) -> None:
    """Tune a LLaVA to embed images under instructions (FocalLens-MLLM) on visual instruction data."""
    asked = dict(locals())
    check_publication(NAME, store_url, is_wanted=publish)
    run = Run(
        output, steps, batch_size, learning_rate, 0.0, 0.03, seed, accumulate=accumulate, stage="tuning",
        precision=precision, num_workers=num_workers, checkpoint_every=checkpoint_every,
    )  # fmt: skip
    output.mkdir(parents=True, exist_ok=True)
    set_seed(seed)
    data = LlavaData(llava, image_folder)
    found = find_checkpoint(base, store_url)
    if not is_llava(found.directory):
        raise typer.BadParameter(f"{base} is no LLaVA", param_hint="--base")
    checkpoint = load_mllm(found.directory)
    clip, targets = load_base(text_tower, pretrained, store_url)
    model = checkpoint.model
    if recompute:
        recompute_activations(model)
    prepare_tuning(model, embedding_width(clip), lora_rank, torch.bfloat16 if precision == "bf16" else torch.float32)
    loss = MllmLoss(model, checkpoint.transform, clip, scale or None)
    source = LlavaTriplets(data, checkpoint.transform, seed, run.num_examples)
    train(run, loss, TripletData(clip.tokenizer, source, checkpoint.tokenizer))
    if rank() == 0:
        directory = output / "checkpoint"
        merge(model)
        save_mllm(model, found.directory, directory)
        label = found.label if found.manifest else base
        publish_trained(directory, NAME, MLLM_KIND, {**asked, "base": label, "text_tower": targets}, {})


if __name__ == "__main__":
    app()
