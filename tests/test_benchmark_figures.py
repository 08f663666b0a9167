"""Every figure of a benchmark that a page states is the latest recorded one."""

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text()


def latest(benchmark: str) -> Any:
    """Return the benchmark's latest recorded result."""
    lines = (ROOT / "benchmarks" / "results.jsonl").read_text().splitlines()
    return [line for line in map(json.loads, lines) if line["benchmark"] == benchmark][-1]


def figure(benchmark: str, *path: str) -> str:
    """A median of the latest recorded run with its least and greatest, or a single number, as the README writes it."""
    found = latest(benchmark)
    for key in path:
        found = found[key]
    if not isinstance(found, dict):
        return f"{found:,}" if isinstance(found, int) else f"{found:.4g}"
    return f"{found['median']:.4g} ({found['min']:.4g} to {found['max']:.4g})"


EMBED_FIGURES = [
    ("HTTP embed throughput over a plain torch loop's, ViT-B-32, concurrency 32", ("embed", "throughput", "ratio")),
    ("what HTTP adds to one image's median, ms", ("embed", "latency", "added_ms")),
    ("… of, in the plain loop, ms", ("embed", "latency", "loop_ms")),
    ("three calls over one call with three conditions, `readout`", ("embed", "three_conditions_readout", "ratio")),
    ("… `full`", ("embed", "three_conditions_full", "ratio")),
]
SEARCH_FIGURES = [
    ("a new condition's index over 2,000 images: seconds, images re-read from states", ("conditions", "reread_s")),
    ("… seconds, images decoded and encoded again", ("conditions", "reencoded_s")),
    ("… ratio", ("conditions", "ratio")),
    ("… ratio in the engine alone, one thread", ("states", "read_speedup")),
    ("bytes of an image's state", ("conditions", "state_bytes_per_image")),
    ("first answer under a new condition, ms", ("conditions", "first_answer_ms")),
    ("… once its index is ready, ms", ("conditions", "ready_answer_ms")),
    ("… recall@10 of the first answer", ("conditions", "first_recall_at_10")),
    ("exact search among 100,000 × 512 over HTTP, queries/s over bare FAISS's", ("search", "exact", "ratio_per_s")),
    ("… what HTTP adds to a query, ms", ("search", "exact", "added_ms")),
    ("… of, in bare FAISS, ms", ("search", "exact", "faiss_ms")),
    ("approximate, queries/s over bare FAISS's (IVF)", ("search", "approximate", "ratio_per_s")),
    ("… what HTTP adds to a query, ms", ("search", "approximate", "added_ms")),
    ("… of, in bare FAISS, ms", ("search", "approximate", "faiss_ms")),
    ("… recall@10", ("search", "approximate", "recall_at_10")),
    ("… recall@10 of bare FAISS", ("search", "approximate", "faiss_recall_at_10")),
    ("ingest over HTTP, images/s over a plain loop's that only embeds, ViT-B-32", ("ingest", "photographs", "ratio")),
    ("… the starter and scenes", ("ingest", "scenes", "ratio")),
]
CALIBRATED = [
    (f"{title}, {count} documents", ("calibration", f"{count}_documents", "over_vanilla", row))
    for title, row in (
        ("time to first token over vanilla's: `cached`", "cached"),
        ("… `single`", "single"),
        ("… `tree`", "tree"),
        ("… `tree`, dummies of 16 tokens, window of 256, rel of half the layers", "tree, all three"),
        ("… `exact`", "exact"),
        ("… the dissertation's K + 1 passes, one after the other", "exact, K + 1 unbatched passes"),
    )
    for count in (10, 20)
]
GENERATE_FIGURES = [
    *CALIBRATED,
    *(
        (
            f"time per output token over vanilla's, {count} documents",
            ("output_token", f"{count}_documents", "over_vanilla"),
        )
        for count in (10, 20)
    ),
    (
        "bytes that measuring attention adds to a prefill's peak, 20 documents",
        ("calibration", "added_peak_bytes", "measure"),
    ),
    ("… transformers' `output_attentions`", ("calibration", "added_peak_bytes", "output_attentions")),
    ("output tokens/s over HTTP over transformers' `generate` in a loop", ("generate", "over_loop")),
    ("… in left-padded batches of 16", ("generate", "over_batches")),
]
PREDICT_FIGURES = [
    ("labels/s over HTTP over the bare engine's, t5-small, concurrency 32", ("predict", "throughput", "ratio")),
    ("… one request of 2,048 inputs", ("predict", "throughput", "one_request_ratio")),
    ("what HTTP adds to a lone label's median, ms", ("predict", "latency", "added_ms")),
    ("… of, in the bare engine, ms", ("predict", "latency", "engine_label_ms")),
    (
        "a label with a rationale of 32 tokens over the label alone, time",
        ("predict", "latency", "rationale_over_label"),
    ),
    ("memory of a process with one t5-small, bytes", ("predict", "memory", "one_tasks_resident_bytes")),
    ("… two", ("predict", "memory", "two_tasks_resident_bytes")),
    ("… two, asked in turn, where the budget holds one", ("predict", "memory", "budget_tasks_resident_bytes")),
    ("… a request that waits for its model to be loaded again, ms", ("predict", "memory", "reload_request_ms")),
]
SCORE_FIGURES = [
    *(
        (f"{title}, {name}", ("score", f"{model}, {work}", ratio))
        for model, name in (("ViT-B-32", "ViT-B-32"), ("small", "a small model"))
        for title, work, ratio in (
            ("100 captions of an image over HTTP, times as fast as open_clip in a loop", "1 x 100", "loop_over_http"),
            ("… as open_clip batched by hand", "1 x 100", "batched_over_http"),
            ("32 images with 8 captions each, as open_clip in a loop", "32 x 8", "loop_over_http"),
            ("… as open_clip batched by hand", "32 x 8", "batched_over_http"),
            ("100 captions asked before, times as fast as new ones", "asked before", "ratio"),
            ("the local score's share of the time of the global one, in the engine", "local score", "added_share"),
        )
    ),
    *(
        (f"{title}, {name}", ("tuning", model, ratio))
        for model, name in (
            ("ViT-B-32, batch 32, 3 steps", "ViT-B-32, batch 32"),
            ("small, batch 32, 12 steps", "a small model, batch 32"),
        )
        for title, ratio in (
            (
                "tuning images/s over open_clip's own loop with the plain loss: `clip`, the same loss",
                "clip_over_open_clip",
            ),
            ("… `fsc-clip` with three hard negatives a caption", "fsc-clip_over_open_clip"),
        )
    ),
    *(
        (title, ("negatives", "kinds", kinds, f"{known}_captions_per_s"))
        for title, kinds, known in (
            ("hard negatives of the paper's three kinds, captions/s on one core", "the paper's three", "new"),
            ("… of captions made negatives of before", "the paper's three", "known"),
            ("… all four kinds", "all four", "new"),
        )
    ),
]
OTHER_FIGURES = [
    ("what the gateway adds to a request's median, µs", ("gateway", "json_gateway_added_p50_us")),
    ("… nginx as the same proxy, µs", ("gateway", "json_nginx_added_p50_us")),
    ("gateway requests/s over nginx's, JSON, concurrency 32", ("gateway", "json_throughput_ratio_to_nginx")),
    ("… streams of 20 chunks", ("gateway", "stream_throughput_ratio_to_nginx")),
    ("batcher, CPU µs an item, empty engine", ("batcher", "cpu_us_per_item")),
    ("batcher, CPU seconds in 2 idle seconds", ("batcher", "idle_cpu_s")),
]


