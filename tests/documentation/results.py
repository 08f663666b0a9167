"""Tables of recorded results: of the starters' evaluations, and of the benchmarks."""

import json
import statistics
from typing import Any

from services.predict.evaluation.results import RESULT_FILES as STUDENT_FILES
from services.predict.evaluation.results import make_tables
from starters.curate import recorded, recorded_trainings
from starters.score.evaluation.starter_tables import RESULT_FILES as CAPTION_FILES
from starters.score.evaluation.starter_tables import tables as caption_tables
from starters.visitor.questions import Service
from starters.visitor.results import RESULT_FILES as VISITOR_FILES
from starters.visitor.tables import make_case_table, make_reliability_table
from starters.visitor.tables import make_table as make_visitor_table
from tests.documentation.blocks import ROOT, table

RESULTS = ROOT / "docs" / "results"
# `fovea evaluate litm` of three trainings that differ in their seed alone; the first is the starter.
LITM_SEEDS = ["seed-0", "seed-1", "seed-2"]
# `python -m starters visitor --run …`: the narrowly trained starters, and those that replace them.
VISITOR_RUNS = ("before", "after")
VANILLA, CALIBRATED = "Vanilla attention", "Calibrated attention"


def described(service: str, starter: str) -> dict[str, Any]:
    """The description of a packaged starter."""
    path = ROOT / "services" / service / "starter" / starter / "checkpoint.json"
    found: dict[str, Any] = json.loads(path.read_text())
    return found


def unseen_embedder() -> dict[str, Any]:
    """The description of a FocalLens that was never asked for textures, tuned from the same CLIP as the starter."""
    found: dict[str, Any] = json.loads((RESULTS / "embed.json").read_text())
    return found


def llavas() -> dict[str, Any]:
    """The descriptions of a small LLaVA before FocalLens's tuning and after it."""
    found: dict[str, Any] = json.loads((RESULTS / "embed-mllm.json").read_text())
    return found


RETRIEVED = {
    "Color": "map_color",
    "Shape": "map_shape",
    "Both": "map_both",
    "average": "average_map",
    "size": "map_size",
    "background": "map_background",
    "position": "map_position",
    "texture": "map_texture",
    "size and color\\*": "map_size_and_color",
    "Shape, pairs held out": "held_out_map_shape",
}


def retrieval_table() -> str:
    rows = []
    for title, found in (
        ("CLIP, no condition", described("embed", "clip-shapes")),
        ("FocalLens", described("embed", "focallens-shapes")),
        ("FocalLens, never asked for textures", unseen_embedder()),
    ):
        never = found["training"].get("never_asked", "").split(",")
        rows.append(_retrieved(title, found["metrics"], "texture" if "texture" in never else ""))
    return table(("", *RETRIEVED, "continuous color, ρ"), rows)


def mllm_table() -> str:
    """FocalLens-CLIP beside a small LLaVA, without an instruction and under each."""
    found = llavas()
    rows = (
        ("FocalLens-CLIP", described("embed", "focallens-shapes")["metrics"]),
        ("LLaVA, no instruction", found["base"]["without_instruction"]),
        ("LLaVA", found["base"]["metrics"]),
        ("FocalLens-MLLM, no instruction", found["tuned"]["without_instruction"]),
        ("FocalLens-MLLM", found["tuned"]["metrics"]),
    )
    return table(("", *RETRIEVED, "continuous color, ρ"), [_retrieved(title, metrics) for title, metrics in rows])


def _retrieved(title: str, metrics: dict[str, float], never_asked: str = "") -> tuple[str, ...]:
    cells = [f"{metrics[name]:.1f}" + ("\\*" if column == never_asked else "") for column, name in RETRIEVED.items()]
    return (title, *cells, f"{metrics['continuous_color_spearman']:.3f}")


def wordings_table() -> str:
    """mAP of the starter under wordings of tuning and others, and of pictures of any rendering."""
    metrics = described("embed", "focallens-shapes")["metrics"]
    heads = {
        "usual wording": "map_{}",
        "wordings of tuning": "map_{}_worded",
        "held-out wordings": "map_{}_worded_anew",
        "usual wording, any rendering": "wider_map_{}",
    }
    rows = [(name, *(f"{metrics[key.format(name)]:.1f}" for key in heads.values())) for name in ("color", "shape")]
    return table(("asked for the", *heads), rows)


def reader_table() -> str:
    """The reader's measures on generated questions of other seeds, in percent."""
    metrics = described("generate", "open-facts")["metrics"]
    columns = {
        "answered": "right, of answerable",
        "falsely_refused": "refused, of answerable",
        "refused": "refused, of unanswerable",
        "calibration_error": "calibration error of `relevance`",
    }
    rows = [
        (title, *(f"{100 * metrics[name][column]:.1f}" for column in columns))
        for title, name in (("1 to 3", "few_documents"), ("10", "most_documents"))
    ]
    return table(("documents", *columns.values()), rows)


def litm_results() -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads((RESULTS / "litm.json").read_text())
    return found


def litm_scores(protocol: str) -> list[dict[str, dict[str, float]]]:
    """By seed."""
    results = [one for one in litm_results() if one["protocol"] == protocol]
    assert [one["model"] for one in results] == LITM_SEEDS
    return [one["scores"] for one in results]


def litm_mean(protocol: str, row: str, column: str) -> float:
    return statistics.fmean(scores[row][column] for scores in litm_scores(protocol))


def litm_accuracies(row: str) -> list[float]:
    """By the place of the gold document and at last their average; means over the seeds."""
    cells = [litm_mean("accuracy", row, str(position)) for position in range(10)]
    return [*cells, statistics.fmean(cells)]


