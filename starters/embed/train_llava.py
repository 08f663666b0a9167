"""Offline job: a small LLaVA on drawn pictures, for FocalLens-MLLM to start from (dissertation, section 5.4).

The paper follows LLaVA's recipe to obtain its base: a CLIP's image tower that stays, and a language model tuned to
answer. Here nothing is trained before, so the tower learns first what the pictures show, by attribute heads that are
thrown away, and language model and projector learn to speak by answering.
"""

from dataclasses import replace
from typing import Annotated

import typer
from accelerate.utils import set_seed

from services.embed.model.mllm_engine import IMAGE, MLLM_KIND, MllmPrompt
from services.jobs import training_options as options
from services.jobs.checkpoints import check_publication, publish_trained
from services.jobs.interruption import interruptible, resumable
from services.jobs.options import StoreUrl, command_line
from services.jobs.training import Run, rank, train
from services.nn.image_transform import ImageTransform
from starters.embed.llava_objectives import AnswerLoss, ConversationData, PictureData, SeeingLoss
from starters.embed.measures import ImagesPerClass, measure_colorshape
from starters.embed.questions import Asked
from starters.embed.small_llava import (
    HEAD_WIDTH,
    MEAN,
    PATCH_SIZE,
    STD,
    Dimensions,
    create_llava,
    create_tokenizer,
    save_llava,
)
from starters.options import multiple_of

NAME = "llava-shapes"
STATEMENT = (
    "Trained on generated drawings of colored shapes and questions about them. It was not tuned to embed; of"
    " photographs it knows nothing."
)

app = command_line(help="Train the small LLaVA that FocalLens-MLLM starts from.")


@app.command()
@interruptible(resumable)
def llava(
    output: options.RunFolder,
    warmup_steps: Annotated[
        int, typer.Option(min=1, help="Steps in which the image tower learns what pictures show.")
    ] = 1500,
    warmup_batch_size: Annotated[int, typer.Option(min=1, help="Images per step of them, over all processes.")] = 64,
    steps: Annotated[int, typer.Option(min=1, help="Steps in which the language model learns to answer.")] = 1500,
    batch_size: Annotated[int, typer.Option(min=1, help="Images per step of them, over all processes.")] = 32,
    learning_rate: options.LearningRate = 2e-3,
    seed: options.Seed = 0,
    precision: options.ComputePrecision = "bf16",
    num_workers: options.NumWorkers = 0,
    checkpoint_every: options.CheckpointEvery = 500,
    questions: Annotated[int, typer.Option(min=1, help="Number of different questions about each picture.")] = 5,
    picture_share: Annotated[
        float,
        typer.Option(min=0, max=1, help="Share of pictures wider than ColorShape, of any angle and light."),
    ] = 0.0,
    width: Annotated[int, typer.Option(callback=multiple_of(HEAD_WIDTH), help="Width of the image tower.")] = 128,
    layers: Annotated[int, typer.Option(min=1, help="Number of blocks of the image tower.")] = 4,
    text_width: Annotated[
        int, typer.Option(callback=multiple_of(HEAD_WIDTH), help="Width of the language model.")
    ] = 128,
    text_layers: Annotated[int, typer.Option(min=1, help="Number of layers of the language model.")] = 3,
    image_size: Annotated[
        int, typer.Option(callback=multiple_of(PATCH_SIZE), help="Side of the images in pixels.")
    ] = 64,
    images_per_class: ImagesPerClass = 125,
    publish: options.Publish = True,
    store_url: StoreUrl = None,
) -> None:
    """Train the small LLaVA that FocalLens-MLLM starts from, on drawn pictures and questions."""
    given = dict(locals())
    check_publication(NAME, store_url, is_wanted=publish)
    warmup = Run(
        output, warmup_steps, warmup_batch_size, learning_rate, 0.01, 0.05, seed, stage="warmup",
        precision=precision, num_workers=num_workers, checkpoint_every=checkpoint_every,
    )  # fmt: skip
    run = replace(warmup, num_steps=steps, batch_size=batch_size, stage="training")
    output.mkdir(parents=True, exist_ok=True)
    set_seed(seed)
    tokenizer = create_tokenizer()
    model = create_llava(Dimensions(width, layers, text_width, text_layers, image_size), tokenizer)
    transform = ImageTransform((image_size, image_size), MEAN, STD)
    # a seed of its own: the second stage sees other pictures
    pictures = PictureData(image_size, image_size // PATCH_SIZE, seed + 1_000, warmup.num_examples, picture_share)
    train(warmup, SeeingLoss(model, transform), pictures)
    model.model.vision_tower.requires_grad_(False)
    prompt = MllmPrompt()
    asked = Asked(questions, has_unconditional=False, picture_share=picture_share)
    opening = tokenizer(prompt.prompt.partition(IMAGE)[0])["input_ids"]
    data = ConversationData(tokenizer, prompt, image_size, seed, run.num_examples, asked)
    train(run, AnswerLoss(model, opening, transform), data)
    if rank() == 0:
        directory = output / "checkpoint"
        save_llava(model, tokenizer, directory)
        metrics = measure_colorshape(directory, images_per_class)
        publish_trained(directory, NAME, MLLM_KIND, {**given, "statement": STATEMENT}, metrics)


if __name__ == "__main__":
    app()
