"""One number for a benchmark of several tasks, by the rules of the two papers' tables.

FSC-CLIP's "average of sub-tasks" is nested: some tasks are combined before the average, and some are weighted by their
records. Scores are in percent, by task; a rule raises KeyError with the name of a missing task.

SugarCrepe has three rules, which differ by up to a point: the dissertation's mean of its seven types (Table 4.6), the
accuracy over all records of a form (Tables 4.5 and C.4), and FSC-CLIP's mean of the three forms (Table 1).
"""

from collections.abc import Callable, Iterable, Mapping
from statistics import fmean

from services.jobs.sugarcrepe import FORMS

ByTask = Mapping[str, float]
Sizes = Mapping[str, int]
# The name of a task, or a group of tasks that count as one.
Nested = str | tuple["Nested", ...]

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
IMAGECODE_SIZES = {"videos": 1872, "static": 430}

# Names in the tables that FSC-CLIP's authors publish with their evaluation, and the names here.
SPELLINGS = {"VG_Attribute": "VG_Attribution", "elevator": "elevater"}

ARO_VISUAL_GENOME = ("VG_Relation", "VG_Attribution")
ARO_ORDERS = ("Flickr30k_Order", "COCO_Order")
ARO = (*ARO_VISUAL_GENOME, *ARO_ORDERS)
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
VALSE_TASKS = tuple(task for tasks in VALSE_GROUPS.values() for task in tasks)
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


def mean_of(scores: ByTask, tasks: Iterable[Nested]) -> float:
    """The unweighted mean of some tasks, of which a group counts as one: the mean of its own."""
    return fmean(scores[task] if isinstance(task, str) else mean_of(scores, task) for task in tasks)


def micro(scores: ByTask, sizes: Sizes, tasks: tuple[str, ...]) -> float:
    """The mean over all records of some tasks: the tasks' mean, weighted by their numbers of records."""
    return fmean((scores[task] for task in tasks), [sizes[task] for task in tasks])


def sugarcrepe_form(scores: ByTask, form: str, sizes: Sizes = SUGARCREPE_SIZES) -> float:
    """REPLACE, SWAP or ADD (Tables 4.5 and C.4): over all records of the form."""
    return micro(scores, sizes, SUGARCREPE_FORMS[form])


def sugarcrepe(scores: ByTask, sizes: Sizes = SUGARCREPE_SIZES) -> float:
    """FSC-CLIP's average: the mean of the three forms."""
    return fmean(sugarcrepe_form(scores, form, sizes) for form in SUGARCREPE_FORMS)


def pair_forms(scores: ByTask, sizes: Sizes) -> dict[str, float]:
    """Compute the accuracy over all pairs of each form that has some; nothing if other tasks are among them, or
    some without a size."""
    if scores.keys() - {kind for kinds in FORMS.values() for kind in kinds if kind in sizes}:
        return {}
    found = {form: tuple(kind for kind in kinds if kind in scores) for form, kinds in FORMS.items()}
    return {form: micro(scores, sizes, kinds) for form, kinds in found.items() if kinds}


def vl_checklist(scores: ByTask) -> float:
    """The mean of objects, attributes and relations."""
    return fmean(vl_checklist_group(scores, group) for group in VL_CHECKLIST)


def vl_checklist_group(scores: ByTask, group: str) -> float:
    """The mean of a group's tasks, such as `Object_Size_large`, which are scores or means over the sources of images,
    such as `Object_Size_large/swig`."""
    names = {f"{group}_{task}": VL_CHECKLIST_SOURCES[group, task] for task in VL_CHECKLIST[group]}
    return mean_of(
        scores,
        [
            name if name in scores else tuple(f"{name}/{source}" for source in sources)
            for name, sources in names.items()
        ],
    )


def spec(scores: ByTask) -> float:
    """The mean over six tasks of the choices of captions and of images, or of the score of groups of both."""
    directions = tuple(task + direction for task in SPEC for direction in (TEXT, IMAGE))
    return mean_of(scores, SPEC if scores.keys() >= set(SPEC) else directions)


def comp(by_benchmark: ByTask) -> float:
    """FSC-CLIP's Comp: the mean of eleven benchmarks' numbers."""
    return mean_of(by_benchmark, COMP)


Rule = Callable[[ByTask, Sizes], float]


def _mean(*tasks: Nested) -> Rule:
    return lambda scores, _: mean_of(scores, tasks)


def _vl_group(group: str) -> Rule:
    return lambda scores, _: vl_checklist_group(scores, group)


def _form(form: str) -> Rule:
    return lambda scores, sizes: sugarcrepe_form(scores, form, sizes)


# The rules of each benchmark; AVERAGE names the one of FSC-CLIP's Table 1.
AVERAGE = "average"
MACRO = "macro"
RULES: Mapping[str, Mapping[str, Rule]] = {
    # the dissertation's Average (Table 4.6) is the mean of the seven types
    "sugarcrepe": {
        MACRO: _mean(*SUGARCREPE_SIZES),
        **{form: _form(form) for form in SUGARCREPE_FORMS},
        AVERAGE: sugarcrepe,
    },
    "aro": {AVERAGE: _mean(*ARO)},
    "crepe": {AVERAGE: _mean(*CREPE)},
    # the group score over five sources of images, one of which, Kubric, has three tasks
    "eqben": {AVERAGE: _mean(*EQBEN_OTHERS, EQBEN_KUBRIC)},
    "imagecode": {AVERAGE: lambda scores, sizes: micro(scores, sizes, tuple(IMAGECODE_SIZES))},
    "svo_probes": {AVERAGE: _mean(*SVO_PROBES)},
    "valse": {AVERAGE: _mean(*VALSE_GROUPS.values())},
    "vl_checklist": {
        AVERAGE: lambda scores, _: vl_checklist(scores),
        **{group: _vl_group(group) for group in VL_CHECKLIST},
    },
    "whatsup": {AVERAGE: _mean(*WHATSUP)},
    "winoground": {AVERAGE: _mean("winoground")},
    "spec": {AVERAGE: lambda scores, _: spec(scores)},
    "colorswap": {AVERAGE: _mean("colorswap")},
    # the authors' own: how often both captions choose their image
    "cola": {"official": _mean("cola" + IMAGE)},
    # the mean group score over nine patterns, and the authors' own: how often both captions choose their image
    "mmvp_vlm": {AVERAGE: _mean(*MMVP_VLM), "official": _mean(*(pattern + IMAGE for pattern in MMVP_VLM))},
    "half_truths": {AVERAGE: _mean(*HALF_TRUTHS.values())},
    # FSC-CLIP's ZS
    "elevater": {AVERAGE: _mean(*ELEVATER)},
    # FSC-CLIP's I2T and T2I: the mean over three data sets of recall at 1
    "retrieval": {way: _mean(*(f"{name}::{way}/R@1" for name in RETRIEVAL)) for way in ("i2t", "t2i")},
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
