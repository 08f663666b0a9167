"""One number for a benchmark of several tasks, by the rules of the two papers' tables.

FSC-CLIP's "average of sub-tasks" is nested: some tasks are combined before the average, and some are weighted by their
records. Scores are in percent, by task; a rule raises KeyError with the name of a missing task.

SugarCrepe has three rules, which differ by up to a point: the dissertation's mean of its seven types (Table 4.6), the
accuracy over all records of a form (Tables 4.5 and C.4), and FSC-CLIP's mean of the three forms (Table 1).
"""

from collections.abc import Callable, Mapping
from statistics import fmean

from services.jobs.sugarcrepe import FORMS

ByTask = Mapping[str, float]
Sizes = Mapping[str, int]

# Suffixes of tasks that choose only captions, or only images, in groups of images and captions.
TEXT, IMAGE = "::text", "::image"

SUGARCREPE_FORMS = {
    "REPLACE": ("replace_obj", "replace_att", "replace_rel"),
    "SWAP": ("swap_obj", "swap_att"),
    "ADD": ("add_obj", "add_att"),
}
SUGARCREPE_SIZES = {
    **{"replace_obj": 1652, "replace_att": 788, "replace_rel": 1406, "swap_obj": 245, "swap_att": 666},
    **{"add_obj": 2062, "add_att": 692},
}
# The first published file, whose results are in the dissertation's chapter 4.
SUGARCREPE_SIZES_FIRST = {**SUGARCREPE_SIZES, "swap_obj": 246}
IMAGECODE_SIZES = {"videos": 1872, "static": 430}

# Names in the tables that FSC-CLIP's authors publish with their evaluation, and the names here.
SPELLINGS = {"VG_Attribute": "VG_Attribution", "elevator": "elevater"}

ARO = ("VG_Relation", "VG_Attribution", "Flickr30k_Order", "COCO_Order")
CREPE = ("atom", "swap", "negate")
EQBEN_KUBRIC = ("eqbenkubric_loc", "eqbenkubric_cnt", "eqbenkubric_attr")
EQBEN_OTHERS = ("eqbenyoucook2", "eqbengebc", "eqbenag", "eqbensd")
SVO_PROBES = ("subj_neg", "verb_neg", "obj_neg")
VALSE_GROUPS = {
    "existence": ("existence",),
    "plurals": ("plurals",),
    "counting": ("counting-hard", "counting-small-quant", "counting-adversarial"),
    "relations": ("relations",),
    "actions": ("action-replacement", "actant-swap"),
    "coreference": ("coreference-standard", "coreference-hard"),
    "foil-it": ("foil-it",),
}
VL_CHECKLIST = {
    "Object": ("Location_center", "Location_margin", "Location_mid", "Size_large", "Size_medium", "Size_small"),
    "Attribute": ("action", "color", "material", "size", "state"),
    "Relation": ("action", "spatial"),
}
# The sources of VL-CheckList's images, by group and task: a task is a mean over its sources.
VL_CHECKLIST_SOURCES = {
    **{("Object", task): ("vg", "swig", "hake") for task in VL_CHECKLIST["Object"]},
    **{("Attribute", task): ("vg", "vaw") for task in VL_CHECKLIST["Attribute"]},
    ("Relation", "action"): ("vg", "swig", "hake"),
    ("Relation", "spatial"): ("vg",),
}
WHATSUP = ("WhatsUp_A", "WhatsUp_B", "COCO_QA_ONE", "COCO_QA_TWO", "VG_QA_ONE", "VG_QA_TWO")
SPEC = ("absolute_size", "absolute_position", "count", "relative_size", "relative_position", "existence")
MMVP_VLM = (
    *("Orientation and Direction", "Presence of Specific Features", "State and Condition", "Quantity and Count"),
    *("Positional and Relational Context", "Color and Appearance", "Structural Characteristics", "Texts"),
    "Viewpoint and Perspective",
)
HALF_TRUTHS = {
    "entity": ("entity_object_change", "entity_attribute_change"),
    "relation": ("relation_antonym", "relation_negation", "relation_subject_object_swap"),
}
ELEVATER = (
    *("caltech101", "cifar10", "cifar100", "country211", "dtd", "eurosat-clip", "fer2013", "fgvc-aircraft-2013b"),
    *("flower102", "food101", "gtsrb", "hateful-memes", "imagenet-1k", "kitti-distance", "mnist", "oxford-iiit-pets"),
    *("patchcamelyon", "rendered-sst2", "resisc45-clip", "stanfordcar", "voc2007classification"),
)
RETRIEVAL = ("coco_karpathy", "flickr30k", "coco_counterfactuals")
# Benchmarks whose mean is FSC-CLIP's column Comp, in the order of its Table 1.
COMP = (
    *("aro", "crepe", "eqben", "imagecode", "sugarcrepe", "svo_probes", "valse", "vl_checklist", "whatsup"),
    *("winoground", "spec"),
)


