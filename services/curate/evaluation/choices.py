"""Choices between captions from the files of any benchmark, without their images.

Benchmarks that are told by the files of their folder are read as the score service's evaluation reads them.
"""

import ast
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from services.core.refusals import Refused
from services.core.text_files import BadFile, id_of, json_objects, read_json, read_table, text_of
from services.jobs.published_data import described
from services.jobs.sugarcrepe import KINDS, Pair, published_pairs, read_pairs
from services.score.evaluation.benchmarks.published import load_recognized

# Annotators, of three, who must have found VALSE's caption true and its foil false, as in its protocol.
VALSE_MIN_VOTES = 2


@dataclass(frozen=True)
class Choice:
    """A true caption and one or more false ones; `task` is the part of the benchmark that it belongs to."""

    task: str
    id: str
    caption: str
    negatives: tuple[str, ...]


@dataclass(frozen=True)
class Fields:
    """Names of the fields of a JSON line: the true caption, a false one or a list of them, and perhaps the task."""

    caption: str
    negative: str
    task: str | None = None


def read_choices(path: Path, fields: Fields | None = None, swap_obj: Path | None = None) -> list[Choice]:
    """Read a benchmark by the form of its files, or JSON lines with the fields named.

    The forms are SugarCrepe's folder or one of its files, VALSE's folder or one of its files, the folders of ARO,
    CREPE, VL-CheckList, What's Up and NegBench, ARO's `.tsv` of captions for NegCLIP, and our JSON lines of pairs;
    files may be gzipped. `swap_obj` is read in place of the file of SugarCrepe's folder. Raises Refused for any other,
    BadFile for faults within.
    """
    if path.is_dir() and _has_all_types(path):
        return list(map(_of_pair, published_pairs(path, swap_obj=swap_obj)))
    if swap_obj is not None:
        raise Refused(f"--swap-obj belongs to SugarCrepe's folder, which {path} is not")
    if path.is_dir():
        return _read_folder(path)
    suffixes = [suffix for suffix in path.suffixes if suffix != ".gz"]
    if fields is not None:
        return _described(path, lambda: _read_lines(path, fields))
    if suffixes[-1:] == [".tsv"]:
        return _described(path, lambda: _read_aro(path))
    if suffixes[-1:] == [".json"]:
        return _described(path, lambda: _read_records(path))
    try:
        pairs = read_pairs(path)
    except BadFile as error:
        raise BadFile(
            f"{error}. Lines other than pairs need the names of their fields: --caption-field, --negative-field"
        ) from None
    return _described(path, lambda: map(_of_pair, pairs))


def _of_pair(pair: Pair) -> Choice:
    return Choice(pair.kind, pair.id, pair.caption, (pair.negative_caption,))


def _read_folder(folder: Path) -> list[Choice]:
    if (tasks := load_recognized(folder)) is not None:
        return [Choice(task.name, one.id, one.captions[0], one.captions[1:]) for task in tasks for one in task.records]
    paths = sorted([*folder.glob("*.json"), *folder.glob("*.json.gz")])
    if below := [one.name for one in sorted(folder.iterdir()) if _has_all_types(one)]:
        raise Refused(f"{folder} does not hold SugarCrepe's seven files itself: choose of {', '.join(below)} in it")
    if not paths:
        raise Refused(
            f"{folder} holds no .json files of SugarCrepe's or VALSE's form, nor those that tell the folder of ARO, "
            "CREPE, VL-CheckList, What's Up or NegBench: `fovea evaluate compositionality crepe --help` tells them"
        )
    return [choice for path in paths for choice in _described(path, lambda path=path: _read_records(path))]  # type: ignore[misc]


def _has_all_types(folder: Path) -> bool:
    return all((folder / f"{kind}.json").is_file() for kind in KINDS)


def _read_records(path: Path) -> Iterator[Choice]:
    """Read records by id: VALSE's have a foil and votes, SugarCrepe's a negative caption."""
    task = path.name.split(".")[0]
    for name, record in read_json(path).items():
        place = f"{path}: {name}"
        if "foil" not in record:
            yield Choice(task, name, text_of(record, "caption", place), (text_of(record, "negative_caption", place),))
        elif record["mturk"]["caption"] >= VALSE_MIN_VOTES:
            yield Choice(task, name, text_of(record, "caption", place), (text_of(record, "foil", place),))


def _read_aro(path: Path) -> Iterator[Choice]:
    task = path.name.split(".")[0]
    for _, row in read_table(path, "\t", ("", "title", "neg_caption")):
        yield Choice(task, row[""], row["title"], tuple(ast.literal_eval(row["neg_caption"])))


def _read_lines(path: Path, fields: Fields) -> Iterator[Choice]:
    for place, record in json_objects(path):
        negatives = record.get(fields.negative)
        if not isinstance(negatives, list):
            negatives = [text_of(record, fields.negative, place)]
        task = path.name.split(".")[0] if fields.task is None else id_of(record, fields.task, place)
        name = id_of(record, "id", place) if "id" in record else str(place.number)
        yield Choice(task, name, text_of(record, fields.caption, place), tuple(negatives))


def _described(path: Path, read: Callable[[], Iterator[Choice]]) -> list[Choice]:
    """Raises Refused, with the file's name, for a file of another form or without choices."""
    with described(path, "a benchmark", "choices between captions"):
        choices = list(read())
        if not choices:
            raise ValueError("it is empty")
        for one in choices:
            if not one.negatives or not all(isinstance(text, str) for text in one.negatives):
                raise Refused(f"{path}: {one.id} has no false caption")
        return choices
