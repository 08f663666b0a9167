"""`fovea curate audit`: how much of a benchmark can be solved without its images, and what gives it away.

Beside the blind models there are three attacks that know no English: the length of a caption, and what the benchmark's
own other choices tell of words, or of capitals and marks. False captions that only reorder the true one's words bound
the accuracy of any judge that does not see their order.
"""

import json
import math
import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any
from zlib import crc32

import numpy as np
import typer
from numpy.typing import NDArray
from rich.console import Console

from services.core.durable_files import write_durably
from services.core.logs import log_warnings_to_stderr
from services.core.refusals import Refused
from services.curate.evaluation.choices import Choice, Fields, read_choices
from services.curate.model.blind_model import BlindModel
from services.curate.refinement.loading import DEFAULT_CACHE, CacheFolder, Models, load_models
from services.curate.refinement.report import histograms
from services.curate.refinement.scores import Attack
from services.jobs.checkpoints import Device
from services.jobs.options import StoreUrl, command_line, output_folder
from services.jobs.progress import standard_bars
from services.jobs.sugarcrepe import FORMS, SwapObj
from services.jobs.tables import Table

WORD = re.compile(r"[^\W_]+(?:['’-][^\W_]+)*")
NUM_FOLDS = 5
# Fewer occurrences than this tell little about a word.
MIN_OCCURRENCES = 8

SHORTER, WORDS, MARKS = "the shorter caption", "words of the other items", "capitals and marks of the other items"

# Properties of a text, of which those that only one of two captions has tell them apart.
Features = Callable[[str], frozenset[str]]


@dataclass(frozen=True)
class Giveaway:
    """A word that stands in true captions only, or in false ones only, more often in one kind than in the other."""

    task: str
    word: str
    num_true: int
    num_false: int

    @property
    def deviations(self) -> float:
        """Distance of the two numbers from equal ones, in standard deviations; above 0 for a word of false captions."""
        return (self.num_false - self.num_true) / math.sqrt(self.num_false + self.num_true)


@dataclass(frozen=True)
class Reordered:
    """Negatives of a task that have the words of the true caption, equally often, and what this leaves to a judge that
    does not see the order of words: the best accuracies with ties wrong, and with guesses at ties."""

    task: str
    num_negatives: int
    num_reordered: int
    ceiling: float
    ceiling_with_guesses: float


def words_of(text: str) -> frozenset[str]:
    """Return a caption's distinct words, lower case."""
    return frozenset(_counted(text))


def _counted(text: str) -> Counter[str]:
    return Counter(WORD.findall(text.lower()))


def marks_of(text: str) -> frozenset[str]:
    """Return how a caption is written: its first letter, its end, its spaces and commas."""
    properties = {
        "begins with a capital": text[:1].isupper(),
        "ends with a full stop": text.rstrip().endswith("."),
        "ends with white space": text != text.rstrip(),
        "has two spaces": "  " in text,
        "has a space before a mark": re.search(r"\s[.,!?]", text) is not None,
        "has a comma": "," in text,
    }
    return frozenset(name for name, holds in properties.items() if holds)


def attack(attacker: str, choices: Sequence[Choice], scores: Sequence[tuple[float, ...]]) -> list[Attack]:
    """Judge scores, of the true caption and then the false ones of each choice, by task, and all of them together."""
    by_task: dict[str, list[int]] = {}
    for place, choice in enumerate(choices):
        by_task.setdefault(choice.task, []).append(place)
    if len(by_task) > 1:
        by_task["all"] = list(range(len(choices)))
    attacks = []
    for task, places in by_task.items():
        gaps = [margin(scores[place]) for place in places]
        chance = math.fsum(1 / (1 + len(choices[place].negatives)) for place in places) / len(places)
        counts = (sum(gap > 0 for gap in gaps), sum(gap < 0 for gap in gaps), sum(gap == 0 for gap in gaps))
        attacks.append(Attack(attacker, task, *counts, chance))
    return attacks


