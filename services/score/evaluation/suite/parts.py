"""Parts of the suite: FSC-CLIP's eleven benchmarks, 21 classification sets and three retrieval sets, and some beyond.

A part is evaluated and saved as a whole. Its folder lies in the one folder of all data. A judge that reads only
captions takes the parts that choose among captions, for which it needs no images.
"""

import hashlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from services.score.evaluation.aggregates import (
    ARO_ORDERS,
    ARO_VISUAL_GENOME,
    CREPE,
    ELEVATER,
    EQBEN_KUBRIC,
    EQBEN_OTHERS,
    HALF_TRUTHS,
    IMAGE,
    IMAGECODE_SIZES,
    RETRIEVAL,
    SPEC,
    SUGARCREPE_SIZES,
    SVO_PROBES,
    TEXT,
    VALSE_TASKS,
    VL_CHECKLIST_SOURCES,
    WHATSUP,
)
from services.score.evaluation.benchmarks.aro import load_order_tasks, load_visual_genome_tasks
from services.score.evaluation.benchmarks.caption_choices import (
    MAX_RECORDS,
    load_crepe,
    load_half_truths,
    load_negbench,
    load_sugarcrepe_pp_tasks,
    load_sugarcrepe_tasks,
    load_valse,
    load_vl_checklist,
    load_whatsup,
)
from services.score.evaluation.benchmarks.image_choices import (
    MAX_SAMPLES,
    load_cola,
    load_colorswap,
    load_eqben,
    load_imagecode,
    load_spec,
    load_svo_probes,
    load_winoground,
)
from services.score.evaluation.judges import EmbeddedBenchmark, Embedder, Judge, Result, evaluate
from services.score.evaluation.recognition import (
    evaluate_classification,
    evaluate_retrieval,
    load_classification_set,
    load_retrieval_set,
)
from services.score.evaluation.records import ImageFile, Task, file_of


def fingerprint(model: Path | str) -> str:
    """Compute what tells a checkpoint from others: a digest of its files, or open_clip's name of it."""
    if isinstance(model, str):
        name, _, pretrained = model.partition(":")
        return f"{name}:{_digest([Path(pretrained)])}" if Path(pretrained).is_file() else model
    return _digest(sorted(path for path in model.rglob("*") if path.is_file()) if model.is_dir() else [model])


def digest_of_tasks(tasks: Iterable[Task], data: Path, *, reads_images: bool = True) -> str:
    """Compute the digest of tasks' records and, for a judge that reads them, images."""
    tasks = list(tasks)
    said = [
        *((task.name, task.by_category, task.num_true, task.left_out) for task in tasks),
        *(
            (record.id, record.captions, record.category, len(record.images))
            for task in tasks
            for record in task.records
        ),
    ]
    images = [image for task in tasks for record in task.records for image in record.images]
    return digest_of_data(said, images if reads_images else [], data)


def digest_of_data(said: Iterable[object], images: Sequence[ImageFile], data: Path) -> str:
    """Compute the digest of texts and labels by their content, and of images in order by their places below `data`.

    The content of an image counts by its file's size and time of modification, because reading all images again would
    take long.
    """
    digest = hashlib.sha256()
    for one in said:
        digest.update(f"{one!r}\n".encode())
    for image in images:
        digest.update(f"{str(image).removeprefix(str(data))}\n".encode())
    for file in sorted(set(map(file_of, images))):
        found = file.stat()
        digest.update(f"{found.st_size} {found.st_mtime_ns}\n".encode())
    return digest.hexdigest()[:16]


def _digest(paths: Sequence[Path]) -> str:
    digest = hashlib.sha256()
    for path in paths:
        with path.open("rb") as file:
            digest.update(path.name.encode() + b"\0" + hashlib.file_digest(file, "sha256").digest())
    return digest.hexdigest()[:16]


Load = Callable[[Path, int | None], list[Task]]


@dataclass(frozen=True)
class Prepared:
    """A part whose files were read: `evaluate` judges a model, and raises Refused; `data` is a digest of them."""

    evaluate: Callable[[Judge], Result]
    data: str


@dataclass(frozen=True)
class Part:
    """A part of the suite, its benchmark in tables, and the scores that it gives, by name.

    `prepare` reads its files in the folder of all data, without a model, for a judge that reads images or not, and
    raises BadFile. `has_captions` tells that all of its choices are among captions.
    """

    name: str
    benchmark: str
    scores: tuple[str, ...]
    prepare: Callable[[Path, int | None, bool], Prepared]
    has_captions: bool = False


def _compositional(
    name: str, scores: tuple[str, ...], load: Load, *, benchmark: str = "", has_captions: bool = True
) -> Part:
    def prepare(data: Path, limit: int | None, reads_images: bool) -> Prepared:
        tasks = load(data, limit)
        for task in tasks if reads_images else ():
            task.check_images()
        digest = digest_of_tasks(tasks, data, reads_images=reads_images)
        return Prepared(partial(_evaluate_tasks, tasks), digest)

    return Part(name, benchmark or name, scores, prepare, has_captions)


