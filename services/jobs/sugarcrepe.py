"""Pairs of captions of an image, one of them true: SugarCrepe's files of seven types, and JSON lines of nine types."""

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

import typer
from pydantic import BaseModel, ConfigDict, Field

from services.core.durable_files import write_durably
from services.core.printable import json_line
from services.core.text_files import BadFile, read_json, read_records, text_of
from services.jobs.published_data import Source

SOURCE = Source("SugarCrepe", "https://github.com/RAIVNLab/sugar-crepe")
COCO = Source("COCO's validation images of 2017", "https://cocodataset.org")
KINDS = ("replace_obj", "replace_att", "replace_rel", "swap_obj", "swap_att", "add_obj", "add_att")

# SugarCrepe's seven types, and two that only rules make: a denial, and the words in another order.
PairKind = Literal[
    "replace_obj", "replace_att", "replace_rel", "swap_obj", "swap_att", "add_obj", "add_att", "negate", "shuffle"
]
# The forms that results are told by, and the types of each.
FORMS: Mapping[str, tuple[PairKind, ...]] = {
    "replace": ("replace_obj", "replace_att", "replace_rel"),
    "swap": ("swap_obj", "swap_att"),
    "add": ("add_obj", "add_att"),
    "negate": ("negate",),
    "shuffle": ("shuffle",),
}


SwapObj = Annotated[
    Path | None,
    typer.Option(help="SugarCrepe: another swap_obj.json, such as the first release with 246 choices."),
]


class Pair(BaseModel):
    """An image's true caption and a false one.

    `id` is unique in a data set. `filename` is the image's, relative to the folder of images. `made_by` tells how the
    false caption was made. `second_caption` is another true caption, for data in SugarCrepe++'s form.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    id: str = Field(min_length=1)
    kind: PairKind
    filename: str = Field(min_length=1)
    caption: str = Field(min_length=1)
    negative_caption: str = Field(min_length=1)
    made_by: str | None = None
    second_caption: str | None = None


def read_pairs(path: Path) -> list[Pair]:
    """Read pairs, one a line as JSON, with distinct ids. Raises BadFile."""
    pairs: dict[str, Pair] = {}
    for place, pair in read_records(path, Pair):
        if pair.id in pairs:
            raise BadFile(f"{place}: id: {pair.id!r} was used before")
        pairs[pair.id] = pair
    return list(pairs.values())


def load_pairs(path: Path, *, swap_obj: Path | None = None) -> list[Pair]:
    """Read pairs from a file of JSON lines, or from a folder in SugarCrepe's form.

    Raises BadFile, also for `swap_obj` beside a file.
    """
    if path.is_dir():
        return published_pairs(path, swap_obj=swap_obj)
    if swap_obj is not None:
        raise BadFile(f"--swap-obj belongs to a folder in SugarCrepe's form, and {path} is a file")
    return read_pairs(path)


def published_pairs(directory: Path, *, swap_obj: Path | None = None) -> list[Pair]:
    """Read SugarCrepe's own files, one for each type. Raises BadFile."""
    loaded = load_sugarcrepe(directory, swap_obj=swap_obj)
    return [pair for kind in KINDS for pair in _named(kind, loaded[kind])]


@dataclass(frozen=True)
class CaptionPair:
    """An image (a file's name) and two captions of it."""

    filename: str
    caption: str
    negative_caption: str


def load_sugarcrepe(
    directory: Path, *, swap_obj: Path | None = None, limit: int | None = None
) -> dict[str, list[CaptionPair]]:
    """Load the pairs of each type: `<type>.json`, records by id. Raises BadFile.

    `swap_obj` is another file for that type: the dissertation's chapter 4 counts one pair more than the authors publish
    now. `limit` takes the first ones of each type.
    """
    files = {kind: SOURCE.existing(directory / f"{kind}.json") for kind in KINDS}
    if swap_obj is not None:
        files["swap_obj"] = SOURCE.existing(swap_obj)
    return {kind: _read(path)[:limit] for kind, path in files.items()}


def _read(path: Path) -> list[CaptionPair]:
    content = read_json(path)
    if not isinstance(content, dict) or not all(isinstance(record, dict) for record in content.values()):
        raise BadFile(f"{path} does not contain {SOURCE.name}'s choices, objects by id: see {SOURCE.address}")
    names = ("filename", "caption", "negative_caption")
    return [
        CaptionPair(*(text_of(record, name, f"{path}: {key}", is_blank_refused=True) for name in names))
        for key, record in content.items()
    ]


def _named(kind: str, pairs: Sequence[CaptionPair]) -> Iterator[Pair]:
    for place, pair in enumerate(pairs):
        yield Pair(
            id=f"{kind}-{place}",
            kind=kind,
            filename=pair.filename,
            caption=pair.caption,
            negative_caption=pair.negative_caption,
        )


def write_pairs(path: Path, pairs: Iterable[Pair]) -> None:
    """Write pairs so that a reader sees the whole file or the one before."""
    write_durably(path, (json_line(pair.model_dump_json(exclude_none=True)) for pair in pairs))


def write_published(directory: Path, pairs: Sequence[Pair]) -> None:
    """Write pairs in SugarCrepe's form: `<type>.json`, records by their place as a string.

    Every one of the seven types has a file, also without records, because readers expect all of them.
    """
    directory.mkdir(parents=True, exist_ok=True)
    for kind in dict.fromkeys([*KINDS, *(pair.kind for pair in pairs)]):
        chosen = [pair for pair in pairs if pair.kind == kind]
        records = {
            str(place): {"filename": one.filename, "caption": one.caption, "negative_caption": one.negative_caption}
            for place, one in enumerate(chosen)
        }
        write_durably(directory / f"{kind}.json", [json.dumps(records, indent=4, ensure_ascii=False).encode()])