def benchmark_table() -> str:
    """The README's table of benchmarks as it must read."""
    rows = [*EMBED_FIGURES, *SEARCH_FIGURES, *GENERATE_FIGURES, *PREDICT_FIGURES, *SCORE_FIGURES, *OTHER_FIGURES]
    lines = ["| figure | median (least to greatest) |", "| --- | --- |"]
    return "\n".join([*lines, *(f"| {name} | {figure(*path)} |" for name, path in rows)]) + "\n"


def peers_table() -> str:
    """The README's table of other servers as it must read."""
    loads = latest("peers")["loads"]
    lines = ["| Fovea's images/s over … | LitServe's | Infinity's | FastAPI's |", "| --- | --- | --- | --- |"]
    for load, found in loads.items():
        ratios = [found["fovea_over"][peer]["throughput"]["median"] for peer in ("litserve", "infinity", "fastapi")]
        lines.append(f"| {load} | {' | '.join(f'{ratio:.2f}' for ratio in ratios)} |")
    return "\n".join(lines) + "\n"


def scenes_table() -> str:
    """The README's table of the scenes that were searched over HTTP as it must read."""
    scenes = latest("scenes")
    names = list(scenes["clip_map"])
    unseen = {"texture", "size and color"}
    head = " | ".join(f"{name}\\*" if name in unseen else name for name in names)
    lines = [f"| mAP | {head} |", "| --- |" + " --- |" * len(names)]
    for title, row in (("CLIP", "clip_map"), ("no condition", "plain_map"), ("the condition", "conditional_map")):
        lines.append(f"| {title} | {' | '.join(f'{scenes[row][name]:.1f}' for name in names)} |")
    return "\n".join(lines) + "\n"


