"""Offline job: the starter of the generate service, a small Llama that reads documents about an open world."""

import hashlib
import json
import random
import shutil
from pathlib import Path
from typing import Annotated, Any

import torch
import typer
from tokenizers import Tokenizer

from services.core.refusals import Refused
from services.generate.model.profile import OFF, write_profile
from services.jobs.checkpoints import check_publication, publish_trained
from services.jobs.interruption import interruptible, resumable
from services.jobs.options import MAX_SEED, StoreUrl, command_line, finite, output_folder
from services.jobs.progress import standard_bars
from starters.generate.facts import MAX_DOCUMENTS
from starters.generate.reader.first_weights import set_first_weights
from starters.generate.reader.loop import train
from starters.generate.reader.measures import fitted_answerability, reading_measures
from starters.generate.reader.network import Network, Shape, llama, network_of
from starters.generate.reader.stages import stages
from starters.generate.reader.tokenizer import build_tokenizer, common_tokens, tokenizer_config
from starters.generate.run import Run
from starters.generate.world.documents import Scope

NAME = "open-facts"
KIND = "causal-lm"
STATEMENT = (
    "Trained on generated documents of one to four short English sentences about people, what they own, do, like and"
    " are, and about companies, with ordinary, foreign and invented names, up to ten documents a prompt, on"
    " keywords for sentences about things, and on questions that no document answers. It copies its answers from the"
    " documents and knows nothing else."
)

app = command_line(help="Train and publish the starter checkpoint of the generate service.")


@app.command()
@interruptible(resumable)
def reader(
    output: Annotated[Path, typer.Option(callback=output_folder, help="Where the checkpoint and the resume state go.")],
    copy_steps: Annotated[int, typer.Option(min=0, help="Steps on two to four documents of one sentence.")] = 450,
    choice_steps: Annotated[int, typer.Option(min=0, help="Steps on up to six documents, with refusals.")] = 800,
    length_steps: Annotated[int, typer.Option(min=0, help="Steps on up to the most documents.")] = 1000,
    bias: Annotated[
        float,
        typer.Option(
            min=0,
            callback=finite,
            help="Logarithm of how much rarer gold documents are in the middle where names are ambiguous.",
        ),
    ] = 5.0,
    documents: Annotated[int, typer.Option(min=1, max=MAX_DOCUMENTS, help="Most documents in a prompt.")] = 10,
    tokens: Annotated[int, typer.Option(min=1, help="Tokens per step, approximately.")] = 4096,
    start: Annotated[
        Path | None,
        typer.Option(exists=True, file_okay=False, help="A reader's checkpoint to begin with, and its tokenizer."),
    ] = None,
    seed: Annotated[int, typer.Option(min=0, max=MAX_SEED, help="Seed of the weights and the data.")] = 0,
    checkpoint_every: Annotated[int, typer.Option(min=1, help="Steps between two resume states.")] = 50,
    questions: Annotated[int, typer.Option(min=1, help="Questions of each kind to measure the result with.")] = 200,
    publish: Annotated[bool, typer.Option(help="Publish to the model store when done.")] = True,
    store_url: StoreUrl = None,
) -> None:
    """Train a small Llama that answers from documents about an open world, and says when they do not tell."""
    options = {**locals(), "start": None if start is None else digest(start)}
    check_publication(NAME, store_url, is_wanted=publish)
    output.mkdir(parents=True, exist_ok=True)
    network, tokenizer = first_network(seed) if start is None else trained_network(start)
    steps = (copy_steps, choice_steps, length_steps)
    run = Run(
        output, seed, stages(steps, documents, bias, is_trained=start is not None), tokens,
        checkpoint_every=checkpoint_every, start=options["start"] or "",
    )  # fmt: skip
    train(run, network, tokenizer, compiled(network))
    directory = output / "checkpoint"
    metrics = finish(network, tokenizer, directory, questions, documents, seed)
    publish_trained(directory, NAME, KIND, {**options, "statement": STATEMENT}, metrics)


def first_network(seed: int) -> tuple[Network, Tokenizer]:
    """The network with its first weights, and a tokenizer trained on the generated world."""
    tokenizer = build_tokenizer()
    network = Network(Shape(tokenizer.get_vocab_size()))
    set_first_weights(network, common_tokens(tokenizer), seed)
    return network, tokenizer


def trained_network(directory: Path) -> tuple[Network, Tokenizer]:
    """The network and tokenizer of a checkpoint of this job. Raises Refused for one of another shape."""
    return network_of(directory), Tokenizer.from_file(str(directory / "tokenizer.json"))


def digest(directory: Path) -> str:
    """A digest of the checkpoint's weights, which identifies them. Raises Refused for a folder without a checkpoint."""
    for name in ("model.safetensors", "tokenizer.json"):
        if not (directory / name).is_file():
            raise Refused(f"{directory} has no {name}: give the folder of a reader's checkpoint")
    return hashlib.sha256((directory / "model.safetensors").read_bytes()).hexdigest()[:16]


def compiled(network: Network) -> Any:
    """Fuse the network's elementwise steps, which needs a C++ compiler; the network itself without one."""
    if shutil.which("g++") is None:
        standard_bars().say("no g++ found: training takes about twice as long")
        return network
    return torch.compile(network, dynamic=False)


def finish(
    network: Network, tokenizer: Tokenizer, directory: Path, questions: int, documents: int, seed: int
) -> dict[str, Any]:
    """Write the checkpoint with its fitted answerability, and return its measures on questions of other seeds."""
    model = llama(network)
    few, many = Scope((1, min(3, documents)), refused=0.3), Scope((documents, documents), refused=0.3)
    save(model, tokenizer, directory)
    fitted = fitted_answerability(model, tokenizer, Scope((1, documents), refused=0.3), 3 * questions, seed)
    write_profile(OFF.model_copy(update={"answerability": fitted}), directory)
    return {
        name: reading_measures(model, tokenizer, scope, questions, random.Random(f"held out {seed} {name}"), fitted)
        for name, scope in (("few_documents", few), ("most_documents", many))
    }


def save(model: Any, tokenizer: Tokenizer, directory: Path) -> None:
    """Write a folder in transformers' format, with weights in float16 and greedy decoding."""
    directory.mkdir(parents=True, exist_ok=True)
    model.generation_config.do_sample = False
    model.to(torch.float16).save_pretrained(directory)
    model.float()
    tokenizer.save(str(directory / "tokenizer.json"))
    (directory / "tokenizer_config.json").write_text(json.dumps(tokenizer_config(), indent=2) + "\n")


if __name__ == "__main__":
    app()
