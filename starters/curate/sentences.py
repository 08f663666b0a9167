"""Sentences for training a blind model, from text files and JSON lines."""

import gzip
import json
from collections.abc import Iterator, Sequence
from pathlib import Path

from services.core.refusals import Refused

# Longer sentences than this are not captions' like.
MAX_CHARACTERS = 200
MIN_WORDS = 3


def read_sentences(paths: Sequence[Path], fields: Sequence[str]) -> list[str]:
    """Read the distinct sentences of files, one a line, or named fields of JSON lines; `.gz` is unpacked.

    Sentences of fewer than 3 words or more than 200 characters are left out. Raises Refused, naming file and line, for
    a line that is not JSON or lacks all of the fields, and where no sentence is left.
    """
    found: dict[str, None] = {}
    for path in paths:
        for text in _texts(path, fields):
            sentence = " ".join(text.split())
            if len(sentence.split()) >= MIN_WORDS and len(sentence) <= MAX_CHARACTERS:
                found[sentence] = None
    if not found:
        raise Refused(f"no sentence of {MIN_WORDS} words or more in {', '.join(map(str, paths))}")
    return list(found)


def _texts(path: Path, fields: Sequence[str]) -> Iterator[str]:
    opened = gzip.open if path.suffix == ".gz" else open
    with opened(path, "rt", encoding="utf-8-sig") as lines:
        for number, line in enumerate(lines, 1):
            if not fields:
                yield line
            elif line.strip():
                yield from _fields(f"{path}:{number}", line, fields)


def _fields(place: str, line: str, fields: Sequence[str]) -> list[str]:
    try:
        record = json.loads(line)
    except ValueError as error:
        raise Refused(f"{place}: not JSON: {error}") from error
    texts = [record[name] for name in fields if isinstance(record, dict) and isinstance(record.get(name), str)]
    if not texts:
        raise Refused(f"{place}: no text in {', '.join(fields)}")
    return texts
