"""ARO: relations and attributes of Visual Genome's things, and captions of COCO and Flickr30k in other orders.

VG-Relation and VG-Attribution are means over relations and pairs of attributes, without those that the authors leave
out of their means: relations that may hold both ways (`aro_symmetric_relations.json`), and rare pairs of attributes.

The false captions of the two orders are not published: the authors draw them anew whenever they load the captions.
Here they depend only on a seed and the caption's place, so that a run can be repeated.
"""

import ast
import json
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from pathlib import Path
from random import Random
from typing import Any

from services.core.text_files import read_table
from services.jobs.published_data import Source, described
from services.score.evaluation.benchmarks.reading import (
    COCO_2014,
    FLICKR30K,
    CaptionedImage,
    cleaned,
    listed,
    load_coco,
    load_flickr30k,
    records_of,
)
from services.score.evaluation.records import Crop, Record, Task
from services.score.negatives.annotation import ADJECTIVE_TAGS, NOUN_TAGS, best_annotator

ARO = Source("ARO", "https://github.com/mertyg/vision-language-models-are-bows")
NEGCLIP = Source("NegCLIP's captions", ARO.address)

# Pairs of attributes with fewer records do not enter the authors' mean.
MIN_RECORDS_OF_A_PAIR = 25
# Captions are cut to this many words, after a change of their order.
MAX_WORDS = 30
SEED = 0


def load_negclip_captions(path: Path, images: Path, *, limit: int | None = None) -> list[Task]:
    """Load `valid_neg_clip.tsv`, NegCLIP's validation captions: a COCO image and its caption among one to five swaps.

    The file's own paths, such as `coco/val2014/…`, are relative to `images`. Raises BadFile.
    """
    what = "captions and their negatives"
    records = records_of(read_table(NEGCLIP.existing(path), "\t"), NEGCLIP, what, lambda _, row: _swaps(images, row))
    with described(path, NEGCLIP.name, what):
        return [Task("negclip", "negclip", tuple(records[:limit]), COCO_2014)]


def _swaps(images: Path, row: dict[str, str]) -> Record:
    return Record(row[""], (images / row["filepath"],), (row["title"], *ast.literal_eval(row["neg_caption"])))


def load_aro(path: Path, images: Path, *, limit: int | None = None) -> list[Task]:
    """Load what is there of ARO's four tasks in the authors' folder, or the captions of a file for NegCLIP.

    Only these need `images`. Raises BadFile.
    """
    if not path.is_dir():
        return load_negclip_captions(path, images, limit=limit)
    tasks = []
    if any(path.glob("visual_genome_*.json")) or not any((path / name).is_dir() for name in ("coco", "flickr30k")):
        tasks += load_visual_genome_tasks(path, limit=limit)
    if (path / "flickr30k").is_dir():
        tasks.append(_order_task("Flickr30k_Order", load_flickr30k(path / "flickr30k"), FLICKR30K, limit))
    if (path / "coco").is_dir():
        tasks.append(_order_task("COCO_Order", load_coco(path / "coco"), COCO_2014, limit))
    return tasks


def load_visual_genome_tasks(directory: Path, *, limit: int | None = None) -> list[Task]:
    """Load VG-Relation and VG-Attribution: `visual_genome_relation.json`, `visual_genome_attribution.json`, `images`.

    Each image is cropped to the things that its captions name. Raises BadFile.
    """
    symmetric = frozenset(json.loads(Path(__file__).with_name("aro_symmetric_relations.json").read_text())["relations"])
    relations = _visual_genome(directory / "visual_genome_relation.json", lambda row: str(row["relation_name"]))
    attributes = _visual_genome(directory / "visual_genome_attribution.json", lambda row: "_".join(row["attributes"]))
    counts = Counter(record.category for record in attributes)
    kept = {
        "VG_Relation": [record for record in relations if record.category not in symmetric],
        "VG_Attribution": [record for record in attributes if counts[record.category] >= MIN_RECORDS_OF_A_PAIR],
    }
    with described(directory, ARO.name, "records"):
        return [Task(name, "aro", tuple(some[:limit]), ARO, by_category=True) for name, some in kept.items()]


def _visual_genome(path: Path, category: Callable[[dict[str, Any]], str]) -> list[Record]:
    def record(name: str, row: dict[str, Any]) -> Record:
        image = Crop(path.parent / "images" / Path(row["image_path"]).name, _box(row))
        return Record(name, (image,), (row["true_caption"], row["false_caption"]), category(row))

    return records_of(listed(path, ARO, "captions and boxes"), ARO, "captions and boxes", record)


def _box(row: dict[str, Any]) -> tuple[int, int, int, int]:
    left, upper = int(row["bbox_x"]), int(row["bbox_y"])
    return left, upper, left + int(row["bbox_w"]), upper + int(row["bbox_h"])


def load_order_tasks(coco: Path, flickr30k: Path, *, limit: int | None = None) -> list[Task]:
    """Load COCO-Order and Flickr30k-Order: each caption of the test splits among four other orders of its words.

    An order that leaves a caption as it is makes no false caption. Raises BadFile.
    """
    return [
        _order_task("Flickr30k_Order", load_flickr30k(flickr30k), FLICKR30K, limit),
        _order_task("COCO_Order", load_coco(coco), COCO_2014, limit),
    ]


def _order_task(name: str, captioned: Sequence[CaptionedImage], source: Source, limit: int | None) -> Task:
    annotator = best_annotator()

    def records() -> Iterator[Record]:
        place = -1
        for one in captioned:
            for caption in one.captions:
                place += 1
                annotation = annotator.annotate(caption)
                true = cleaned(caption, MAX_WORDS)
                changed = (cleaned(text, MAX_WORDS) for text in orders(annotation.words, annotation.tags, place))
                false = tuple(text for text in changed if text != true)
                if false:
                    yield Record(str(place), (one.image,), (true, *false))

    return Task(name, "aro", tuple(islice(records(), limit)), source)


def orders(words: Sequence[str], tags: Sequence[str], place: int, seed: int = SEED) -> list[str]:
    """Put words with Penn tags into ARO's four orders.

    They are: nouns among nouns and adjectives among adjectives, all other words among themselves, the words within each
    three, and the threes.
    """
    generator = Random(f"{seed} {place}")
    is_noun = [tag in NOUN_TAGS for tag in tags]
    is_adjective = [tag in ADJECTIVE_TAGS for tag in tags]
    is_other = [not (noun or adjective) for noun, adjective in zip(is_noun, is_adjective, strict=True)]
    threes = [list(words[start : start + 3]) for start in range(0, len(words), 3)]
    things = _shuffled(_shuffled(words, is_noun, generator), is_adjective, generator)
    others = _shuffled(words, is_other, generator)
    within = [word for three in threes for word in generator.sample(three, len(three))]
    of_threes = [word for three in generator.sample(threes, len(threes)) for word in three]
    return [" ".join(some) for some in (things, others, within, of_threes)]


def _shuffled(words: Sequence[str], is_moved: Sequence[bool], generator: Random) -> list[str]:
    """Shuffle the words that are moved among themselves."""
    moving = [word for word, moves in zip(words, is_moved, strict=True) if moves]
    moved = iter(generator.sample(moving, len(moving)))
    return [next(moved) if moves else word for word, moves in zip(words, is_moved, strict=True)]
