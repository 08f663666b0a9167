"""The README's table of results: one row a claim, the worst results among them."""

import json

from services.predict.evaluation.results import RESULT_FILES as STUDENT_FILES
from services.predict.evaluation.results import Estimate, estimate
from starters.score.evaluation.starter_tables import RESULT_FILES as CAPTION_FILES
from tests.documentation.benchmark_figures import latest
from tests.documentation.blocks import table
from tests.documentation.results import CALIBRATED, RESULTS, VANILLA, described, litm_accuracies, unseen_embedder


def headline_table() -> str:
    rows = [*_retrieval(), _answers(), _students(), _captions(), _negatives(), *_serving()]
    return table(("measured", "baseline", "Fovea", "details"), rows)


def _page(name: str) -> str:
    return f"[{name}](docs/results/{name}.md)"


def _retrieval() -> list[tuple[str, ...]]:
    plain, tuned = (described("embed", starter)["metrics"] for starter in ("clip-shapes", "focallens-shapes"))
    rows = (
        ("retrieval by color, by shape and by both under a condition, mAP", "average_map", tuned),
        ("retrieval by texture, mAP", "map_texture", tuned),
        ("retrieval by texture if tuning never asked for it, mAP", "map_texture", unseen_embedder()["metrics"]),
    )
    return [
        (title, f"{plain[metric]:.1f} (CLIP)", f"{metrics[metric]:.1f}", _page("embed"))
        for title, metric, metrics in rows
    ]


def _answers() -> tuple[str, ...]:
    vanilla, calibrated = (litm_accuracies(row)[-1] for row in (VANILLA, CALIBRATED))
    title = "answers from 10 documents, average over the positions of the gold document, accuracy"
    return title, f"{vanilla:.1f} (uncalibrated)", f"{calibrated:.1f}", _page("generate")


def _students() -> tuple[str, ...]:
    results = STUDENT_FILES.load([RESULTS / "distill.json"])
    labels, reasons = (
        estimate(next(r for r in results if (r.data, r.method, r.fraction) == ("word-problems", method, 1.0)))
        for method in ("standard", "step-by-step")
    )
    title = "word problems, student trained on rationales, accuracy"
    return title, f"{_with_error(labels)} (labels alone)", _with_error(reasons), _page("predict")


def _captions() -> tuple[str, ...]:
    recorded = {result.run: list(result.scores.values()) for result in CAPTION_FILES.load([RESULTS / "score.json"])}
    before, served = (
        sum(scores["swap_att"] for scores in recorded[run]) / len(recorded[run]) for run in ("base", "wise-ft-local")
    )
    title = "captions that name a relation, distinguished from captions with exchanged attributes, accuracy"
    return title, f"{before:.1f} (before tuning)", f"{served:.1f}", _page("score")


def _negatives() -> tuple[str, ...]:
    recorded = json.loads((RESULTS / "curate.json").read_text())["refinement"]["results"]
    kind, model = "swap_obj", "plausibility"
    result = next(one for one in recorded if (one["kind"], one["model"]) == (kind, model))
    title = f"published captions of `{kind}` that a model prefers to their hard negatives without seeing the image, %"
    before, after = (f"{result[stage]['accuracy']:.1f}" for stage in ("before", "after"))
    return title, f"{before} (as written)", f"{after} (refined; a guess is 50)", _page("curate")


def _serving() -> list[tuple[str, ...]]:
    ratios = {
        (load, peer): found["fovea_over"][peer]["throughput"]["median"]
        for load, found in latest("peers")["loads"].items()
        for peer in ("litserve", "infinity", "fastapi")
    }
    least = min(ratios.values())
    faiss = latest("search")["approximate"]["ratio_per_s"]["median"]
    nginx = latest("gateway")["json_throughput_ratio_to_nginx"]["median"]
    others = f"LitServe, Infinity, FastAPI: the lowest of {len(ratios)} comparisons"
    return [
        ("images/s over HTTP, ViT-B-32", f"1 ({others})", f"{least:.2f}", _page("serving")),
        ("approximate search over HTTP, queries/s", "1 (FAISS in process)", f"{faiss:.2g}", _page("serving")),
        ("gateway, requests/s", "1 (nginx)", f"{nginx:.2g}", _page("serving")),
    ]


def _with_error(accuracy: Estimate) -> str:
    return f"{accuracy.mean:.1f} ± {accuracy.error:.1f}"
