"""SugarCrepe's files: an image and two similar captions, one of them true, in seven types."""

import json
from dataclasses import dataclass
from pathlib import Path

from services.jobs.published_data import MissingData, Source

SOURCE = Source("SugarCrepe", "https://github.com/RAIVNLab/sugar-crepe")
COCO = Source("COCO's validation images of 2017", "https://cocodataset.org")
KINDS = ("replace_obj", "replace_att", "replace_rel", "swap_obj", "swap_att", "add_obj", "add_att")


@dataclass(frozen=True)
class CaptionPair:
    """An image (a file's name) and two captions of it."""

    filename: str
    caption: str
    negative_caption: str


def load_sugarcrepe(
    directory: Path, *, swap_obj: Path | None = None, limit: int | None = None
) -> dict[str, list[CaptionPair]]:
    """Load the pairs of each type: `<type>.json`, records by id. Raises MissingData.

    `swap_obj` is another file for that type: the dissertation's chapter 4 counts one pair more than the authors publish
    now. `limit` takes the first ones of each type.
    """
    files = {kind: SOURCE.existing(directory / f"{kind}.json") for kind in KINDS}
    if swap_obj is not None:
        files["swap_obj"] = SOURCE.existing(swap_obj)
    return {kind: _read(path)[:limit] for kind, path in files.items()}


def _read(path: Path) -> list[CaptionPair]:
    try:
        return [CaptionPair(**record) for record in json.loads(path.read_text(encoding="utf-8")).values()]
    except (AttributeError, TypeError, ValueError) as error:
        raise MissingData(f"{path} does not contain {SOURCE.name}'s choices ({error}): see {SOURCE.address}") from error
