"""SPEC: size, position, existence and count, as a choice among captions of an image and among images of a caption.

FSC-CLIP's paper calls its number a group accuracy, but what it reports for CLIP, 31.9, is what SPEC's authors publish
for the same model as the means of the two choices, 33.39 and 30.55: the mean of both.
"""

from pathlib import Path
from typing import Any

from services.jobs.published_data import Source
from services.score.evaluation.aggregates import IMAGE, TEXT
from services.score.evaluation.benchmarks.reading import described, read_json
from services.score.evaluation.records import Record, Task

SPEC = Source("SPEC", "https://huggingface.co/datasets/wjpoom/SPEC")
# The folder of each task.
FOLDERS = {
    "absolute_size": "absolute_size",
    "absolute_position": "absolute_spatial",
    "count": "count",
    "relative_size": "relative_size",
    "relative_position": "relative_spatial",
    "existence": "existence",
}


def load_spec(directory: Path, *, limit: int | None = None) -> list[Task]:
    """Load `image2text.json` and `text2image.json` of six folders, which hold their images. Raises MissingData."""
    tasks = []
    for name, folder in FOLDERS.items():
        texts = _records(directory / folder / "image2text.json", is_choice_of_texts=True)
        images = _records(directory / folder / "text2image.json", is_choice_of_texts=False)
        tasks += [Task(name + TEXT, "spec", texts[:limit], SPEC), Task(name + IMAGE, "spec", images[:limit], SPEC)]
    return tasks


def _records(path: Path, *, is_choice_of_texts: bool) -> tuple[Record, ...]:
    """Read choices; the true one is put first."""
    rows = read_json(path, SPEC)
    with described(path, SPEC.name, "choices"):
        records = []
        for place, row in enumerate(rows):
            options = _true_first(row)
            if is_choice_of_texts:
                records.append(Record(str(place), (path.parent / row["query"],), options))
            else:
                images = tuple(path.parent / name for name in options)
                records.append(Record(str(place), images, (row["query"],)))
        return tuple(records)


def _true_first(row: dict[str, Any]) -> tuple[str, ...]:
    options, label = row["keys"], row["label"]
    if not 0 <= label < len(options):
        raise ValueError(f"label {label} is none of {len(options)} options")
    return (options[label], *options[:label], *options[label + 1 :])