def mean_of(scores: ByTask, tasks: tuple[str, ...]) -> float:
    """The unweighted mean of some tasks."""
    return fmean(scores[task] for task in tasks)


def micro(scores: ByTask, sizes: Sizes, tasks: tuple[str, ...]) -> float:
    """The mean over all records of some tasks: the tasks' mean, weighted by their numbers of records."""
    return fmean((scores[task] for task in tasks), [sizes[task] for task in tasks])


def sugarcrepe_macro(scores: ByTask) -> float:
    """The dissertation's Average (Table 4.6): the mean of the seven types."""
    return mean_of(scores, tuple(SUGARCREPE_SIZES))


def sugarcrepe_form(scores: ByTask, form: str, sizes: Sizes = SUGARCREPE_SIZES) -> float:
    """REPLACE, SWAP or ADD (Tables 4.5 and C.4): over all records of the form."""
    return micro(scores, sizes, SUGARCREPE_FORMS[form])


def pair_forms(scores: ByTask, sizes: Sizes) -> dict[str, float]:
    """Compute the accuracy over all pairs of each form that has some; nothing if other tasks are among them, or
    some without a size."""
    if scores.keys() - {kind for kinds in FORMS.values() for kind in kinds if kind in sizes}:
        return {}
    found = {form: tuple(kind for kind in kinds if kind in scores) for form, kinds in FORMS.items()}
    return {form: micro(scores, sizes, kinds) for form, kinds in found.items() if kinds}


def sugarcrepe(scores: ByTask, sizes: Sizes = SUGARCREPE_SIZES) -> float:
    """FSC-CLIP's average: the mean of the three forms."""
    return fmean(sugarcrepe_form(scores, form, sizes) for form in SUGARCREPE_FORMS)


def aro(scores: ByTask) -> float:
    """The mean of four tasks; those of Visual Genome are themselves means over categories."""
    return mean_of(scores, ARO)


def crepe(scores: ByTask) -> float:
    """The mean of atomic foils, swaps and negations (CREPE-Productivity)."""
    return mean_of(scores, CREPE)


def eqben(scores: ByTask) -> float:
    """The mean group score over five sources of images, one of which, Kubric, has three tasks."""
    return fmean([*(scores[task] for task in EQBEN_OTHERS), mean_of(scores, EQBEN_KUBRIC)])


def imagecode(scores: ByTask, sizes: Sizes = IMAGECODE_SIZES) -> float:
    """The accuracy over all descriptions, of video frames and of static images."""
    return micro(scores, sizes, tuple(IMAGECODE_SIZES))


def svo_probes(scores: ByTask) -> float:
    """The mean of wrong subjects, verbs and objects."""
    return mean_of(scores, SVO_PROBES)


def valse(scores: ByTask) -> float:
    """The mean of seven phenomena, some of them with two or three tasks."""
    return fmean(mean_of(scores, tasks) for tasks in VALSE_GROUPS.values())


def vl_checklist(scores: ByTask) -> float:
    """The mean of objects, attributes and relations, each the mean of its tasks (`Object_Size_large`, …)."""
    return fmean(
        fmean(vl_checklist_task(scores, group, task) for task in tasks) for group, tasks in VL_CHECKLIST.items()
    )


def vl_checklist_task(scores: ByTask, group: str, task: str) -> float:
    """A task's score, or the mean over its sources (`Object_Size_large/swig`, …)."""
    name = f"{group}_{task}"
    if name in scores:
        return scores[name]
    return mean_of(scores, tuple(f"{name}/{source}" for source in VL_CHECKLIST_SOURCES[group, task]))