def margin(scores: Sequence[float]) -> float:
    """Compute the distance of the true caption's score, the first, from the best of the others."""
    return scores[0] - max(scores[1:])


def length_scores(choices: Sequence[Choice]) -> list[tuple[float, ...]]:
    """Score captions by their length in characters, the shorter the better."""
    return [tuple(-float(len(text)) for text in (one.caption, *one.negatives)) for one in choices]


def learned_scores(choices: Sequence[Choice], features: Features = words_of) -> list[tuple[float, ...]]:
    """Score captions by how much more often their features occur in true captions than in false ones of other choices.

    The score is a naive Bayes classifier's of what one side alone has, Σ log (n_true + 1) / (n_false + 1), counted in
    the other four of five parts. Choices of one true caption are in one part.
    """
    folds = [crc32(one.caption.encode("utf-8", "surrogatepass")) % NUM_FOLDS for one in choices]
    totals = [
        _counts([one for one, own in zip(choices, folds, strict=True) if own != fold], features)
        for fold in range(NUM_FOLDS)
    ]
    scores = []
    for one, fold in zip(choices, folds, strict=True):
        counts = totals[fold]
        scores.append(tuple(_log_odds(features(text), counts) for text in (one.caption, *one.negatives)))
    return scores


def reorderings(choices: Sequence[Choice]) -> list[Reordered]:
    """Count the negatives that reorder their caption's words, by task, by form of several tasks, and of all tasks."""
    tasks = tuple(dict.fromkeys(one.task for one in choices))
    groups = {**{task: (task,) for task in tasks}, **FORMS, "all": tasks}
    found = []
    for name, members in groups.items():
        own = [one for one in choices if one.task in members]
        if not own or (name not in tasks and len({one.task for one in own}) == 1):
            continue
        # a true caption ties with each of its reorderings
        ties = [sum(_counted(text) == _counted(one.caption) for text in one.negatives) for one in own]
        ceilings = (sum(tied == 0 for tied in ties), math.fsum(1 / (1 + tied) for tied in ties))
        num_negatives = sum(len(one.negatives) for one in own)
        found.append(Reordered(name, num_negatives, sum(ties), *(right / len(own) for right in ceilings)))
    return found


def giveaways(choices: Sequence[Choice], *, num_words: int) -> list[Giveaway]:
    """List the words that give away the most of each task, at most `num_words`, the most certain first."""
    found = []
    for task in dict.fromkeys(one.task for one in choices):
        counts = _counts([one for one in choices if one.task == task], words_of)
        words = [
            Giveaway(task, word, num_true, num_false)
            for word, (num_true, num_false) in counts.items()
            if num_true + num_false >= MIN_OCCURRENCES
        ]
        found += sorted(words, key=lambda word: (-abs(word.deviations), word.word))[:num_words]
    return found


def _counts(choices: Sequence[Choice], features: Features) -> Mapping[str, tuple[int, int]]:
    """Count the choices in which a feature is the true caption's alone, and those in which it is a false one's."""
    of_true, of_false = Counter[str](), Counter[str]()
    for one in choices:
        true = features(one.caption)
        for negative in one.negatives:
            false = features(negative)
            of_true.update(true - false)
            of_false.update(false - true)
    return {word: (of_true[word], of_false[word]) for word in of_true | of_false}


