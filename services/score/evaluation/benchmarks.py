"""Published benchmarks, file → tasks. A new benchmark needs one more small function.

Images keep the layout of their owners' archives; a record only names their files.
"""

import ast
import csv
import gzip
import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from services.jobs.published_data import MissingData, Source
from services.jobs.sugarcrepe import COCO, KINDS, BadPairs, load_pairs, load_sugarcrepe
from services.score.evaluation.aggregates import SPELLINGS
from services.score.evaluation.records import Record, Task

Name = Annotated[str, Field(min_length=1)]


class Line(BaseModel):
    """A record as a line of a file; its images are files below one folder."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    id: Name
    images: list[Name]
    captions: list[str]
    task: Name | None = None
    category: Name | None = None


def load_records(path: Path, images: Path, *, benchmark: str | None = None, limit: int | None = None) -> list[Task]:
    """Load the tasks of a file, in the order of their first lines; `benchmark` is by default the file's name.

    `limit` takes the first records of each task. Names in SPELLINGS are replaced. Raises MissingData, naming line and
    field.
    """
    source = Source(path.name, "its author")
    lines: dict[str, list[tuple[Line, Record]]] = {}
    for number, content in enumerate(_read(source.existing(path)).split("\n"), start=1):
        if content.strip():
            try:
                line = Line.model_validate_json(content)
                record = Record(
                    line.id, tuple(images / name for name in line.images), tuple(line.captions), line.category or ""
                )
            except ValidationError as error:
                raise MissingData(f"{path}, line {number}: {_told(error)}") from error
            except ValueError as error:
                raise MissingData(f"{path}, line {number}: {error}") from error
            task = line.task or path.stem
            lines.setdefault(SPELLINGS.get(task, task), []).append((line, record))
    if not lines:
        raise MissingData(f"{path} has no records")
    benchmark = benchmark or path.stem
    benchmark = SPELLINGS.get(benchmark, benchmark)
    return [_task(path, name, benchmark, some, source).first(limit) for name, some in lines.items()]


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, ValueError) as error:
        raise MissingData(f"{path} can't be read: {error}") from error


def _task(path: Path, name: str, benchmark: str, lines: list[tuple[Line, Record]], source: Source) -> Task:
    has_category = {line.category is not None for line, _ in lines}
    if len(has_category) > 1:
        raise MissingData(f"{path}: only some records of {name} have a category")
    try:
        return Task(name, benchmark, tuple(record for _, record in lines), source, by_category=has_category == {True})
    except ValueError as error:
        raise MissingData(f"{path}: {error}") from error


def _told(error: ValidationError) -> str:
    first = error.errors(include_url=False, include_input=False)[0]
    field = ".".join(map(str, first["loc"]))
    return f"{field}: {first['msg']}" if field else first["msg"]


SUGARCREPE_PP = Source("SugarCrepe++", "https://github.com/Sri-Harsha/scpp")
VALSE = Source("VALSE", "https://github.com/Heidelberg-NLP/VALSE")
NEGCLIP = Source("NegCLIP's captions", "https://github.com/mertyg/vision-language-models-are-bows")
COCO_2014 = Source("COCO's images of 2014", "https://cocodataset.org")
WINOGROUND = Source("Winoground", "https://huggingface.co/datasets/facebook/winoground")
IMAGECODE = Source("ImageCoDe", "https://github.com/McGill-NLP/imagecode")

VALSE_TASKS = (
    *("existence", "plurals", "counting-hard", "counting-small-quant", "counting-adversarial", "relations"),
    *("action-replacement", "actant-swap", "coreference-standard", "coreference-hard", "foil-it"),
)
# Annotators, out of three, who must agree that the caption is true and the foil is not.
VALSE_MIN_VOTES = 2
# The folder of each data set that VALSE took images from; COCO's images of 2014 have theirs in their names.
VALSE_FOLDERS = {
    "visual7w": "visual7w",
    "coco2017": "val2017",
    "coco_2017": "val2017",
    "SWiG": "swig",
    "VisDial_v1.0": "VisualDialog_val2018",
}


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
        with _described(path, "SugarCrepe", "choices"):
            tasks.append(Task(kind, "sugarcrepe", tuple(records), COCO))
    if not tasks:
        raise MissingData(f"{directory} contains none of SugarCrepe's choices: all of its files are empty")
    return tasks


def load_pairs_tasks(path: Path, images: Path, *, benchmark: str | None = None, limit: int | None = None) -> list[Task]:
    """Load pairs of `fovea curate`, JSON lines or a folder in SugarCrepe's form, as a task for each type.

    `benchmark` is by default the file's name, `limit` takes the first pairs of each type. Raises MissingData.
    """
    source = Source(path.name, "its author")
    try:
        pairs = load_pairs(source.existing(path))
    except (BadPairs, OSError) as error:
        raise MissingData(str(error)) from error
    by_kind: dict[str, list[Record]] = {}
    for pair in pairs:
        record = Record(pair.id, (images / pair.filename,), (pair.caption, pair.negative_caption))
        by_kind.setdefault(pair.kind, []).append(record)
    if not by_kind:
        raise MissingData(f"{path} holds no pairs")
    return [Task(kind, benchmark or path.stem, tuple(some[:limit]), source) for kind, some in by_kind.items()]


def load_sugarcrepe_pp_tasks(directory: Path, images: Path, *, limit: int | None = None) -> list[Task]:
    """Load SugarCrepe++'s types that the folder has, with the images of COCO's `val2017` folder. Raises MissingData.

    Each record has two true captions in different words and a false one.
    """
    tasks = []
    for kind in KINDS:
        path = directory / f"{kind}.json"
        if not path.exists():
            continue
        with _described(path, SUGARCREPE_PP.name, "captions"):
            records = tuple(
                Record(
                    str(row.get("id", place)),
                    (images / row["filename"],),
                    tuple(map(_nonblank, (row["caption"], row["caption2"], row["negative_caption"]))),
                )
                for place, row in enumerate(json.loads(path.read_text(encoding="utf-8")))
            )
            tasks.append(Task(kind, "sugarcrepe_pp", records[:limit], COCO, num_true=2))
    if not tasks:
        SUGARCREPE_PP.existing(directory / f"{KINDS[0]}.json")
    return tasks


def load_valse(directory: Path, images: Path, *, valid_only: bool = True, limit: int | None = None) -> list[Task]:
    """Load VALSE's eleven files, `<task>.json` or `.json.gz`, with the images of VALSE_FOLDERS and COCO's of 2014.

    `valid_only` leaves out items that fewer than VALSE_MIN_VOTES annotators agreed with. Raises MissingData.
    """
    tasks = []
    for name in VALSE_TASKS:
        zipped = directory / f"{name}.json.gz"
        path = zipped if zipped.is_file() else VALSE.existing(directory / f"{name}.json")
        with _described(path, "VALSE", "captions and foils"):
            content = gzip.decompress(path.read_bytes()) if path == zipped else path.read_bytes()
            records = tuple(
                Record(key, (images / _valse_file(entry),), (entry["caption"], entry["foil"]))
                for key, entry in json.loads(content).items()
                if not valid_only or entry["mturk"]["caption"] >= VALSE_MIN_VOTES
            )
            tasks.append(Task(name, "valse", records[:limit], VALSE))
    return tasks


def load_negclip_captions(path: Path, images: Path, *, limit: int | None = None) -> list[Task]:
    """Load `valid_neg_clip.tsv`, NegCLIP's validation captions: a COCO image and its caption among one to five swaps.

    The file's own paths, such as `coco/val2014/…`, are relative to `images`. Raises MissingData.
    """
    with (
        _described(NEGCLIP.existing(path), NEGCLIP.name, "captions and their negatives"),
        path.open(newline="", encoding="utf-8") as file,
    ):
        records = tuple(
            Record(row[""], (images / row["filepath"],), (row["title"], *ast.literal_eval(row["neg_caption"])))
            for row in csv.DictReader(file, delimiter="\t")
        )
        return [Task("negclip", "negclip", records[:limit], COCO_2014)]


def load_winoground(directory: Path, images: Path, *, limit: int | None = None) -> list[Task]:
    """Load Winoground's `examples.jsonl`: two images and two captions with the same words. Raises MissingData."""
    path = WINOGROUND.existing(directory / "examples.jsonl")
    with _described(path, WINOGROUND.name, "examples"):
        records = tuple(
            Record(
                str(row["id"]),
                (images / f"{row['image_0']}.png", images / f"{row['image_1']}.png"),
                (row["caption_0"], row["caption_1"]),
            )
            for row in map(json.loads, path.read_text(encoding="utf-8").splitlines())
        )
        return [Task("winoground", "winoground", records[:limit], WINOGROUND)]