def whatsup(scores: ByTask) -> float:
    """The mean of six tasks."""
    return mean_of(scores, WHATSUP)


def winoground(scores: ByTask) -> float:
    """The group score."""
    return scores["winoground"]


def spec(scores: ByTask) -> float:
    """The mean over six tasks of the choices of captions and of images, or of the score of groups of both."""
    directions = tuple(task + direction for task in SPEC for direction in (TEXT, IMAGE))
    return mean_of(scores, SPEC if scores.keys() >= set(SPEC) else directions)


def colorswap(scores: ByTask) -> float:
    """The group score."""
    return scores["colorswap"]


def mmvp_vlm(scores: ByTask) -> float:
    """The mean group score over nine patterns, which is stricter than the authors' own score."""
    return mean_of(scores, MMVP_VLM)


def mmvp_vlm_image(scores: ByTask) -> float:
    """The authors' own score: the mean over nine patterns of how often both captions choose their image."""
    return mean_of(scores, tuple(pattern + IMAGE for pattern in MMVP_VLM))


def half_truths(scores: ByTask) -> float:
    """The mean of things and relations, each the mean of its tasks: kinds of wrong details."""
    return fmean(mean_of(scores, tasks) for tasks in HALF_TRUTHS.values())


def zero_shot(scores: ByTask) -> float:
    """FSC-CLIP's ZS: the mean of 21 classification tasks."""
    return mean_of(scores, ELEVATER)


def retrieval(scores: ByTask, direction: str) -> float:
    """FSC-CLIP's I2T or T2I (`i2t`, `t2i`): the mean over three data sets of recall at 1, `<data set>::i2t/R@1`."""
    return mean_of(scores, tuple(f"{name}::{direction}/R@1" for name in RETRIEVAL))


def comp(by_benchmark: ByTask) -> float:
    """FSC-CLIP's Comp: the mean of eleven benchmarks' numbers."""
    return mean_of(by_benchmark, COMP)


Rule = Callable[[ByTask, Sizes], float]


def _unsized(rule: Callable[[ByTask], float]) -> Rule:
    return lambda scores, _: rule(scores)


# The rules of each benchmark; AVERAGE names the one of FSC-CLIP's Table 1.
AVERAGE = "average"
MACRO = "macro"
RULES: Mapping[str, Mapping[str, Rule]] = {
    "sugarcrepe": {
        MACRO: _unsized(sugarcrepe_macro),
        "REPLACE": lambda scores, sizes: sugarcrepe_form(scores, "REPLACE", sizes),
        "SWAP": lambda scores, sizes: sugarcrepe_form(scores, "SWAP", sizes),
        "ADD": lambda scores, sizes: sugarcrepe_form(scores, "ADD", sizes),
        AVERAGE: sugarcrepe,
    },
    "imagecode": {AVERAGE: imagecode},
    "mmvp_vlm": {AVERAGE: _unsized(mmvp_vlm), "official": _unsized(mmvp_vlm_image)},
    "retrieval": {
        "i2t": lambda scores, _: retrieval(scores, "i2t"),
        "t2i": lambda scores, _: retrieval(scores, "t2i"),
    },
    **{
        name: {AVERAGE: _unsized(rule)}
        for name, rule in {
            **{"aro": aro, "crepe": crepe, "eqben": eqben, "svo_probes": svo_probes, "valse": valse},
            **{"vl_checklist": vl_checklist, "whatsup": whatsup, "winoground": winoground, "spec": spec},
            **{"colorswap": colorswap, "elevater": zero_shot, "half_truths": half_truths},
        }.items()
    },
}


def aggregates(benchmark: str, scores: ByTask, sizes: Sizes) -> dict[str, float]:
    """Compute the numbers of a benchmark's rules for which all tasks have scores; none for an unknown benchmark.

    An unknown benchmark whose tasks are types of pairs has a number for each form. `sizes` are the numbers of records
    of each task. Both names of SPELLINGS are accepted.
    """
    found = {}
    known = {SPELLINGS.get(task, task): value for task, value in scores.items()}
    rules = RULES.get(SPELLINGS.get(benchmark, benchmark))
    if rules is None:
        return pair_forms(known, sizes)
    for name, rule in rules.items():
        try:
            found[name] = rule(known, sizes)
        except KeyError:
            continue
    return found