def _evaluate_tasks(tasks: list[Task], judge: Judge) -> Result:
    if isinstance(judge, Embedder) and judge.only_pooled:
        judge = EmbeddedBenchmark(judge, tasks)
    (result,) = evaluate(judge, tasks)
    return result


def _classification(name: str) -> Part:
    def prepare(data: Path, limit: int | None, reads_images: bool) -> Prepared:
        found = load_classification_set(name, data / "elevater", limit=limit)

        def run(embedder: Judge) -> Result:
            assert isinstance(embedder, Embedder)
            score = evaluate_classification(embedder, found)
            return Result(embedder.name, "elevater", {name: score}, {name: len(found.images)})

        said = (found.class_names, found.templates, found.labels, found.metric)
        return Prepared(run, digest_of_data([said], found.images, data))

    return Part(name, "elevater", (name,), prepare)


def _retrieval(name: str) -> Part:
    def prepare(data: Path, limit: int | None, reads_images: bool) -> Prepared:
        found = load_retrieval_set(name, data, limit=limit)

        def run(embedder: Judge) -> Result:
            assert isinstance(embedder, Embedder)
            return Result(embedder.name, "retrieval", evaluate_retrieval(embedder, found), {name: len(found.images)})

        captions = (one.captions for one in found.images)
        return Prepared(run, digest_of_data(captions, [one.image for one in found.images], data))

    scores = tuple(f"{name}::{way}/R@{k}" for way in ("i2t", "t2i") for k in (1, 5, 10))
    return Part(name, "retrieval", scores, prepare)


def _from(load: Callable[..., list[Task]], *places: str, most: int | None = None) -> Load:
    """Read a benchmark's files in their places; never more than the `most` records of a task that are published."""

    def load_tasks(data: Path, limit: int | None) -> list[Task]:
        return load(*(data / place for place in places), limit=limit if most is None else min(most, limit or most))

    return load_tasks


VL_CHECKLIST = tuple(
    f"{group}_{task}/{source}" for (group, task), sources in VL_CHECKLIST_SOURCES.items() for source in sources
)
TYPES = tuple(SUGARCREPE_SIZES)
SPEC_TASKS = tuple(task + way for task in SPEC for way in (TEXT, IMAGE))
HALF_TRUTH_TASKS = tuple(task for tasks in HALF_TRUTHS.values() for task in tasks)
EQBEN_PLACES = ("eqben/ann_json_finegrained_random.json", "eqben/images")
NEGBENCH = ("COCO_val_mcq_llama3.1_rephrased",)
IMAGECODE_PLACES = ("imagecode/valid_data.json", "imagecode/image-sets")
SVO_PLACES = ("svo_probes/svo_probes.csv", "svo_probes/images")

_of_images = partial(_compositional, has_captions=False)
_COMPOSITIONAL = (
    _compositional("aro (Visual Genome)", ARO_VISUAL_GENOME, _from(load_visual_genome_tasks, "aro"), benchmark="aro"),
    _compositional("aro (orders)", ARO_ORDERS, _from(load_order_tasks, "coco", "flickr30k"), benchmark="aro"),
    _compositional("crepe", CREPE, _from(load_crepe, "crepe", "visual_genome")),
    _of_images("eqben", (*EQBEN_OTHERS, *EQBEN_KUBRIC), _from(load_eqben, *EQBEN_PLACES, most=MAX_SAMPLES)),
    _of_images("imagecode", tuple(IMAGECODE_SIZES), _from(load_imagecode, *IMAGECODE_PLACES)),
    _compositional("sugarcrepe", TYPES, _from(load_sugarcrepe_tasks, "sugar-crepe/data", "coco/val2017")),
    _of_images("svo_probes", SVO_PROBES, _from(load_svo_probes, *SVO_PLACES)),
    _compositional("valse", VALSE_TASKS, _from(load_valse, "valse/data", "valse/images")),
    _compositional("vl_checklist", VL_CHECKLIST, _from(load_vl_checklist, "vl_checklist", most=MAX_RECORDS)),
    _compositional("whatsup", WHATSUP, _from(load_whatsup, "whatsup")),
    _of_images("winoground", ("winoground",), _from(load_winoground, "winoground", "winoground/images")),
    _of_images("spec", SPEC_TASKS, _from(load_spec, "spec")),
)
_BEYOND = (
    _compositional("sugarcrepe_pp", TYPES, _from(load_sugarcrepe_pp_tasks, "sugar-crepe-pp/data", "coco/val2017")),
    _compositional("half_truths", HALF_TRUTH_TASKS, _from(load_half_truths, "half_truths", "coco")),
    _compositional("negbench", NEGBENCH, _from(load_negbench, "negbench/images", "negbench")),
    _of_images("colorswap", ("colorswap",), _from(load_colorswap, "colorswap", "colorswap")),
    _of_images("cola", ("cola",), _from(load_cola, "cola/data", "cola/images")),
)
PARTS: Mapping[str, Part] = {
    part.name: part
    for part in (*_COMPOSITIONAL, *map(_classification, ELEVATER), *map(_retrieval, RETRIEVAL), *_BEYOND)
}
