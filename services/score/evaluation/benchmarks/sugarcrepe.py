"""SugarCrepe and SugarCrepe++: one or two true captions of an image of COCO's, and a similar false one."""

import json
from pathlib import Path

from services.jobs.published_data import MissingData, Source
from services.jobs.sugarcrepe import COCO, KINDS, load_sugarcrepe
from services.score.evaluation.benchmarks.reading import described, nonblank
from services.score.evaluation.records import Record, Task

SUGARCREPE_PP = Source("SugarCrepe++", "https://github.com/Sri-Harsha/scpp")


def load_sugarcrepe_tasks(
    directory: Path, images: Path, *, swap_obj: Path | None = None, limit: int | None = None
) -> list[Task]:
    """Load SugarCrepe's seven types, with the images of COCO's `val2017` folder. Raises MissingData.

    `swap_obj` replaces that type's file: the first published one contains one more choice. A file without choices is
    left out, unless all are.
    """
    tasks = []
    for kind, choices in load_sugarcrepe(directory, swap_obj=swap_obj, limit=limit).items():
        path = swap_obj if kind == "swap_obj" and swap_obj is not None else directory / f"{kind}.json"
        ids = list(json.loads(path.read_text(encoding="utf-8")))
        if not choices:
            continue
        records = (
            Record(name, (images / choice.filename,), (choice.caption, choice.negative_caption))
            for name, choice in zip(ids[:limit], choices, strict=True)
        )
        with described(path, "SugarCrepe", "choices"):
            tasks.append(Task(kind, "sugarcrepe", tuple(records), COCO))
    if not tasks:
        raise MissingData(f"{directory} contains none of SugarCrepe's choices: all of its files are empty")
    return tasks


def load_sugarcrepe_pp_tasks(directory: Path, images: Path, *, limit: int | None = None) -> list[Task]:
    """Load SugarCrepe++'s types that the folder has, with the images of COCO's `val2017` folder. Raises MissingData.

    Each record has two true captions in different words and a false one.
    """
    tasks = []
    for kind in KINDS:
        path = directory / f"{kind}.json"
        if not path.exists():
            continue
        with described(path, SUGARCREPE_PP.name, "captions"):
            records = tuple(
                Record(
                    str(row.get("id", place)),
                    (images / row["filename"],),
                    tuple(map(nonblank, (row["caption"], row["caption2"], row["negative_caption"]))),
                )
                for place, row in enumerate(json.loads(path.read_text(encoding="utf-8")))
            )
            tasks.append(Task(kind, "sugarcrepe_pp", records[:limit], COCO, num_true=2))
    if not tasks:
        SUGARCREPE_PP.existing(directory / f"{KINDS[0]}.json")
    return tasks
