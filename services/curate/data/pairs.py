"""Files of pairs of captions: JSON lines, and SugarCrepe's published form."""

import json
from collections.abc import Iterable, Sequence
from pathlib import Path

from services.core.durable_files import write_durably
from services.jobs.sugarcrepe import KINDS, Pair


def write_pairs(path: Path, pairs: Iterable[Pair]) -> None:
    """Write pairs so that a reader sees the whole file or the one before."""
    lines = (pair.model_dump_json(exclude_none=True) for pair in pairs)
    write_durably(path, (f"{line}\n".encode() for line in lines))


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
