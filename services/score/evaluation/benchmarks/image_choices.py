"""Benchmarks that choose among images: Winoground, ColorSwap, Cola, ImageCoDe, EqBen, SVO-Probes and SPEC."""

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

from services.core.text_files import Place, json_objects, read_json, read_table
from services.jobs.published_data import Source, described
from services.score.evaluation.aggregates import EQBEN_KUBRIC, EQBEN_OTHERS, IMAGE, TEXT
from services.score.evaluation.aggregates import SVO_PROBES as SVO_TYPES
from services.score.evaluation.benchmarks.reading import listed, records_of, true_first, with_images
from services.score.evaluation.records import Record, Task

# Winoground, ColorSwap and Cola's multiple objects: two images and two captions, with the same words or attributes.

WINOGROUND = Source("Winoground", "https://huggingface.co/datasets/facebook/winoground")
COLORSWAP = Source("ColorSwap", "https://github.com/Top34051/colorswap")
COLA = Source("Cola", "https://github.com/arijitray1993/COLA")


def load_winoground(directory: Path, images: Path, *, limit: int | None = None) -> list[Task]:
    """Load Winoground's `examples.jsonl`, with images named `….png`. Raises BadFile."""

    def record(_: str, row: dict[str, Any]) -> Record:
        files = (images / f"{row['image_0']}.png", images / f"{row['image_1']}.png")
        return Record(str(row["id"]), files, (row["caption_0"], row["caption_1"]))

    path = WINOGROUND.existing(directory / "examples.jsonl")
    return _two_by_two("winoground", path, json_objects(path), WINOGROUND, record, limit)


def load_colorswap(path: Path, images: Path, *, limit: int | None = None) -> list[Task]:
    """Load ColorSwap's `test.json`, of a file or a folder; `images` holds the archive's `images/`. Raises BadFile."""

    def record(_: str, row: dict[str, Any]) -> Record:
        files = (images / row["image_1"], images / row["image_2"])
        return Record(str(row["id"]), files, (row["caption_1"], row["caption_2"]))

    path = COLORSWAP.existing(path / "test.json" if path.is_dir() else path)
    return _two_by_two("colorswap", path, json_objects(path), COLORSWAP, record, limit)


def load_cola(path: Path, images: Path, *, limit: int | None = None) -> list[Task]:
    """Load Cola's `COLA_multiobjects_matching_benchmark.json`, of a file or its folder. Raises BadFile.

    The file has addresses of images, whose last part is the name of a file in `images`.
    """

    def record(name: str, row: tuple[str, str, str, str]) -> Record:
        first, caption, second, other = row
        files = tuple(images / address.rpartition("/")[2] for address in (first, second))
        return Record(name, files, (caption, other))

    path = path / "COLA_multiobjects_matching_benchmark.json" if path.is_dir() else path
    return _two_by_two("cola", path, listed(path, COLA, "examples"), COLA, record, limit)


def _two_by_two(
    name: str,
    path: Path,
    rows: Iterable[tuple[Place, Any]],
    source: Source,
    make: Callable[[str, Any], Record],
    limit: int | None,
) -> list[Task]:
    records = records_of(rows, source, "examples", make)
    with described(path, source.name, "examples"):
        return [Task(name, name, tuple(records[:limit]), source)]


# ImageCoDe: a description and ten similar images, of which it describes one.

IMAGECODE = Source("ImageCoDe", "https://github.com/McGill-NLP/imagecode")


def load_imagecode(path: Path, images: Path, *, limit: int | None = None) -> list[Task]:
    """Load ImageCoDe's `valid_data.json`: a description and the ten images of a set, in its folder, by number.

    Sets consist of video frames or static images. Raises BadFile.
    """
    with described(IMAGECODE.existing(path), IMAGECODE.name, "descriptions"):
        by_task: dict[str, list[Record]] = {"videos": [], "static": []}
        for name, descriptions in read_json(path).items():
            files = _frames(IMAGECODE.existing(images / name))
            for number, text in descriptions.items():
                true = files[int(number)]
                record = Record(f"{name}/{number}", (true, *(file for file in files if file != true)), (text,))
                by_task["static" if "open-images" in name else "videos"].append(record)
        return [Task(name, "imagecode", tuple(some[:limit]), IMAGECODE) for name, some in by_task.items() if some]


def _frames(folder: Path) -> list[Path]:
    """The images `img<number>.jpg` of a folder, by number."""
    return sorted(folder.glob("img*.jpg"), key=lambda path: int(path.stem.removeprefix("img")))


# EqBen: two frames or renderings with a small difference, and a caption of each.

