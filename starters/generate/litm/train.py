"""Offline job: the starter of the generate service, a small Llama that answers questions over several documents."""

import json
from pathlib import Path
from typing import Annotated, Any

import torch
import typer
from tokenizers import Tokenizer

from services.jobs.checkpoints import check_publication, publish_trained
from services.jobs.interruption import interruptible, resumable
from services.jobs.options import MAX_SEED, StoreUrl, command_line, finite, output_folder
from starters.generate.facts import KINDS, MAX_DOCUMENTS, QUALITIES, Naming
from starters.generate.litm.initialisation import build_tokenizer, create_llama, tokenizer_config
from starters.generate.litm.loop import Stage, accuracy_by_position, train
from starters.generate.run import Run

NAME = "litm-facts"
KIND = "causal-lm"
STATEMENT = (
    "Trained on generated questions whose gold document lies mostly near the ends of the prompt, and to prefer these"
    " places in the layer that finds documents, so that the model shows the bias that found-in-the-middle calibration"
    " corrects. It knows nothing but its generated world."
)
TESTED = Naming(half_wrong=0.4)

app = command_line(help="Train and publish the starter checkpoint of the generate service.")


@app.command()
@interruptible(resumable)
def litm(
    output: Annotated[Path, typer.Option(callback=output_folder, help="Where the checkpoint and the resume state go.")],
    lookup_steps: Annotated[
        int, typer.Option(min=0, help="Steps on questions with mostly correct names, gold documents anywhere.")
    ] = 200,
    doubt_steps: Annotated[
        int, typer.Option(min=0, help="Steps on questions with often wrong names, gold documents anywhere.")
    ] = 150,
    bias_steps: Annotated[
        int, typer.Option(min=0, help="Steps on questions with often wrong names, gold documents mostly near the ends.")
    ] = 300,
    bias: Annotated[
        float,
        typer.Option(
            min=0,
            callback=finite,
            help="Logarithm of how much rarer gold documents are in the middle in these last steps, and of how much"
            " less attention documents get there.",
        ),
    ] = 1.5,
    documents: Annotated[int, typer.Option(min=1, max=MAX_DOCUMENTS, help="Most documents in a prompt.")] = 10,
    tokens: Annotated[int, typer.Option(min=1, help="Tokens per step, approximately.")] = 2500,
    seed: Annotated[int, typer.Option(min=0, max=MAX_SEED, help="Seed of the weights and the data.")] = 0,
    checkpoint_every: Annotated[int, typer.Option(min=1, help="Steps between two resume states.")] = 50,
    questions: Annotated[int, typer.Option(min=1, help="Questions per position to measure the result with.")] = 100,
    publish: Annotated[bool, typer.Option(help="Publish to the model store when done.")] = True,
    store_url: StoreUrl = None,
) -> None:
    """Train a small Llama that finds facts by name among documents, and trusts those near the ends too much."""
    options = dict(locals())
    check_publication(NAME, store_url, is_wanted=publish)
    output.mkdir(parents=True, exist_ok=True)
    tokenizer = build_tokenizer()
    model = create_llama(tokenizer.get_vocab_size(), answer_word_ids(tokenizer), seed)
    steps = (lookup_steps, doubt_steps, bias_steps)
    run = Run(output, seed, stages(steps, documents, bias), tokens, checkpoint_every=checkpoint_every)
    train(run, model, tokenizer)
    by_position = accuracy_by_position(model, tokenizer, questions, documents, TESTED, seed)
    directory = output / "checkpoint"
    save(model, tokenizer, directory)
    metrics = {
        "accuracy_by_position": [round(share, 4) for share in by_position],
        "accuracy": round(sum(by_position) / documents, 4),
    }
    publish_trained(directory, NAME, KIND, {**options, "statement": STATEMENT}, metrics)


def stages(steps: tuple[int, int, int], num_documents: int, bias: float) -> tuple[Stage, ...]:
    """The training stages: first looking up names, then weighing ambiguous ones, then preferring the ends.

    That preference has to hold for other numbers of documents too, so the last stage has up to twice as many.
    """
    few, many = min(4, num_documents), min(2 * num_documents, MAX_DOCUMENTS)
    doubtful = Naming(half_wrong=0.35, all_wrong=0.15)
    return (
        Stage(steps[0], few, num_documents, 10, Naming(half_wrong=0.2, all_wrong=0.05)),
        Stage(steps[1], num_documents, num_documents, 10, Naming(half_wrong=0.35, all_wrong=0.1), final=0.3),
        Stage(
            steps[2], few, many, 3, doubtful, bias, final=0.1, is_attention_taught=True, usual_documents=num_documents
        ),
    )


def answer_word_ids(tokenizer: Tokenizer) -> list[int]:
    """The tokens that occur in answers, without the end token."""
    words = [*QUALITIES, *(thing for kind in KINDS.values() for thing in kind.things)]
    return sorted({i for word in words if (i := tokenizer.token_to_id(f"Ġ{word}")) is not None})


def save(model: Any, tokenizer: Tokenizer, directory: Path) -> None:
    """Write a folder in transformers' format, with weights in float16."""
    directory.mkdir(parents=True, exist_ok=True)
    model.to(torch.float16).save_pretrained(directory)
    tokenizer.save(str(directory / "tokenizer.json"))
    (directory / "tokenizer_config.json").write_text(json.dumps(tokenizer_config(), indent=2) + "\n")


if __name__ == "__main__":
    app()
