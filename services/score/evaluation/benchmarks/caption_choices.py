"""Benchmarks that choose among captions of an image: SugarCrepe, VALSE, VL-CheckList, CREPE, NegBench and others."""

import ast
import re
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from services.core.text_files import BadFile, read_json, read_table
from services.jobs.published_data import Source, described
from services.jobs.sugarcrepe import COCO, KINDS, load_sugarcrepe
from services.score.evaluation.aggregates import CREPE as CREPE_TYPES
from services.score.evaluation.aggregates import HALF_TRUTHS, VALSE_TASKS
from services.score.evaluation.aggregates import VL_CHECKLIST as GROUPS
from services.score.evaluation.aggregates import VL_CHECKLIST_SOURCES as SOURCES
from services.score.evaluation.benchmarks.reading import listed, records_of, true_first, with_images
from services.score.evaluation.records import Crop, Record, Task

# SugarCrepe and SugarCrepe++: one or two true captions of an image of COCO's, and a similar false one.

SUGARCREPE_PP = Source("SugarCrepe++", "https://github.com/Sri-Harsha/scpp")


def load_sugarcrepe_tasks(
    directory: Path, images: Path, *, swap_obj: Path | None = None, limit: int | None = None
) -> list[Task]:
    """Load SugarCrepe's seven types, with the images of COCO's `val2017` folder. Raises BadFile.

    `swap_obj` replaces that type's file: the first published one contains one more choice. A file without choices is
    left out, unless all are.
    """
    tasks = []
    for kind, choices in load_sugarcrepe(directory, swap_obj=swap_obj, limit=limit).items():
        path = swap_obj if kind == "swap_obj" and swap_obj is not None else directory / f"{kind}.json"
        if not choices:
            continue
        records = (
            Record(name, (images / choice.filename,), (choice.caption, choice.negative_caption))
            for name, choice in zip(list(read_json(path))[:limit], choices, strict=True)
        )
        with described(path, "SugarCrepe", "choices"):
            tasks.append(Task(kind, "sugarcrepe", tuple(records), COCO))
    if not tasks:
        raise BadFile(f"{directory} contains none of SugarCrepe's choices: all of its files are empty")
    return tasks


def load_sugarcrepe_pp_tasks(directory: Path, images: Path, *, limit: int | None = None) -> list[Task]:
    """Load SugarCrepe++'s types that the folder has, with the images of COCO's `val2017` folder. Raises BadFile.

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
                    (row["caption"], row["caption2"], row["negative_caption"]),
                )
                for place, row in enumerate(read_json(path))
            )
            tasks.append(Task(kind, "sugarcrepe_pp", records[:limit], COCO, num_true=2))
    if not tasks:
        SUGARCREPE_PP.existing(directory / f"{KINDS[0]}.json")
    return tasks


# VALSE: a caption and its foil, for seven phenomena of language.

VALSE = Source("VALSE", "https://github.com/Heidelberg-NLP/VALSE")

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


def load_valse(directory: Path, images: Path, *, limit: int | None = None) -> list[Task]:
    """Load VALSE's eleven files, `<task>.json` or `.json.gz`, with the images of VALSE_FOLDERS and COCO's of 2014.

    Items that fewer than VALSE_MIN_VOTES annotators agreed with are left out. Raises BadFile.
    """
    tasks = []
    for name in VALSE_TASKS:
        zipped = directory / f"{name}.json.gz"
        path = zipped if zipped.is_file() else VALSE.existing(directory / f"{name}.json")
        with described(path, "VALSE", "captions and foils"):
            records = tuple(
                Record(key, (images / _valse_file(entry),), (entry["caption"], entry["foil"]))
                for key, entry in read_json(path).items()
                if entry["mturk"]["caption"] >= VALSE_MIN_VOTES
            )
            tasks.append(Task(name, "valse", records[:limit], VALSE))
    return tasks


def _valse_file(entry: Mapping[str, Any]) -> Path:
    """The path of an entry's image, relative to the folder of all images."""
    file = Path(entry["image_file"])
    if file.name.startswith("COCO_"):
        return Path(file.name.split("_")[1]) / file
    return Path(VALSE_FOLDERS[entry["dataset"]]) / file


# VL-CheckList: a caption of an image and a false one, by object, attribute and relation.
# FSC-CLIP's numbers are means over the sources of the images, each over its files, of the first 1,000 records of a
# file: so says the granularity of the numbers that its authors publish (github.com/ytaek-oh/vl_compo), and so does the
# configuration of VL-CheckList's authors. Of several captions, the first true and the first false one count.

