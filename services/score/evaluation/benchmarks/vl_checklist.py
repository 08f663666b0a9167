"""VL-CheckList: a caption of an image and a false one, by object, attribute and relation.

FSC-CLIP's numbers are means over the sources of the images, each over its files, of the first 1,000 records of a file:
so says the granularity of the numbers that its authors publish (github.com/ytaek-oh/vl_compo), and so does the
configuration of VL-CheckList's authors. Of several captions, the first true and the first false one count.
"""

from collections.abc import Iterator
from pathlib import Path

from services.jobs.published_data import Source
from services.score.evaluation.aggregates import VL_CHECKLIST as GROUPS
from services.score.evaluation.aggregates import VL_CHECKLIST_SOURCES as SOURCES
from services.score.evaluation.benchmarks.reading import described, read_json, with_images
from services.score.evaluation.records import Record, Task

VL_CHECKLIST = Source("VL-CheckList", "https://github.com/om-ai-lab/VL-CheckList")
# Records of a file that are evaluated.
MAX_RECORDS = 1_000
ROLES = ("agent", "destination", "item", "tool")


def load_vl_checklist(directory: Path, *, limit: int | None = MAX_RECORDS) -> list[Task]:
    """Load the folder `data` of the authors' repository, with the images of `vg`, `swig` and `hake` beside it.

    A task is one of 13 and a source, such as `Object_Size_large/swig`, and a mean over its files. Records without an
    image are left out and counted, as HAKE's images come from sites that lose some. `limit` takes the first records of
    each file. Raises MissingData.
    """
    tasks = []
    for group, names in GROUPS.items():
        for name in names:
            for source in SOURCES[group, name]:
                tasks.append(_task(directory, group, name, source, limit))
    return tasks


def _task(directory: Path, group: str, name: str, source: str, limit: int | None) -> Task:
    records: list[Record] = []
    left_out = 0
    for file in _files(group, name, source):
        path = directory / "data" / file
        kept, missing = with_images(_records(path, directory / source.replace("vaw", "vg")), VL_CHECKLIST, limit)
        records += kept
        left_out += missing
    with described(directory, VL_CHECKLIST.name, "records"):
        task = f"{group}_{name}/{source}"
        return Task(task, "vl_checklist", tuple(records), VL_CHECKLIST, by_category=True, left_out=left_out)


def _records(path: Path, images: Path) -> Iterator[Record]:
    rows = read_json(path, VL_CHECKLIST)
    with described(path, VL_CHECKLIST.name, "captions"):
        for place, (image, texts) in enumerate(rows):
            captions = (texts["POS"][0], texts["NEG"][0])
            yield Record(f"{path.stem}/{place}", (images / image,), captions, path.stem)


def _files(group: str, name: str, source: str) -> list[str]:
    """List the files of a task and a source, of one or several roles of the thing."""
    if group == "Attribute":
        return [f"Attribute/{source}/{name}.json"]
    if group == "Relation":
        return [f"Relation/vg/{name}.json" if source == "vg" else f"Relation/{source}_{name}.json"]
    what, size = name.lower().split("_")
    folder = f"Object/{what.capitalize()}/{source}_{what}"
    match source:
        case "swig":
            return [f"{folder}/swig_{role}/swig_{role}_{size}.json" for role in ROLES]
        case "vg":
            return [f"{folder}/vg_{role}_{size}.json" for role in ("obj", "subj")]
    return [f"{folder}/hake_obj_{size}.json"]