def accuracy_table() -> str:
    rows = [
        (title, *(f"{cell:.1f}" for cell in litm_accuracies(row)))
        for title, row in (("vanilla", VANILLA), ("calibrated", CALIBRATED))
    ]
    return table(("position of the gold document", *(str(place) for place in range(1, 11)), "average"), rows)


def seeds_table() -> str:
    heads = [f"{where}{how}" for how in ("", ", calibrated") for where in ("ends", "middle", "average")]
    rows = []
    for number, scores in enumerate(litm_scores("accuracy")):
        cells = []
        for row in (VANILLA, CALIBRATED):
            by_position = scores[row]
            cells += [statistics.fmean(by_position[str(place)] for place in places) for places in ((0, 9), (4, 5))]
            cells.append(statistics.fmean(by_position.values()))
        rows.append((str(number), *(f"{cell:.1f}" for cell in cells)))
    return table(("training seed", *heads), rows)


def recall_table() -> str:
    titles = {
        f"{CALIBRATED}, layers": "calibrated attention of the profile's layers",
        f"{VANILLA}, layers": "vanilla attention of these layers",
        CALIBRATED: "calibrated attention of all layers",
        VANILLA: "vanilla attention of all layers",
        "LongLLMLingua-r_k": "query likelihood",
        "Relevance generation": "relevance prompt",
        "Query generation": "query generation",
    }
    by_seed = litm_scores("recall")
    rows = [
        (title, f"{statistics.fmean(_recall(scores, row) for scores in by_seed):.3f}") for row, title in titles.items()
    ]
    return table(("ranked by", "recall@3"), rows)


def _recall(scores: dict[str, dict[str, float]], row: str) -> float:
    """The recall of a row; without rows of the profile's layers, these are all layers."""
    found = [name for name in scores if name.startswith(row)] if row.endswith("layers") else [row]
    return scores[found[0] if found else row.partition(",")[0]]["recall_at_3"]


def estimates_table() -> str:
    forms = {"bias_spearman": ".2f", "rel_spearman": ".2f", "average": ".1f", "middle": ".1f", "prefills": ".2f"}
    rows = []
    for row, columns in litm_scores("estimates")[0].items():
        cells = [
            format(litm_mean("estimates", row, column), form) if column in columns else ""
            for column, form in forms.items()
        ]
        rows.append((row, *cells))
    heads = ("`bias`", "ρ of the bias", "ρ of rel", "accuracy", "accuracy, middle", "cost, prefills")
    return table(heads, rows)


def estimates_by_seed_table() -> str:
    """Accuracy with each estimate at the ends, in the middle and on average, for each seed."""
    by_seed = litm_scores("estimates")
    rows = [
        (row, *(f"{scores[row][where]:.1f}" for scores in by_seed for where in ("ends", "middle", "average")))
        for row in by_seed[0]
    ]
    heads = [f"{where}, {seed}" for seed in range(len(by_seed)) for where in ("ends", "middle", "average")]
    return table(("`bias`", *heads), rows)


def students_table() -> str:
    starters = ("word-problems", "inferences")
    metrics = {name: described("predict", name)["metrics"] for name in starters}
    measured = ("test_accuracy", "everyday_accuracy")
    rows = [(f"`{name}`", *(f"{100 * metrics[name][one]:.1f}" for one in measured)) for name in starters]
    return table(("starter", "narrow rows", "everyday rows, held out"), rows)


def distillation_table(task: str) -> str:
    """Accuracy of a task by method and share of the data."""
    results = [result for result in STUDENT_FILES.load([RESULTS / "distill.json"]) if result.data == task]
    (found,) = make_tables(results)
    return found.to_markdown().partition("\n\n")[2]


def caption_table(number: int) -> str:
    """0 is composition and recall, 1 zero-shot accuracy by attribute."""
    return caption_tables(CAPTION_FILES.load([RESULTS / "score.json"]))[number].to_markdown()


def visitor_table(service: Service) -> str:
    """The questions that a visitor asks of a service, before and after."""
    results = VISITOR_FILES.load([RESULTS / "visitor.json"])
    return make_visitor_table(service, results, VISITOR_RUNS).to_markdown().partition("\n\n")[2]


def reliability_table() -> str:
    """The share of the starters' probabilities that were about something right, by bin."""
    results = VISITOR_FILES.load([RESULTS / "visitor.json"])
    return make_reliability_table(results, VISITOR_RUNS[-1]).to_markdown().partition("\n\n")[2]


def visitor_cases_table() -> str:
    """The share of the cases made by hand that are right, before and after."""
    results = VISITOR_FILES.load([RESULTS / "visitor.json"])
    return make_case_table(results, VISITOR_RUNS).to_markdown().partition("\n\n")[2]


def curated() -> dict[str, Any]:
    """The record that `starters.curate.recorded` wrote of a refinement, audits and a comparison."""
    found: dict[str, Any] = json.loads((RESULTS / "curate.json").read_text())
    return found


def refinement_table() -> str:
    return recorded.refinement_table(curated()).to_markdown()


def audit_table() -> str:
    return recorded.audit_table(curated()).to_markdown()


def quality_table() -> str:
    return recorded.quality_table(curated()).to_markdown()


def trainings() -> dict[str, Any]:
    """The record of `python -m benchmarks.hard_negative_trainings`."""
    found: dict[str, Any] = json.loads((RESULTS / "curate-trainings.json").read_text())
    return found


def training_table() -> str:
    return recorded_trainings.training_table(trainings()).to_markdown().partition("\n\n")[2]


def seeing_table() -> str:
    return recorded_trainings.seeing_table(trainings()).to_markdown()


def general_table() -> str:
    return recorded_trainings.general_table(trainings()).to_markdown().partition("\n\n")[2]