VL_CHECKLIST = Source("VL-CheckList", "https://github.com/om-ai-lab/VL-CheckList")
# Records of a file that are evaluated.
MAX_RECORDS = 1_000
SWIG_ROLES = ("agent", "destination", "item", "tool")


def load_vl_checklist(directory: Path, *, limit: int | None = MAX_RECORDS) -> list[Task]:
    """Load the folder `data` of the authors' repository, with the images of `vg`, `swig` and `hake` beside it.

    A task is one of 13 and a source, such as `Object_Size_large/swig`, and a mean over its files. Records without an
    image are left out and counted, as HAKE's images come from sites that lose some. `limit` takes the first records of
    each file. Raises BadFile.
    """
    tasks = []
    for group, names in GROUPS.items():
        for name in names:
            for source in SOURCES[group, name]:
                tasks.append(_vl_task(directory, group, name, source, limit))
    return tasks


def _vl_task(directory: Path, group: str, name: str, source: str, limit: int | None) -> Task:
    records: list[Record] = []
    left_out = 0
    for file in _vl_files(group, name, source):
        path = directory / "data" / file
        kept, missing = with_images(_vl_records(path, directory / source.replace("vaw", "vg")), limit)
        records += kept
        left_out += missing
    with described(directory, VL_CHECKLIST.name, "records"):
        task = f"{group}_{name}/{source}"
        return Task(task, "vl_checklist", tuple(records), VL_CHECKLIST, by_category=True, left_out=left_out)


def _vl_records(path: Path, images: Path) -> list[Record]:
    def record(name: str, row: tuple[str, dict[str, list[str]]]) -> Record:
        image, texts = row
        return Record(f"{path.stem}/{name}", (images / image,), (texts["POS"][0], texts["NEG"][0]), path.stem)

    return records_of(listed(path, VL_CHECKLIST, "captions"), VL_CHECKLIST, "captions", record)


def _vl_files(group: str, name: str, source: str) -> list[str]:
    """List the files of a task and a source, of one or several roles of the thing."""
    if group == "Attribute":
        return [f"Attribute/{source}/{name}.json"]
    if group == "Relation":
        return [f"Relation/vg/{name}.json" if source == "vg" else f"Relation/{source}_{name}.json"]
    what, size = name.lower().split("_")
    folder = f"Object/{what.capitalize()}/{source}_{what}"
    match source:
        case "swig":
            return [f"{folder}/swig_{role}/swig_{role}_{size}.json" for role in SWIG_ROLES]
        case "vg":
            return [f"{folder}/vg_{role}_{size}.json" for role in ("obj", "subj")]
    return [f"{folder}/hake_obj_{size}.json"]


# What's Up: where one thing is in relation to another, in photographs taken for it and in others.
# The tasks have 412, 408, 2,247, 440, 1,160 and 291 records.

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
    """Load the six files of the authors' folder `data`, with its folders of images. Raises BadFile."""
    tasks = []
    for name, file in CONTROLLED.items():
        tasks.append(_whatsup(name, directory / file, partial(_controlled, directory), limit))
    for name, (file, image) in QUESTIONS.items():
        tasks.append(_whatsup(name, directory / file, partial(_qa, directory, image), limit))
    return tasks


def _whatsup(name: str, path: Path, make: Callable[[str, Any], Record], limit: int | None) -> Task:
    records = records_of(listed(path, WHATSUP, "captions"), WHATSUP, "captions", make)
    with described(path, WHATSUP.name, "captions"):
        return Task(name, "whatsup", tuple(records[:limit]), WHATSUP)


def _controlled(directory: Path, name: str, row: dict[str, Any]) -> Record:
    # names in the file begin with the folder itself: data/controlled_images/…
    image = directory.joinpath(*Path(row["image_path"]).parts[-2:])
    return Record(name, (image,), tuple(row["caption_options"]))


def _qa(directory: Path, image: str, name: str, row: tuple[int, str, str]) -> Record:
    number, true, false = row
    return Record(name, (directory / image.format(number),), (true, false))


# Visual Genome's images, which its owners publish in two folders.

VISUAL_GENOME = Source("Visual Genome's images", "https://homes.cs.washington.edu/~ranjay/visualgenome")
VISUAL_GENOME_FOLDERS = ("VG_100K", "VG_100K_2", "")


