"""The published benchmarks: how each is read, where its images are, and the files that it is recognized by."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from services.score.evaluation.benchmarks.aro import load_aro
from services.score.evaluation.benchmarks.caption_choices import (
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
    load_cola,
    load_colorswap,
    load_eqben,
    load_imagecode,
    load_spec,
    load_svo_probes,
    load_winoground,
)
from services.score.evaluation.benchmarks.record_files import load_pairs_tasks, load_records
from services.score.evaluation.records import Task


@dataclass(frozen=True)
class Benchmark:
    """A benchmark's loader, what its data are, and the default folder of its images, None if these are in its data.

    `own` are the options that only it has. A folder is one of it that has a file of `marks`, a pattern; without marks
    it offers no choice of captions.
    """

    load: Callable[..., Sequence[Task]]
    help: str
    images: Path | None = Path()
    own: tuple[str, ...] = ()
    marks: str = ""

    @property
    def options(self) -> tuple[str, ...]:
        """Names of the loader's arguments beside the data and the limit."""
        return self.own if self.images is None else (*self.own, "images")


COCO = Path("val2017")
VISUAL_GENOME = "--images has Visual Genome's images, in VG_100K/ and VG_100K_2/."
BENCHMARKS = {
    "sugarcrepe": Benchmark(
        load_sugarcrepe_tasks,
        "Choose the correct one of two similar captions: SugarCrepe's seven types (Tables 4.5, 4.6).\n\n--data is a "
        "folder with replace_obj.json and the other six files.",
        COCO,
        ("swap_obj",),
    ),
    "pairs": Benchmark(
        load_pairs_tasks,
        "Choose the true one of two captions in any pairs of `fovea curate`, by type and form.\n\n--data is a file of "
        "JSON lines, or a folder in SugarCrepe's form.",
        own=("benchmark",),
    ),
    "sugarcrepe-pp": Benchmark(
        load_sugarcrepe_pp_tasks,
        "Prefer each of two true captions in different words to a similar false one: SugarCrepe++, image to text.\n\n"
        "--data is a folder with replace_obj.json and others of the seven files.",
        COCO,
    ),
    "valse": Benchmark(
        load_valse,
        "Distinguish a caption from its foil: VALSE's eleven files.\n\n--data is a folder with existence.json and the "
        "other ten files, optionally gzipped. The images are in folders of their data sets: visual7w, val2017, swig, "
        "VisualDialog_val2018, train2014, val2014.",
    ),
    "aro": Benchmark(
        load_aro,
        "Choose a caption among others of the same words: ARO's four tasks (Table C.2), or NegCLIP's captions.\n\n"
        "--data is the authors' folder with visual_genome_relation.json, visual_genome_attribution.json and images/, "
        "and in it coco/ and flickr30k/ with captions in Karpathy's split and images; what is there is evaluated. Or "
        "it is NegCLIP's valid_neg_clip.tsv, whose images are in --images.",
        marks="visual_genome_*.json",
    ),
    "crepe": Benchmark(
        load_crepe,
        "Choose the caption of a part of an image among atomic foils, swaps and negations: CREPE-Productivity (Table "
        f"C.2).\n\n--data is a folder with prod_hard_negatives/. {VISUAL_GENOME}",
        Path("visual_genome"),
        marks="prod_hard_negatives",
    ),
    "vl-checklist": Benchmark(
        load_vl_checklist,
        "Distinguish a caption from one with another object, attribute or relation: VL-CheckList (Table C.2).\n\n"
        "--data is a folder with the authors' data/, and the images in vg/, swig/ and hake/.",
        None,
        marks="data/Attribute",
    ),
    "whatsup": Benchmark(
        load_whatsup,
        "Choose the caption with the true preposition: What's Up.\n\n--data is the authors' folder data, with images.",
        None,
        marks="controlled_*_dataset.json",
    ),
    "negbench": Benchmark(
        load_negbench,
        "Choose a caption among others with and without denials: NegBench's questions.\n\n--data is a file *_mcq_*.csv "
        "or a folder of some. The images are in folders of their data sets, such as val2017 and JPEGImages.",
        marks="*mcq*.csv",
    ),
    "half-truths": Benchmark(
        load_half_truths,
        "Prefer a short true description to one with a wrong detail more: half-truths of CS-CLIP's units.\n\n--data is "
        "a file or folder of units; --images has val2014/ and others.",
    ),
    "winoground": Benchmark(
        load_winoground,
        "Match two captions of the same words with two images: text, image and group score.\n\n--data is a folder with "
        "examples.jsonl.",
        Path("images"),
    ),
    "colorswap": Benchmark(
        load_colorswap,
        "Match two captions, whose colors are exchanged, with two images: ColorSwap's text, image and group score.\n\n"
        "--data is test.json or its folder; --images is the folder in which images.zip was unpacked.",
    ),
    "cola": Benchmark(
        load_cola,
        "Match two captions, whose attributes are exchanged, with two images: Cola's multiple objects. Its own score "
        "is that of the images.\n\n--data is COLA_multiobjects_matching_benchmark.json or its folder.",
        Path("images"),
    ),
    "imagecode": Benchmark(
        load_imagecode,
        "Choose the image that a caption describes among ten: ImageCoDe.\n\n--data is valid_data.json.",
        Path("image-sets"),
    ),
    "eqben": Benchmark(
        load_eqben,
        "Match two captions with two nearly equal images: EqBen.\n\n--data is ann_json_finegrained_random.json.",
        Path("images"),
    ),
    "svo-probes": Benchmark(
        load_svo_probes,
        "Choose the image with the right subject, verb or object: SVO-Probes.\n\n--data is svo_probes.csv; --images "
        "has <number>.jpg.",
        Path("images"),
    ),
    "spec": Benchmark(
        load_spec,
        "Choose captions and images that differ in size, position, existence or count: SPEC.\n\n--data is a folder "
        "with six folders of image2text.json, text2image.json and images.",
        None,
    ),
    "records": Benchmark(
        load_records,
        "Evaluate any benchmark given as records: captions of an image, images of a caption, or pairs of both.\n\n"
        "--data is a file of JSON lines with id, images and captions.",
        own=("benchmark",),
    ),
}


def load_recognized(folder: Path) -> Sequence[Task] | None:
    """Load the benchmark whose files a folder has, without looking for images; None if it is none with `marks`."""
    for one in BENCHMARKS.values():
        if one.marks and any(folder.glob(one.marks)):
            return one.load(folder) if one.images is None else one.load(folder, one.images)
    return None