EQBEN = Source("EqBen", "https://github.com/Wangt-CN/EqBen")
EQBEN_TASKS = (*EQBEN_OTHERS, *EQBEN_KUBRIC)
# FSC-CLIP's authors evaluate at most this many samples of each task; which, they do not say.
MAX_SAMPLES = 20_000


def load_eqben(path: Path, images: Path, *, limit: int | None = MAX_SAMPLES) -> list[Task]:
    """Load `ann_json_finegrained_random.json`, the annotation of all pairs of one image and one caption.

    An image is looked for as JPEG, too, the format of the light version. `limit` takes the samples with the smallest
    numbers. Raises BadFile.
    """
    pairs = read_json(EQBEN.existing(path))
    with described(path, EQBEN.name, "samples"):
        samples: dict[str, dict[int, dict[str, str]]] = {name: defaultdict(dict) for name in EQBEN_TASKS}
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
                        (_eqben_image(images, sample["i0"]), _eqben_image(images, sample["i1"])),
                        (sample["c0"], sample["c1"]),
                    )
                    for number, sample in sorted(some.items())[:limit]
                ),
                EQBEN,
            )
            for name, some in samples.items()
            if some
        ]


def _eqben_image(folder: Path, name: str) -> Path:
    path = folder / name
    light = path.with_suffix(".jpg")
    return light if path.suffix == ".png" and light.exists() and not path.exists() else path


# SVO-Probes: a sentence, an image of it, and one of another subject, verb or object.
# Only addresses of the images are published, of which many are gone: FSC-CLIP's authors could load 22,162 of 36.8
# thousand (3,728 subjects, 13,523 verbs, 4,911 objects). Sentences without their two images are left out and counted.

SVO_PROBES = Source("SVO-Probes", "https://github.com/deepmind/svo_probes")


def load_svo_probes(path: Path, images: Path, *, limit: int | None = None) -> list[Task]:
    """Load `svo_probes.csv`, with images named by their numbers, `<number>.jpg`. Raises BadFile."""
    rows = [row for _, row in read_table(SVO_PROBES.existing(path))]
    with described(path, SVO_PROBES.name, "sentences"):
        tasks = []
        for kind in SVO_TYPES:
            records, left_out = with_images(_svo_records(rows, kind, images), limit)
            tasks.append(Task(kind, "svo_probes", records, SVO_PROBES, left_out=left_out))
        return tasks


def _svo_records(rows: list[dict[str, str]], kind: str, images: Path) -> Iterator[Record]:
    for place, row in enumerate(rows):
        if row[kind].strip().lower() == "true":
            files = tuple(images / f"{row[name].strip()}.jpg" for name in ("pos_image_id", "neg_image_id"))
            yield Record(str(place), files, (row["sentence"].strip(),))


# SPEC: size, position, existence and count, as a choice among captions of an image and among images of a caption.
# FSC-CLIP's paper calls its number a group accuracy, but what it reports for CLIP, 31.9, is what SPEC's authors publish
# for the same model as the means of the two choices, 33.39 and 30.55: the mean of both.

SPEC = Source("SPEC", "https://huggingface.co/datasets/wjpoom/SPEC")
# The folder of each task.
SPEC_FOLDERS = {
    "absolute_size": "absolute_size",
    "absolute_position": "absolute_spatial",
    "count": "count",
    "relative_size": "relative_size",
    "relative_position": "relative_spatial",
    "existence": "existence",
}


def load_spec(directory: Path, *, limit: int | None = None) -> list[Task]:
    """Load `image2text.json` and `text2image.json` of six folders, which hold their images. Raises BadFile."""
    tasks = []
    for name, folder in SPEC_FOLDERS.items():
        texts = _spec_records(directory / folder / "image2text.json", is_choice_of_texts=True)
        images = _spec_records(directory / folder / "text2image.json", is_choice_of_texts=False)
        tasks += [Task(name + TEXT, "spec", texts[:limit], SPEC), Task(name + IMAGE, "spec", images[:limit], SPEC)]
    return tasks


def _spec_records(path: Path, *, is_choice_of_texts: bool) -> tuple[Record, ...]:
    """Read choices; the true one is put first."""

    def record(name: str, row: dict[str, Any]) -> Record:
        options = true_first(row["keys"], row["label"])
        if is_choice_of_texts:
            return Record(name, (path.parent / row["query"],), options)
        return Record(name, tuple(path.parent / option for option in options), (row["query"],))

    return tuple(records_of(listed(path, SPEC, "choices"), SPEC, "choices", record))