def visual_genome_image(folder: Path, name: str) -> Path:
    """Find an image in VG_100K, VG_100K_2 or the folder itself; the first of them if it is in none."""
    places = [folder / part / name for part in VISUAL_GENOME_FOLDERS]
    return next((place for place in places if place.exists()), places[0])


# CREPE-Productivity: a caption of a part of Visual Genome's images among hard negatives, by the caption's complexity.
# FSC-CLIP's numbers are of all complexities together: 17,698 atomic foils, 7,405 swaps and 17,303 negations.

CREPE = Source("CREPE", "https://github.com/RAIVNLab/CREPE")
COMPLEXITIES = range(4, 13)


def load_crepe(directory: Path, images: Path, *, limit: int | None = None) -> list[Task]:
    """Load atomic foils, swaps and negations of all complexities from the folder `prod_hard_negatives`.

    `images` holds Visual Genome's folders. Raises BadFile.
    """
    tasks = []
    for kind in CREPE_TYPES:
        records = []
        for complexity in COMPLEXITIES:
            path = directory / "prod_hard_negatives" / kind / f"prod_vg_hard_negs_{kind}_complexity_{complexity}.csv"
            rows = read_table(CREPE.existing(path))
            make = partial(_crepe_record, images, complexity)
            records += records_of(rows, CREPE, "captions and hard negatives", make)
        tasks.append(Task(kind, "crepe", tuple(records[:limit]), VISUAL_GENOME))
    return tasks


def _crepe_record(images: Path, complexity: int, name: str, row: dict[str, str]) -> Record:
    left, upper, width, height = (round(float(row[name])) for name in ("x", "y", "width", "height"))
    file = visual_genome_image(images, f"{row['image_id']}.jpg")
    crop = Crop(file, (left, upper, left + width, upper + height))
    return Record(f"{complexity}/{name}", (crop,), (row["caption"], *ast.literal_eval(row["hard_negs"])))


# NegBench: a caption of an image among three others, with and without denials of things.
# An answer is one of three templates: it affirms, denies, or does both.

NEGBENCH = Source("NegBench", "https://github.com/m1k2zoo/negbench")


def load_negbench(path: Path, images: Path, *, limit: int | None = None) -> list[Task]:
    """Load `*_mcq_*.csv`, questions with a choice of captions, one file or all of a folder, as a task for each file.

    Of a path in a file the last two parts count, as in `val2017/….jpg`. Raises BadFile.
    """
    files = sorted(path.glob("*mcq*.csv")) if path.is_dir() else [NEGBENCH.existing(path)]
    if not files:
        NEGBENCH.existing(path / "COCO_val_mcq_llama3.1_rephrased.csv")
    tasks = []
    for file in files:
        rows = read_table(file, columns=("image_path", "correct_answer", "caption_0", "caption_1"))
        records = records_of(rows, NEGBENCH, "questions", partial(_question, images))
        with described(file, NEGBENCH.name, "questions"):
            tasks.append(Task(file.stem, "negbench", tuple(records[:limit]), NEGBENCH))
    return tasks


def _question(images: Path, name: str, row: dict[str, str]) -> Record:
    options = [row[column] for column in sorted(row) if re.fullmatch(r"caption_\d", column)]
    image = images.joinpath(*Path(row["image_path"]).parts[-2:])
    return Record(name, (image,), true_first(options, int(row["correct_answer"])))


# Half-truths: a short true description of an image against the same with a detail that is wrong (CS-CLIP).
# They are made from the units that CS-CLIP's authors extract from captions of COCO, as they do: a thing alone against
# that thing "and" a wrong one; the subject of a relation alone against a relation in which it is wrong. An image has at
# most one record of each kind of wrong detail.

UNITS = Source("CS-CLIP's units of captions", "https://github.com/kargibora/CS-CLIP")


def load_half_truths(path: Path, images: Path, *, limit: int | None = None) -> list[Task]:
    """Load a file or folder of units, with images such as `val2014/….jpg` in `images`. Raises BadFile."""
    files = sorted(UNITS.existing(path).glob("*.json")) if path.is_dir() else [path]
    records: dict[str, dict[str, Record]] = {task: {} for tasks in HALF_TRUTHS.values() for task in tasks}
    for file in files:
        samples = read_json(UNITS.existing(file))
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
