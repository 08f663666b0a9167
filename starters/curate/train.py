"""`python -m starters train blind`: a small model that judges by a text alone if it is plausible, or grammatical.

It is what refinement and audits use where the models of the dissertation, Vera and a classifier of CoLA, are not at
hand. The true sentences are yours; the false ones are made of them by rule.
"""

from collections.abc import Sequence
from pathlib import Path
from random import Random
from typing import Annotated, Any

import torch
import typer

from services.core.refusals import Refused
from services.jobs.checkpoints import check_publication, publish_trained
from services.jobs.interruption import interruptible, resumable
from services.jobs.options import MAX_SEED, StoreUrl, command_line, output_folder, positive
from services.jobs.training import Run, train
from services.score.negatives.annotation import Annotation, TextBlobAnnotator
from starters.curate.blind_network import (
    Batches,
    BlindLoss,
    Shape,
    build_classifier,
    build_tokenizer,
    digest_of,
    save_classifier,
)
from starters.curate.corruptions import Bias, Corruptions, Words
from starters.curate.sentences import read_sentences
from starters.options import multiple_of

KIND = "blind-classifier"
# Sentences that are not trained on: their share, and no more than this.
HELD_OUT, MAX_HELD_OUT = 0.05, 2_000

# Readings of a sentence beyond which there is a warning.
MAX_READINGS = 50

app = command_line()


@app.callback()
def choose() -> None:
    """Train a model that reads no images."""


@app.command()
@interruptible(resumable)
def blind(
    bias: Annotated[
        Bias, typer.Argument(help="plausibility: sentences that make no sense. grammar: that are not English.")
    ],
    texts: Annotated[
        list[Path],
        typer.Option(exists=True, dir_okay=False, help="File of sentences, one a line. Repeatable; .gz is unpacked."),
    ],
    output: Annotated[Path, typer.Option(callback=output_folder, help="Folder of the checkpoint and resume state.")],
    field: Annotated[
        list[str] | None, typer.Option(help="The files are JSON lines with sentences in this field. Repeatable.")
    ] = None,
    name: Annotated[str | None, typer.Option(help="Name in the store.", show_default="blind-BIAS")] = None,
    steps: Annotated[int, typer.Option(min=1, help="Number of optimizer steps.")] = 6_000,
    batch_size: Annotated[int, typer.Option(callback=multiple_of(2), help="Sentences a step, half of them true.")] = 64,
    learning_rate: Annotated[float, typer.Option(callback=positive, help="Peak learning rate.")] = 1e-3,
    width: Annotated[int, typer.Option(callback=multiple_of(4), help="Width of the network.")] = Shape.width,
    layers: Annotated[int, typer.Option(min=1, help="Number of its layers.")] = Shape.num_layers,
    vocabulary: Annotated[int, typer.Option(min=300, help="Most word pieces.")] = Shape.vocabulary,
    seed: Annotated[int, typer.Option(min=0, max=MAX_SEED, help="Seed of weights, order and corruptions.")] = 0,
    checkpoint_every: Annotated[int, typer.Option(min=1, help="Steps between two resume states.")] = 500,
    licence: Annotated[str | None, typer.Option(help="Licence of the checkpoint, for the manifest.")] = None,
    statement: Annotated[str | None, typer.Option(help="What the model has read, in a sentence.")] = None,
    publish: Annotated[bool, typer.Option(help="Publish to the model store when done.")] = True,
    store_url: StoreUrl = None,
) -> None:
    """Train a small classifier of plausible or of grammatical sentences, and publish it."""
    options = dict(locals())
    name = name or f"blind-{bias}"
    check_publication(name, store_url, is_wanted=publish)
    sentences = read_sentences(texts, field or ())
    Random(seed).shuffle(sentences)
    if (readings := steps * batch_size // (2 * len(sentences))) > MAX_READINGS:
        typer.echo(
            f"Warning: each of the {len(sentences):,} sentences will be read {readings:,} times, and may be learnt by"
            " heart. Give more of them, or take fewer --steps.",
            err=True,
        )
    annotator = TextBlobAnnotator()
    annotations = [annotator.annotate(sentence) for sentence in sentences]
    num_held_out = min(int(HELD_OUT * len(annotations)), MAX_HELD_OUT)
    if not num_held_out:
        raise Refused(f"{len(sentences)} sentences are too few: none would be held out")
    held_out, trained_on = annotations[:num_held_out], annotations[num_held_out:]
    tokenizer = build_tokenizer(sentences[num_held_out:], vocabulary)
    classifier = build_classifier(tokenizer.get_vocab_size(), Shape(vocabulary, width, layers), seed)
    corruptions = Corruptions(Words(trained_on))
    output.mkdir(parents=True, exist_ok=True)
    run = Run(
        output, steps, batch_size, learning_rate, weight_decay=0.01, warmup_ratio=0.05, seed=seed,
        checkpoint_every=checkpoint_every, stage=bias,
    )  # fmt: skip
    torch.manual_seed(seed)  # dropout
    batches = Batches(trained_on, corruptions, tokenizer, bias=bias, num_sentences=batch_size, seed=seed)
    train(run, BlindLoss(classifier), batches)
    directory = output / "checkpoint"
    save_classifier(classifier, tokenizer, directory)
    metrics = measured(classifier, tokenizer, corruptions, held_out, bias)
    told = {**options, "texts": [path.name for path in texts], "sentences": len(sentences), "name": name}
    publish_trained(directory, name, KIND, {**told, "digest": digest_of(sentences)}, metrics)


@torch.inference_mode()
def measured(
    classifier: Any, tokenizer: Any, corruptions: Corruptions, held_out: Sequence[Annotation], bias: Bias
) -> dict[str, float]:
    """Compute the share of held-out sentences that are scored higher than their corruption."""
    generator, right, total = Random(f"held out {bias}"), 0, 0
    for annotation in held_out:
        false = corruptions.make(annotation, bias, generator)
        if false is not None:
            scores = [
                classifier(torch.tensor([tokenizer.encode(text).ids])).logits.softmax(-1)[0, 1].item()
                for text in (annotation.replaced({}), false)
            ]
            right += scores[0] > scores[1]
            total += 1
    return {"held_out_pairs": total, "held_out_accuracy": round(right / total, 4)}


if __name__ == "__main__":
    app()
