"""Half-truths: a short true description of an image against the same with a detail that is wrong (CS-CLIP).

They are made from the units that CS-CLIP's authors extract from captions of COCO, as they do: a thing alone against
that thing "and" a wrong one; the subject of a relation alone against a relation in which it is wrong. An image has at
most one record of each kind of wrong detail.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from services.jobs.published_data import Source
from services.score.evaluation.aggregates import HALF_TRUTHS
from services.score.evaluation.benchmarks.reading import described, read_json
from services.score.evaluation.records import Record, Task

UNITS = Source("CS-CLIP's units of captions", "https://github.com/kargibora/CS-CLIP")


def load_half_truths(path: Path, images: Path, *, limit: int | None = None) -> list[Task]:
    """Load a file or folder of units, with images such as `val2014/….jpg` in `images`. Raises MissingData."""
    files = sorted(UNITS.existing(path).glob("*.json")) if path.is_dir() else [path]
    records: dict[str, dict[str, Record]] = {task: {} for tasks in HALF_TRUTHS.values() for task in tasks}
    for file in files:
        samples = read_json(file, UNITS)
        with described(file, UNITS.name, "units"):
            for sample in samples:
                image = images.joinpath(*Path(sample["image_path"]).parts[-2:])
                for task, short, long in (*_of_things(sample), *_of_relations(sample)):
                    if task in records:
                        records[task].setdefault(str(image), Record(str(image), (image,), (short, long)))
    with described(path, UNITS.name, "units with a wrong detail"):
        kept = {task: tuple(some.values())[:limit] for task, some in records.items() if some}
        if not kept:
            raise ValueError("it has none")
        return [Task(task, "half_truths", some, UNITS) for task, some in kept.items()]


def _of_things(sample: dict[str, Any]) -> Iterator[tuple[str, str, str]]:
    """Yield task, true and half-true description: one thing, with another one that is wrong."""
    things = [_written(thing) for thing in sample["entities"]]
    for thing, negatives in sample["negative_entities"].items():
        other = next((one for one in things if one and one != _written(thing)), None)
        for negative in negatives:
            wrong = _written(negative["negative"])
            if other and wrong:
                yield f"entity_{negative['change_type']}", other, f"{other} and {wrong}"


def _of_relations(sample: dict[str, Any]) -> Iterator[tuple[str, str, str]]:
    for relation in sample["relations"]:
        subject = _written(relation["subject"])
        for negative in relation.get("negatives", ()):
            wrong = [_written(negative.get(part)) for part in ("subject", "relation_type", "object")]
            if subject and all(wrong):
                yield f"relation_{negative['change_type']}", subject, " ".join(wrong)


def _written(text: str | None) -> str:
    return " ".join((text or "").lower().split())