def load_imagecode(path: Path, images: Path, *, limit: int | None = None) -> list[Task]:
    """Load ImageCoDe's `valid_data.json`: a description and the ten images of a set, in its folder, by number.

    Sets consist of video frames or static images. Raises MissingData.
    """
    with _described(IMAGECODE.existing(path), IMAGECODE.name, "descriptions"):
        by_task: dict[str, list[Record]] = {"videos": [], "static": []}
        for name, descriptions in json.loads(path.read_text(encoding="utf-8")).items():
            files = _frames(IMAGECODE.existing(images / name))
            for number, text in descriptions.items():
                true = files[int(number)]
                record = Record(f"{name}/{number}", (true, *(file for file in files if file != true)), (text,))
                by_task["static" if "open-images" in name else "videos"].append(record)
        return [Task(name, "imagecode", tuple(some[:limit]), IMAGECODE) for name, some in by_task.items() if some]


def _nonblank(caption: Any) -> str:
    if not isinstance(caption, str) or not caption.strip():
        raise ValueError(f"a caption is {caption!r}")
    return caption


def _frames(folder: Path) -> list[Path]:
    """The images `img<number>.jpg` of a folder, by number."""
    return sorted(folder.glob("img*.jpg"), key=lambda path: int(path.stem.removeprefix("img")))


def _valse_file(entry: Mapping[str, Any]) -> Path:
    """The path of an entry's image, relative to the folder of all images."""
    file = Path(entry["image_file"])
    if file.name.startswith("COCO_"):
        return Path(file.name.split("_")[1]) / file
    return Path(VALSE_FOLDERS[entry["dataset"]]) / file


@contextmanager
def _described(path: Path, name: str, what: str) -> Iterator[None]:
    """Raises MissingData, with the file's name, for a file of another form."""
    try:
        yield
    except (AttributeError, EOFError, LookupError, OSError, SyntaxError, TypeError, ValueError) as error:
        told = f"there is no {error}" if isinstance(error, KeyError) else str(error)
        raise MissingData(f"{path} holds no {what} of {name}: {told}") from error