def labels_table() -> str:
    """The README's table of back ends that find labels as it must read."""
    lines = (ROOT / "benchmarks" / "results.jsonl").read_text().splitlines()
    figures: dict[str, Any] = {}
    for run in map(json.loads, lines):
        figures |= run["figures"] if run["benchmark"] == "predict_engines" else {}
    columns = {
        "`generate`, 10 tokens": "transformers generate, 10 tokens",
        "Fovea float32": "float32, best",
        "all probabilities": "float32, all",
        "Fovea int8": "int8, best",
        "CTranslate2 float32": "CTranslate2 float32, greedy",
        "CTranslate2 int8": "CTranslate2 int8, greedy",
    }
    table = [
        f"| faster than `generate` held to the labels | {' | '.join(columns)} | `generate`, ms |",
        "| --- |" + " --- |" * (len(columns) + 1),
    ]
    for shape in ("small", "base"):
        for count in (3, 77):
            for batch in (1, 32):
                work = f"{shape}, {count} labels, taught, batch {batch}"
                held = figures[f"{work}: transformers generate"]["median"]
                ratios = [f"{figures[f'{work}: {name}']['first_over_it']['median']:.1f}" for name in columns.values()]
                title = f"t5-{shape}, {count} labels, batch {batch}"
                table.append(f"| {title} | {' | '.join(ratios)} | {held:.0f} |")
    return "\n".join(table) + "\n"


@pytest.mark.parametrize("table", [benchmark_table, peers_table, scenes_table, labels_table])
def test_the_readmes_figures_are_the_latest_recorded(table: Callable[[], str]) -> None:
    assert table() in README, table()


def bulk_table() -> str:
    """The bulk guide's table of benchmarks as it must read."""
    kinds = {"scenes": "scenes of 64 × 64 pixels, JPEG", "photographs": "photographs of 640 × 480 pixels, JPEG"}
    lines = ["| images | `embed-bulk`, images/s | loop, images/s | ratio |", "| --- | --- | --- | --- |"]
    for kind, title in kinds.items():
        columns = [figure("bulk", kind, name) for name in ("job_images_per_s", "loop_images_per_s", "ratio")]
        lines.append(f"| {title} | {' | '.join(columns)} |")
    return "\n".join(lines) + "\n"


def test_the_bulk_guides_figures_are_the_latest_recorded() -> None:
    page = (ROOT / "docs" / "guide" / "bulk.md").read_text()
    assert bulk_table() in page, bulk_table()
    bulk = latest("bulk")
    stated = f"{bulk['scenes']['images']:,} scenes or {bulk['photographs']['images']} photographs"
    assert stated in page


@pytest.mark.parametrize(("row", "starter"), [("CLIP, no condition", "clip-shapes"), ("FocalLens", "focallens-shapes")])
def test_the_readmes_accuracies_are_those_in_the_starters_manifests(row: str, starter: str) -> None:
    description = ROOT / "services" / "embed" / "starter" / starter / "checkpoint.json"
    metrics = json.loads(description.read_text())["metrics"]
    columns = ("color", "shape", "both", "average", "size", "background", "position", "texture", "size_and_color")
    names = [f"map_{name}" for name in columns]
    stated = re.findall(rf"^\| {row} \| (.*) \|$", README, re.MULTILINE)[0].split(" | ")
    expected = [metrics["average_map" if name == "map_average" else name] for name in names]
    expected += [metrics["held_out_map_shape"]]
    assert stated == [*(f"{value:.1f}" for value in expected), f"{metrics['continuous_color_spearman']:.3f}"]
