"""Records of What's Up: where one thing is in relation to another, in photographs taken for it and in others.

The tasks have 412, 408, 2,247, 440, 1,160 and 291 records.
"""

from pathlib import Path
from typing import Any

from services.jobs.published_data import Source
from services.score.evaluation.benchmarks.reading import described, read_json
from services.score.evaluation.records import Record, Task

WHATSUP = Source("What's Up", "https://github.com/amitakamath/whatsup_vlms")
CONTROLLED = {"WhatsUp_A": "controlled_images_dataset.json", "WhatsUp_B": "controlled_clevr_dataset.json"}
# The file of each task and the form of its images' names.
QUESTIONS = {
    "COCO_QA_ONE": ("coco_qa_one_obj.json", "val2017/{:0>12}.jpg"),
    "COCO_QA_TWO": ("coco_qa_two_obj.json", "val2017/{:0>12}.jpg"),
    "VG_QA_ONE": ("vg_qa_one_obj.json", "vg_images/{}.jpg"),
    "VG_QA_TWO": ("vg_qa_two_obj.json", "vg_images/{}.jpg"),
}


def load_whatsup(directory: Path, *, limit: int | None = None) -> list[Task]:
    """Load the six files of the authors' folder `data`, with its folders of images. Raises MissingData."""
    tasks = []
    for name, file in CONTROLLED.items():
        rows = read_json(directory / file, WHATSUP)
        with described(directory / file, WHATSUP.name, "captions"):
            records = tuple(_controlled(directory, place, row) for place, row in enumerate(rows))
            tasks.append(Task(name, "whatsup", records[:limit], WHATSUP))
    for name, (file, image) in QUESTIONS.items():
        rows = read_json(directory / file, WHATSUP)
        with described(directory / file, WHATSUP.name, "captions"):
            records = tuple(
                Record(str(place), (directory / image.format(number),), (true, false))
                for place, (number, true, false) in enumerate(rows)
            )
            tasks.append(Task(name, "whatsup", records[:limit], WHATSUP))
    return tasks


def _controlled(directory: Path, place: int, row: dict[str, Any]) -> Record:
    # names in the file begin with the folder itself: data/controlled_images/…
    image = directory.joinpath(*Path(row["image_path"]).parts[-2:])
    return Record(str(place), (image,), tuple(row["caption_options"]))