def _log_odds(words: frozenset[str], counts: Mapping[str, tuple[int, int]]) -> float:
    pairs = [counts.get(word, (0, 0)) for word in words]
    # a sum in any order of a set rounds differently each time
    return math.fsum(math.log((num_true + 1) / (num_false + 1)) for num_true, num_false in pairs)


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
            help="JSON lines of pairs; SugarCrepe's or VALSE's folder or one of its files; the folder of ARO, CREPE, "
            "VL-CheckList, What's Up or NegBench; ARO's .tsv; or any JSON lines with --caption-field and "
            "--negative-field.",
        ),
    ],
    caption_field: Annotated[str | None, typer.Option(help="Field of the true caption of a JSON line.")] = None,
    negative_field: Annotated[
        str | None, typer.Option(help="Field of its false caption, or of a list of several.")
    ] = None,
    task_field: Annotated[str | None, typer.Option(help="Field of the task, for a row of its own.")] = None,
    swap_obj: SwapObj = None,
    model: Models = None,
    words: Annotated[int, typer.Option(min=0, help="Most words to tell of each task.")] = 5,
    items: Annotated[int, typer.Option(min=0, help="Most items to tell of each task and model.")] = 2,
    output: Annotated[
        Path | None,
        typer.Option(callback=output_folder, help="Folder for audit.json, audit.md and gaps.svg (Figure 4.1)."),
    ] = None,
    cache: CacheFolder = DEFAULT_CACHE,
    device: Device = "auto",
    store_url: StoreUrl = None,
) -> None:
    """Tell how often models of texts alone choose the true caption, with 95 % intervals, and what gives it away."""
    log_warnings_to_stderr()
    try:
        choices = read_choices(benchmark, _fields(caption_field, negative_field, task_field), swap_obj)
        attacks = [
            *attack(SHORTER, choices, length_scores(choices)),
            *attack(WORDS, choices, learned_scores(choices)),
            *attack(MARKS, choices, learned_scores(choices, marks_of)),
        ]
        spotted: list[dict[str, Any]] = []
        gaps: dict[str, dict[str, NDArray[np.float64]]] = {}
        for blind in load_models(model, device=device, cache=cache, store_url=store_url):
            scores = _scores(choices, blind)
            attacks += attack(blind.name, choices, scores)
            spotted += _spotted(blind.name, choices, scores, items)
            gaps[blind.name] = _gaps(choices, blind, scores)
    except Refused as error:
        raise typer.BadParameter(str(error)) from error
    found, reordered = giveaways(choices, num_words=words), reorderings(choices)
    tables = [attack_table(benchmark.name, attacks), order_table(reordered), word_table(found), item_table(spotted)]
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
            "reordered": [asdict(one) for one in reordered],
            "words": [{**asdict(one), "deviations": round(one.deviations, 2)} for one in found],
            "items": spotted,
        }
        write_durably(output / "audit.json", [json.dumps(told, indent=2, ensure_ascii=False).encode() + b"\n"])
        markdown = "\n".join(table.to_markdown() for table in tables if table.rows)
        write_durably(output / "audit.md", [markdown.rstrip().encode() + b"\n"])
        write_durably(output / "gaps.svg", [histograms(gaps).encode()])


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


def order_table(found: Sequence[Reordered]) -> Table:
    """Tell what a judge that sees words without their order can reach at most."""
    rows = [
        (
            *(one.task, f"{one.num_negatives:,}", f"{one.num_reordered:,}"),
            f"{100 * one.num_reordered / one.num_negatives:.1f}",
            *(f"{100 * one.ceiling:.1f}", f"{100 * one.ceiling_with_guesses:.1f}"),
        )
        for one in found
    ]
    header = ("Task", "Negatives", "Reordered", "Reordered %", "Right at most %", "Ties guessed %")
    return Table.of_texts("Negatives with the caption's own words, and a judge that sees no order", header, rows)


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


def _gaps(
    choices: Sequence[Choice], blind: BlindModel, scores: Sequence[tuple[float, ...]]
) -> dict[str, NDArray[np.float64]]:
    """Compute by task the gaps of the true caption from the best of the others."""
    of_task: dict[str, list[tuple[float, float]]] = {}
    for one, own in zip(choices, scores, strict=True):
        of_task.setdefault(one.task, []).append((own[0], max(own[1:])))
    return {task: blind.gaps(*np.asarray(pairs).T) for task, pairs in of_task.items()}


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
