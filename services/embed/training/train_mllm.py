"""Offline job: FocalLens tuning of a LLaVA (dissertation, section 5.3.1).

`torchrun -m services.embed.training.train_mllm …` splits each batch over several processes, which share their
negatives.
"""

from pathlib import Path
from typing import Annotated

import torch
import typer
from accelerate.utils import set_seed

from services.embed.data.llava import LlavaData
from services.embed.data.triplets import TUNING_PICTURE_SHARE, Asked
from services.embed.evaluation.colorshape import ColorShapeProtocol, evaluate_colorshape, summary
from services.embed.evaluation.loading import load_embedder
from services.embed.model.mllm_checkpoint import MLLM_KIND, is_llava, load_mllm, save_mllm
from services.embed.training.mllm_objective import MllmData, MllmLoss, merge, prepare_tuning, recompute_activations
from services.jobs.checkpoints import find_checkpoint
from services.jobs.clip_base import load_base
from services.jobs.interruption import interruptible, resumable
from services.jobs.options import MAX_SEED, StoreUrl, command_line, finite, output_folder, positive
from services.jobs.publication import check_publication, publish_trained
from services.jobs.training import Precision, Run, rank, train
from services.nn.plain_clip import embedding_width

NAME = "focallens-mllm"

app = command_line(help="Tune a LLaVA to embed images under instructions (FocalLens-MLLM).")


@app.command()
@interruptible(resumable)
def focallens_mllm(
    output: Annotated[
        Path, typer.Option(callback=output_folder, help="Folder for the checkpoint, the log and the resume state.")
    ],
    base: Annotated[
        str, typer.Option(help="LLaVA to tune: a folder as llava-hf publishes it, or a name in the store.")
    ],
    text_tower: Annotated[
        str,
        typer.Option(help="CLIP whose texts are the targets: a name in the store, a folder, or an open_clip name."),
    ] = "clip-shapes",
    pretrained: Annotated[str | None, typer.Option(help="Weights for an open_clip name: a tag or a file.")] = None,
    llava: Annotated[Path | None, typer.Option(help="LLaVA's JSON file, to use instead of drawn pictures.")] = None,
    image_folder: Annotated[Path, typer.Option(help="Folder with the images of --llava.")] = Path(),
    steps: Annotated[int, typer.Option(min=1, help="Optimizer steps.")] = 1000,
    batch_size: Annotated[
        int, typer.Option(min=1, help="Images per step, over all processes and accumulated batches.")
    ] = 64,
    accumulate: Annotated[int, typer.Option(min=1, help="Batches accumulated in one optimizer step.")] = 1,
    lora_rank: Annotated[
        int, typer.Option(min=0, help="Rank of LoRA's matrices. 0: tune the whole language model, as in the paper.")
    ] = 128,
    learning_rate: Annotated[
        float, typer.Option(callback=positive, help="Peak learning rate. The paper uses 2e-5.")
    ] = 2e-4,
    seed: Annotated[int, typer.Option(min=0, max=MAX_SEED, help="Seed of the weights and the data.")] = 0,
    precision: Annotated[
        Precision, typer.Option(help="Precision of the computation and, under LoRA, of the weights that stay.")
    ] = "bf16",
    recompute: Annotated[bool, typer.Option(help="Compute activations again on the way back, to save memory.")] = False,
    num_workers: Annotated[int, typer.Option(min=0, help="Number of processes that render and tokenize batches.")] = 0,
    checkpoint_every: Annotated[int, typer.Option(min=1, help="Number of steps between resume states.")] = 500,
    questions: Annotated[int, typer.Option(min=1, help="Number of different questions about each drawn picture.")] = 3,
    picture_share: Annotated[
        float, typer.Option(min=0, max=1, help="Share of drawn pictures that are wider than ColorShape.")
    ] = TUNING_PICTURE_SHARE,
    scale: Annotated[
        float,
        typer.Option(min=0, callback=finite, help="Fixed logit scale. 0: train CLIP's own scale, as in the paper."),
    ] = 0.0,
    images_per_class: Annotated[int, typer.Option(min=2, help="ColorShape images per class for the evaluation.")] = 125,
    publish: Annotated[bool, typer.Option(help="Publish to the model store when done.")] = True,
    store_url: StoreUrl = None,
) -> None:
    """Tune a LLaVA to embed images under instructions (FocalLens-MLLM), on drawn pictures or on LLaVA's data."""
    options = dict(locals())
    check_publication(NAME, store_url, is_wanted=publish)
    run = Run(
        output, steps, batch_size, learning_rate, 0.0, 0.03, seed, accumulate=accumulate, stage="tuning",
        precision=precision, num_workers=num_workers, checkpoint_every=checkpoint_every,
    )  # fmt: skip
    output.mkdir(parents=True, exist_ok=True)
    set_seed(seed)
    source = find_checkpoint(base, store_url)
    if not is_llava(source.directory):
        raise typer.BadParameter(
            f"{base} is no LLaVA: import one, or make a small one with `fovea train llava`", param_hint="--base"
        )
    checkpoint = load_mllm(source.directory)
    clip, targets = load_base(text_tower, pretrained, store_url)
    records = None if llava is None else LlavaData(llava, image_folder)
    model = checkpoint.model
    if recompute:
        recompute_activations(model)
    prepare_tuning(model, embedding_width(clip), lora_rank, torch.bfloat16 if precision == "bf16" else torch.float32)
    loss = MllmLoss(model, checkpoint.transform, clip, scale or None)
    asked = Asked(questions, has_unconditional=False, picture_share=picture_share)
    data = MllmData(checkpoint.tokenizer, clip.tokenizer, checkpoint.transform, seed, run.num_examples, asked, records)
    train(run, loss, data)
    if rank() == 0:
        directory = output / "checkpoint"
        merge(model)
        save_mllm(model, source.directory, directory)
        metrics = {} if llava else _measure(directory, images_per_class)
        label = source.label if source.manifest else base
        publish_trained(directory, NAME, MLLM_KIND, {**options, "base": label, "text_tower": targets}, metrics)


def _measure(directory: Path, images_per_class: int) -> dict[str, float]:
    protocol = ColorShapeProtocol(num_per_class=images_per_class)
    return summary(evaluate_colorshape(load_embedder(str(directory)), protocol))


if __name__ == "__main__":
    app()
