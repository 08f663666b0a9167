"""Captions to make false ones of: COCO's annotations, and JSON lines with named fields."""

import json
import unicodedata
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

FORMS = "Captions are COCO's captions_*.json, or JSON lines: an object with a caption and an image on each line"


class BadCaptions(ValueError):
    """A file that does not hold captions; the message names the file, the line and the field."""


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
    repeated ones of an image, are left out. Raises BadCaptions, and OSError.
    """
    text = path.read_text(encoding="utf-8-sig")
    content = _parsed(text)
    if isinstance(content, list):
        raise BadCaptions(f"{path}: a JSON array. {FORMS} (`jq -c '.[]'` makes lines of an array)")
    is_coco = isinstance(content, dict) and "annotations" in content
    found = _of_coco(path, content) if is_coco else _of_lines(path, text, fields or Fields())
    captions: dict[str, Caption] = {}
    images: defaultdict[str, set[str]] = defaultdict(set)  # by text
    num_empty = num_repeated = 0
    for where, one in found:
        if one.id in captions:
            raise BadCaptions(f"{where}: id: {one.id!r} was used before")
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
        raise BadCaptions(f"{path} contains no captions")
    num_shared = sum(len(of_text) - 1 for of_text in images.values() if of_text)
    return CaptionFile(list(captions.values()), num_empty, num_repeated, num_shared)


def _parsed(text: str) -> Any:
    """Parse a file that is one JSON value; None for anything else, such as lines."""
    try:
        return json.loads(text)
    except ValueError:
        return None


def _of_coco(path: Path, content: dict[str, Any]) -> Iterator[tuple[str, Caption]]:
    where = f"{path}: images"
    try:
        files = {image["id"]: image["file_name"] for image in content["images"]}
        where = f"{path}: annotations"
        captions: dict[Any, list[tuple[str, str]]] = defaultdict(list)
        for annotation in content["annotations"]:
            text = " ".join(annotation["caption"].split())
            captions[annotation["image_id"]].append((str(annotation["id"]), text))
        for image, some in captions.items():
            for place, (name, text) in enumerate(some):
                others = [
                    other for _, other in some[place + 1 :] + some[:place] if other and other.lower() != text.lower()
                ]
                yield where, Caption(name, files[image], text, others[0] if others else None)
    except (AttributeError, KeyError, TypeError) as error:
        told = f"there is no {error}" if isinstance(error, KeyError) else str(error)
        raise BadCaptions(f"{where}: not in COCO's form: {told}") from None


def _of_lines(path: Path, text: str, fields: Fields) -> Iterator[tuple[str, Caption]]:
    for number, line in enumerate(text.split("\n"), 1):
        if not line.strip():
            continue
        where = f"{path}:{number}"
        try:
            record = json.loads(line)
        except ValueError as error:
            raise BadCaptions(f"{where}: not JSON ({error}). {FORMS}") from None
        if not isinstance(record, dict):
            raise BadCaptions(f"{where}: not a JSON object. {FORMS}")
        has_second = record.get(fields.second) is not None
        filename = _text(record, fields.image, "image", where)
        if not filename:
            raise BadCaptions(f"{where}: {fields.image}: a text is required")
        yield (
            where,
            Caption(
                id=str(record.get(fields.id, number)),
                filename=filename,
                text=_text(record, fields.caption, "caption", where),
                second=(_text(record, fields.second, "second", where) or None) if has_second else None,
            ),
        )


def _text(record: dict[str, Any], name: str, role: str, where: str) -> str:
    if name not in record:
        raise BadCaptions(
            f"{where}: {name}: the field is missing; the line has {', '.join(record) or 'no fields'}. Name another with"
            f" --field {role}=NAME (in a recipe {role}_field)"
        )
    if not isinstance(record[name], str):
        raise BadCaptions(f"{where}: {name}: a text is required")
    return " ".join(record[name].split())
