"""`fovea curate audit`: how much of a benchmark can be solved without its images, and what gives it away."""

import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from services.core.durable_files import write_durably
from services.core.logs import log_warnings_to_stderr
from services.core.refusals import Refused
from services.curate.evaluation.attacks import (
    MARKS,
    SHORTER,
    WORDS,
    Attack,
    Giveaway,
    attack,
    giveaways,
    learned_scores,
    length_scores,
    margin,
    marks_of,
)
from services.curate.evaluation.choices import Choice, Fields, read_choices
from services.curate.model.blind_model import BlindModel
from services.curate.refinement.loading import DEFAULT_CACHE, CacheFolder, Models, load_models
from services.jobs.checkpoints import Device
from services.jobs.options import StoreUrl, command_line, output_folder
from services.jobs.progress import standard_bars
from services.jobs.published_data import MissingData
from services.jobs.sugarcrepe import BadPairs
from services.jobs.tables import Table

app = command_line()


@app.callback()
def choose() -> None:
    """Audit a benchmark."""


@app.command()
def audit(
    benchmark: Annotated[
        Path,
        typer.Argument(
            exists=True,
            help="JSON lines of pairs; SugarCrepe's or VALSE's folder or one of its files; ARO's .tsv; or any JSON "
            "lines with --caption-field and --negative-field.",
        ),
    ],
    caption_field: Annotated[str | None, typer.Option(help="Field of the true caption of a JSON line.")] = None,
    negative_field: Annotated[
        str | None, typer.Option(help="Field of its false caption, or of a list of several.")
    ] = None,
    task_field: Annotated[str | None, typer.Option(help="Field of the task, for a row of its own.")] = None,
    model: Models = None,
    words: Annotated[int, typer.Option(min=0, help="Most words to tell of each task.")] = 5,
    items: Annotated[int, typer.Option(min=0, help="Most items to tell of each task and model.")] = 2,
    output: Annotated[
        Path | None, typer.Option(callback=output_folder, help="Folder for audit.json and audit.md.")
    ] = None,
    cache: CacheFolder = DEFAULT_CACHE,
    device: Device = "auto",
    store_url: StoreUrl = None,
) -> None:
    """Tell how often models of texts alone choose the true caption, with 95 % intervals, and what gives it away."""
    log_warnings_to_stderr()
    try:
        choices = read_choices(benchmark, _fields(caption_field, negative_field, task_field))
        attacks = [
            *attack(SHORTER, choices, length_scores(choices)),
            *attack(WORDS, choices, learned_scores(choices)),
            *attack(MARKS, choices, learned_scores(choices, marks_of)),
        ]
        spotted: list[dict[str, Any]] = []
        for blind in load_models(model, device=device, cache=cache, store_url=store_url):
            scores = _scores(choices, blind)
            attacks += attack(blind.name, choices, scores)
            spotted += _spotted(blind.name, choices, scores, items)
    except (BadPairs, MissingData, Refused) as error:
        raise typer.BadParameter(str(error)) from error
    found = giveaways(choices, num_words=words)
    tables = [attack_table(benchmark.name, attacks), word_table(found), item_table(spotted)]
    console = Console(width=140, highlight=False)
    for table in tables:
        if table.rows:
            console.print(table.to_rich())
    if output is not None:
        told = {
            "benchmark": benchmark.name,
            "attacks": [
                {**asdict(one), "accuracy": one.accuracy, "interval": one.interval, "verdict": one.verdict}
                for one in attacks
            ],
            "words": [{**asdict(one), "deviations": round(one.deviations, 2)} for one in found],
            "items": spotted,
        }
        write_durably(output / "audit.json", [json.dumps(told, indent=2, ensure_ascii=False).encode() + b"\n"])
        markdown = "\n".join(table.to_markdown() for table in tables if table.rows)
        write_durably(output / "audit.md", [markdown.rstrip().encode() + b"\n"])


def attack_table(name: str, attacks: Sequence[Attack]) -> Table:
    """Tell each attack's accuracy and interval in percent, and whether it is better than chance."""
    rows = [
        (
            *(one.task, one.attacker, f"{one.total:,}", f"{100 * one.chance:.1f}", f"{100 * one.accuracy:.1f}"),
            *(
                f"{100 * one.interval[0]:.1f}–{100 * one.interval[1]:.1f}",
                f"{one.num_ties:,}",
                f"{100 * one.with_guesses:.1f}",
                one.verdict,
            ),
        )
        for one in sorted(attacks, key=_task_order(attacks))
    ]
    header = ("Task", "Chosen by", "Items", "Chance %", "Right %", "95 %", "Ties", "Ties guessed %", "Verdict")
    return Table.of_texts(f"{name}: accuracy without images", header, rows, num_names=2)


def word_table(found: Sequence[Giveaway]) -> Table:
    """Tell the words that give a task away."""
    rows = [
        (one.task, one.word, f"{one.num_true:,}", f"{one.num_false:,}", f"{abs(one.deviations):.1f}") for one in found
    ]
    header = ("Task", "Word", "In the true caption only", "In a false one only", "Deviations from equal")
    return Table.of_texts("Words that give captions away", header, rows, num_names=2)


def item_table(spotted: Sequence[dict[str, Any]]) -> Table:
    """Tell the items that a model is surest of."""
    rows = [(one["task"], one["model"], one["caption"], one["negative"], f"{one['gap']:.2f}") for one in spotted]
    return Table.of_texts("Items most easily spotted", ("Task", "Model", "True", "False", "Gap"), rows, num_names=4)


def _fields(caption: str | None, negative: str | None, task: str | None) -> Fields | None:
    if caption is None and negative is None and task is None:
        return None
    if caption is None or negative is None:
        raise Refused("--caption-field and --negative-field belong together")
    return Fields(caption, negative, task)


def _scores(choices: Sequence[Choice], blind: BlindModel) -> list[tuple[float, ...]]:
    texts = [text for one in choices for text in (one.caption, *one.negatives)]
    with standard_bars().bar(f"{blind.name}, captions", total=len(texts)) as bar:
        found = iter(blind.scores(texts, bar.advance).tolist())
    return [tuple(next(found) for _ in range(1 + len(one.negatives))) for one in choices]


def _spotted(
    name: str, choices: Sequence[Choice], scores: Sequence[tuple[float, ...]], num_items: int
) -> list[dict[str, Any]]:
    """List the items of each task with the largest gaps above 0."""
    told: list[dict[str, Any]] = []
    for task in dict.fromkeys(one.task for one in choices):
        gaps = [(margin(scores[place]), place) for place, one in enumerate(choices) if one.task == task]
        for gap, place in sorted((pair for pair in gaps if pair[0] > 0), key=lambda pair: (-pair[0], pair[1]))[
            :num_items
        ]:
            one = choices[place]
            best = one.negatives[max(range(len(one.negatives)), key=lambda number: scores[place][1 + number])]
            told.append(
                {"task": task, "model": name, "id": one.id, "caption": one.caption, "negative": best, "gap": gap}
            )
    return told


def _task_order(attacks: Sequence[Attack]) -> Any:
    order = list(dict.fromkeys(one.task for one in attacks))
    return lambda one: order.index(one.task)


if __name__ == "__main__":
    app()
