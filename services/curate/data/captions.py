"""Captions to make false ones of: COCO's annotations, and JSON lines with named fields."""

import unicodedata
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from services.core.text_files import BadFile, Place, id_of, json_objects, text_of

FORMS = "Captions are COCO's captions_*.json, or JSON lines: an object with a caption and an image on each line"


@dataclass(frozen=True)
class Caption:
    """A true caption of an image; `filename` is relative to the folder of images.

    `id` is unique in its file. `second` is another true caption of the image, if there is one.
    """

    id: str
    filename: str
    text: str
    second: str | None = None


@dataclass(frozen=True)
class Fields:
    """Names of the fields of a JSON line: the caption, the image, and optionally an id and a second caption."""

    caption: str = "caption"
    image: str = "filename"
    id: str = "id"
    second: str = "second_caption"


@dataclass(frozen=True)
class CaptionFile:
    """The captions of a file in its order, without those that were left out, and how many these are.

    `num_repeated` have the text of an earlier caption of the same image, in Unicode's composed form. `num_shared` are
    not left out: another image has their text too.
    """

    captions: list[Caption]
    num_empty: int = 0
    num_repeated: int = 0
    num_shared: int = 0

    def told(self) -> list[str]:
        """Tell what is unusual about the captions, as sentences."""
        told = [
            (self.num_empty, "empty", "left out"),
            (self.num_repeated, "repeated for the same image", "left out"),
            (self.num_shared, "equal to one of another image", "used; each has negatives of its own"),
        ]
        return [f"Captions that are {kind}: {number}, {fate}" for number, kind, fate in told if number]


def read_captions(path: Path, fields: Fields | None = None, *, limit: int | None = None) -> CaptionFile:
    """Read captions: a JSON object in COCO's form, or JSON lines with these fields.

    White space is normalised. In COCO's form, an image's next caption is the second one of each. Empty captions, and
    repeated ones of an image, are left out. Raises BadFile.
    """
    try:
        records = list(json_objects(path))
    except BadFile as error:
        raise BadFile(f"{error}. {FORMS}") from None
    is_coco = len(records) == 1 and "annotations" in records[0][1]
    found = _of_coco(path, records[0][1]) if is_coco else _of_lines(records, fields or Fields())
    captions: dict[str, Caption] = {}
    images: defaultdict[str, set[str]] = defaultdict(set)  # by text
    num_empty = num_repeated = 0
    for where, one in found:
        if one.id in captions:
            raise BadFile(f"{where}: id: {one.id!r} was used before")
        composed = unicodedata.normalize("NFC", one.text)
        if not one.text:
            num_empty += 1
        elif one.filename in images[composed]:
            num_repeated += 1
        else:
            images[composed].add(one.filename)
            captions[one.id] = one
        if len(captions) == limit:
            break
    if not captions:
        raise BadFile(f"{path} contains no captions")
    num_shared = sum(len(of_text) - 1 for of_text in images.values() if of_text)
    return CaptionFile(list(captions.values()), num_empty, num_repeated, num_shared)


def _of_coco(path: Path, content: dict[str, Any]) -> Iterator[tuple[Place | str, Caption]]:
    files = {
        id_of(image, "id", place): text_of(image, "file_name", place) for place, image in _rows(path, content, "images")
    }
    captions: dict[str, list[tuple[str, str]]] = defaultdict(list)
    for place, annotation in _rows(path, content, "annotations"):
        image, text = id_of(annotation, "image_id", place), text_of(annotation, "caption", place)
        if image not in files:
            raise BadFile(f"{place}: image_id: there is no image {image}")
        captions[image].append((id_of(annotation, "id", place), " ".join(text.split())))
    for image, some in captions.items():
        for number, (name, text) in enumerate(some):
            others = (other for _, other in some[number + 1 :] + some[:number])
            second = next((other for other in others if other and other.lower() != text.lower()), None)
            yield f"{path}: annotations", Caption(name, files[image], text, second)


def _rows(path: Path, content: dict[str, Any], name: str) -> Iterator[tuple[str, dict[str, Any]]]:
    rows = content.get(name)
    if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
        raise BadFile(f"{path}: {name}: not in COCO's form, a list of objects")
    return ((f"{path}: {name}.{number}", row) for number, row in enumerate(rows))


def _of_lines(records: Sequence[tuple[Place, dict[str, Any]]], fields: Fields) -> Iterator[tuple[Place | str, Caption]]:
    for place, record in records:
        has_second = record.get(fields.second) is not None
        filename = _text(record, fields.image, "image", place)
        if not filename:
            raise BadFile(f"{place}: {fields.image} is empty")
        yield (
            place,
            Caption(
                id=id_of(record, fields.id, place) if fields.id in record else str(place.number),
                filename=filename,
                text=_text(record, fields.caption, "caption", place),
                second=(_text(record, fields.second, "second", place) or None) if has_second else None,
            ),
        )


def _text(record: dict[str, Any], name: str, role: str, place: Place) -> str:
    if name not in record:
        raise BadFile(
            f"{place}: {name} is missing; there is {', '.join(record) or 'nothing'}. Name another with"
            f" --field {role}=NAME (in a recipe {role}_field)"
        )
    return " ".join(text_of(record, name, place).split())
