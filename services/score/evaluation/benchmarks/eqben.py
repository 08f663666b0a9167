"""EqBen: two frames or renderings with a small difference, and a caption of each."""

from collections import defaultdict
from pathlib import Path

from services.jobs.published_data import Source
from services.score.evaluation.aggregates import EQBEN_KUBRIC, EQBEN_OTHERS
from services.score.evaluation.benchmarks.reading import described, read_json
from services.score.evaluation.records import Record, Task

EQBEN = Source("EqBen", "https://github.com/Wangt-CN/EqBen")
TASKS = (*EQBEN_OTHERS, *EQBEN_KUBRIC)
# FSC-CLIP's authors evaluate at most this many samples of each task; which, they do not say.
MAX_SAMPLES = 20_000


def load_eqben(path: Path, images: Path, *, limit: int | None = MAX_SAMPLES) -> list[Task]:
    """Load `ann_json_finegrained_random.json`, the annotation of all pairs of one image and one caption.

    An image is looked for as JPEG, too, the format of the light version. `limit` takes the samples with the smallest
    numbers. Raises MissingData.
    """
    pairs = read_json(path, EQBEN)
    with described(path, EQBEN.name, "samples"):
        samples: dict[str, dict[int, dict[str, str]]] = {name: defaultdict(dict) for name in TASKS}
        for pair in pairs:
            told = pair["private_info"]
            caption, image = told["name"][:2], told["name"][2:]  # c0i1: the first caption, the second image
            samples[told["dataset"]][int(told["sample_cnt"])] |= {caption: pair["caption"], image: pair["image"]}
        return [
            Task(
                name,
                "eqben",
                tuple(
                    Record(
                        str(number),
                        (_image(images, sample["i0"]), _image(images, sample["i1"])),
                        (sample["c0"], sample["c1"]),
                    )
                    for number, sample in sorted(some.items())[:limit]
                ),
                EQBEN,
            )
            for name, some in samples.items()
            if some
        ]


def _image(folder: Path, name: str) -> Path:
    path = folder / name
    light = path.with_suffix(".jpg")
    return light if path.suffix == ".png" and light.exists() and not path.exists() else path
