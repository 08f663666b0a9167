"""Tables of the latest recorded run of each benchmark."""

import functools
import json
from typing import Any

from benchmarks import autoscaling, drills
from tests.documentation.blocks import ROOT, table

Figure = tuple[str, tuple[str, ...]]


@functools.cache
def runs() -> list[dict[str, Any]]:
    lines = (ROOT / "benchmarks" / "results.jsonl").read_text().splitlines()
    return [json.loads(line) for line in lines]


def latest(benchmark: str, **wanted: object) -> Any:
    """The latest recorded run of a benchmark, of those with the `wanted` values."""
    wanted["benchmark"] = benchmark
    return [run for run in runs() if all(run.get(name) == value for name, value in wanted.items())][-1]


def figure(benchmark: str, *path: str) -> str:
    """A median of the latest recorded run with its least and greatest, or a single number."""
    found = latest(benchmark)
    for key in path:
        found = found[key]
    if not isinstance(found, dict):
        return f"{found:,}" if isinstance(found, int) else f"{found:.4g}"
    return f"{found['median']:.4g} ({found['min']:.4g} to {found['max']:.4g})"


EMBED: list[Figure] = [
    ("throughput over HTTP, ViT-B-32, concurrency 32: times a plain torch loop's", ("embed", "throughput", "ratio")),
    ("latency that HTTP adds to one image, ms (negative: faster than the loop)", ("embed", "latency", "added_ms")),
    ("latency of one image in the plain loop, ms", ("embed", "latency", "loop_ms")),
    (
        "speed-up of one call with three conditions over three calls, `readout`",
        ("embed", "three_conditions_readout", "ratio"),
    ),
    (
        "speed-up of one call with three conditions over three calls, `full`",
        ("embed", "three_conditions_full", "ratio"),
    ),
]
SEARCH: list[Figure] = [
    ("indexing 2,000 images under a new condition, from stored states, s", ("conditions", "reread_s")),
    ("indexing 2,000 images under a new condition, encoding the images again, s", ("conditions", "reencoded_s")),
    ("speed-up by stored states", ("conditions", "ratio")),
    ("speed-up by stored states in the engine alone, one thread", ("states", "read_speedup")),
    ("size of an image's stored state, bytes", ("conditions", "state_bytes_per_image")),
    ("first answer under a new condition, ms", ("conditions", "first_answer_ms")),
    ("answer under the same condition once its index is ready, ms", ("conditions", "ready_answer_ms")),
    ("recall@10 of the first answer under a new condition", ("conditions", "first_recall_at_10")),
    (
        "exact search among 100,000 × 512 over HTTP: queries/s, times those of FAISS in process",
        ("search", "exact", "ratio_per_s"),
    ),
    ("exact search: latency that HTTP adds, ms", ("search", "exact", "added_ms")),
    ("exact search: latency of FAISS in process, ms", ("search", "exact", "faiss_ms")),
    (
        "approximate search over HTTP: queries/s, times those of FAISS (IVF) in process",
        ("search", "approximate", "ratio_per_s"),
    ),
    ("approximate search: latency that HTTP adds, ms", ("search", "approximate", "added_ms")),
    ("approximate search: latency of FAISS in process, ms", ("search", "approximate", "faiss_ms")),
    ("approximate search: recall@10", ("search", "approximate", "recall_at_10")),
    ("approximate search: recall@10 of FAISS in process", ("search", "approximate", "faiss_recall_at_10")),
    (
        "ingest over HTTP, ViT-B-32: images/s, times those of a plain loop that only embeds",
        ("ingest", "photographs", "ratio"),
    ),
    (
        "ingest over HTTP, the starter and rendered scenes: images/s, times those of such a loop",
        ("ingest", "scenes", "ratio"),
    ),
]
GENERATE: list[Figure] = [
    *(
        (f"{title}, {count} documents", ("calibration", f"{count}_documents", "over_vanilla", row))
        for title, row in (
            ("time to first token, `cached`: times vanilla's", "cached"),
            ("time to first token, `single`: times vanilla's", "single"),
            ("time to first token, `tree`: times vanilla's", "tree"),
            (
                "time to first token, `tree` with dummies of 16 tokens, window of 256, rel of half the layers:"
                " times vanilla's",
                "tree, all three",
            ),
            ("time to first token, `exact`: times vanilla's", "exact"),
            (
                "time to first token, the dissertation's K + 1 passes one after the other: times vanilla's",
                "exact, K + 1 unbatched passes",
            ),
        )
        for count in (10, 20)
    ),
    *(
        (
            f"time per output token under calibration: times vanilla's, {count} documents",
            ("output_token", f"{count}_documents", "over_vanilla"),
        )
        for count in (10, 20)
    ),
    (
        "peak memory that measuring attention adds to a prefill, 20 documents, bytes",
        ("calibration", "added_peak_bytes", "measure"),
    ),
    (
        "peak memory that transformers' `output_attentions` adds to it, bytes",
        ("calibration", "added_peak_bytes", "output_attentions"),
    ),
    ("output tokens/s over HTTP: times those of transformers' `generate` in a loop", ("generate", "over_loop")),
    (
        "output tokens/s over HTTP: times those of `generate` in left-padded batches of 16",
        ("generate", "over_batches"),
    ),
]
PREDICT: list[Figure] = [
    (
        "labels/s over HTTP, t5-small, concurrency 32: times those of the engine in process",
        ("predict", "throughput", "ratio"),
    ),
    (
        "labels/s over HTTP, one request of 2,048 inputs: times those of the engine in process",
        ("predict", "throughput", "one_request_ratio"),
    ),
    ("latency that HTTP adds to a single label, ms", ("predict", "latency", "added_ms")),
    ("latency of a single label in the engine, ms", ("predict", "latency", "engine_label_ms")),
    (
        "time of a label with a rationale of 32 tokens: times that of the label alone",
        ("predict", "latency", "rationale_over_label"),
    ),
    ("memory of a process with one t5-small, bytes", ("predict", "memory", "one_tasks_resident_bytes")),
    ("memory of a process with two, bytes", ("predict", "memory", "two_tasks_resident_bytes")),
    (
        "memory of a process with two used alternately, with a budget for one, bytes",
        ("predict", "memory", "budget_tasks_resident_bytes"),
    ),
    (
        "latency of a request whose model has to be loaded again, ms",
        ("predict", "memory", "reload_request_ms"),
    ),
]
SCORE: list[Figure] = [
    *(
        (f"{title}, {name}", ("score", f"{model}, {work}", ratio))
        for model, name in (("ViT-B-32", "ViT-B-32"), ("small", "a small model"))
        for title, work, ratio in (
            ("100 captions of an image over HTTP: times as fast as open_clip in a loop", "1 x 100", "loop_over_http"),
            (
                "100 captions of an image over HTTP: times as fast as open_clip batched by hand",
                "1 x 100",
                "batched_over_http",
            ),
            ("32 images with 8 captions each: times as fast as open_clip in a loop", "32 x 8", "loop_over_http"),
            (
                "32 images with 8 captions each: times as fast as open_clip batched by hand",
                "32 x 8",
                "batched_over_http",
            ),
            ("100 cached captions: times as fast as new ones", "asked before", "ratio"),
            (
                "additional time of the local score as a share of the global one's, in the engine",
                "local score",
                "added_share",
            ),
        )
    ),
    *(
        (f"{title}, {name}, batch 32", ("tuning", model, ratio))
        for model, name in (("ViT-B-32, batch 32, 3 steps", "ViT-B-32"), ("small, batch 32, 12 steps", "a small model"))
        for title, ratio in (
            ("tuning with `clip`: images/s, times those of open_clip's loop with the same loss", "clip_over_open_clip"),
            (
                "tuning with `fsc-clip`, three hard negatives per caption: images/s, times those of open_clip's loop"
                " with the plain loss",
                "fsc-clip_over_open_clip",
            ),
        )
    ),
    *(
        (title, ("negatives", "kinds", kinds, f"{known}_captions_per_s"))
        for title, kinds, known in (
            ("hard negatives of the paper's three kinds, one core, captions/s", "the paper's three", "new"),
            ("hard negatives of repeated captions, captions/s", "the paper's three", "known"),
            ("hard negatives of all four kinds, captions/s", "all four", "new"),
        )
    ),
]
GATEWAY: list[Figure] = [
    ("median latency that the gateway adds to a request, µs", ("gateway", "json_gateway_added_p50_us")),
    ("median latency that nginx adds as a proxy, µs", ("gateway", "json_nginx_added_p50_us")),
    ("requests/s, JSON, concurrency 32: times nginx's", ("gateway", "json_throughput_ratio_to_nginx")),
    ("requests/s, streams of 20 chunks: times nginx's", ("gateway", "stream_throughput_ratio_to_nginx")),
    *(
        (
            f"CPU time that pools add to a request of {size} at the gateway, µs",
            ("pools", "bodies", size, "added_cpu_us"),
        )
        for size in ("2 KB", "200 KB", "2 MB")
    ),
    (
        "64 MB of JSON, searched for its model in a thread: longest pause of the event loop, ms",
        ("pools", "longest", "search_longest_pause_ms"),
    ),
    ("the same, parsed by orjson in a thread, ms", ("pools", "longest", "orjson_longest_pause_ms")),
    *(
        (
            f"{load} to `generate`, sent to {sent}: {title}",
            ("prefix_routing", "figures", f"{load}, {choice}", name),
        )
        for load in ("questions", "chats")
        for name, title in (
            ("cached_share", "cached share of prompt tokens"),
            ("passes", "calibration passes"),
            ("cpu_ms", "CPU time of its process, ms"),
            ("p50_ms", "median latency, ms"),
        )
        if (load, name) != ("chats", "passes")
        for choice, sent in (
            ("least busy", "the least busy of three processes"),
            ("prefix", "the process that knows the prompt"),
        )
    ),
    ("batcher: CPU time per item with an empty engine, µs", ("batcher", "cpu_us_per_item")),
    ("batcher: CPU time in 2 idle seconds, s", ("batcher", "idle_cpu_s")),
]


def figures_table(figures: list[Figure]) -> str:
    return table(("measured", "median (min to max)"), [(title, figure(*path)) for title, path in figures])


def runs_table() -> str:
    """When, where and at which commit the latest runs were recorded."""
    rows = []
    for name in sorted({run["benchmark"] for run in runs()}):
        run = latest(name)
        machine = f"{run['machine']['cpu']}, {run['machine']['cores']} cores"
        rows.append((f"`{name}`", run["date"][:10], f"`{run['commit']}`", machine))
    return table(("benchmark", "date", "commit", "machine"), rows)


def peers_table() -> str:
    rows = []
    for load, found in latest("peers")["loads"].items():
        ratios = [found["fovea_over"][peer]["throughput"]["median"] for peer in ("litserve", "infinity", "fastapi")]
        rows.append((load, *(f"{ratio:.2f}" for ratio in ratios)))
    return table(("Fovea's images/s relative to …", "LitServe", "Infinity", "FastAPI"), rows)


def scenes_table() -> str:
    """Leave-one-out mAP of scenes that were added and searched over HTTP."""
    scenes = latest("scenes")
    unseen = scenes.get("never_asked", ["texture", "size and color"])
    names = list(scenes["clip_map"])
    rows = [
        (title, *(f"{scenes[row][name]:.1f}" for name in names))
        for title, row in (("CLIP", "clip_map"), ("no condition", "plain_map"), ("the condition", "conditional_map"))
    ]
    return table(("mAP", *(f"{name}\\*" if name in unseen else name for name in names)), rows)


def labels_table() -> str:
    """Back ends that find labels, in units of transformers' `generate` held to the labels."""
    figures: dict[str, Any] = {}
    for run in runs():
        figures |= run["figures"] if run["benchmark"] == "predict_engines" else {}
    columns = {
        "`generate`, 10 tokens": "transformers generate, 10 tokens",
        "Fovea float32": "float32, all",
        "Fovea int8": "int8, all",
        "CTranslate2 float32": "CTranslate2 float32, greedy",
        "CTranslate2 int8": "CTranslate2 int8, greedy",
    }
    rows = []
    for shape in ("small", "base"):
        for count in (3, 77):
            for batch in (1, 32):
                work = f"{shape}, {count} labels, taught, batch {batch}"
                held = figures[f"{work}: transformers generate"]["median"]
                ratios = [f"{figures[f'{work}: {name}']['first_over_it']['median']:.1f}" for name in columns.values()]
                rows.append((f"t5-{shape}, {count} labels, batch {batch}", *ratios, f"{held:.0f}"))
    return table(("times as fast as `generate` constrained to the labels", *columns, "`generate`, ms"), rows)


def decisions_table() -> str:
    """Students of logged decisions: agreement with the teacher, calibration and threshold."""
    rows = []
    for name, found in latest("distill_decisions")["logs"].items():
        shares = (f"{100 * found[one]:.1f}" for one in ("agreement", "most_frequent_label", "calibration_error"))
        threshold, interval = found["threshold"], found["error_interval"]
        differ = (
            "" if interval is None else f"{found['num_wrong']} ({100 * interval[0]:.1f} to {100 * interval[1]:.1f}%)"
        )
        answered = f"{found['num_answered']} of {found['num_test']}"
        rows.append((name, f"{found['num_train']}", *shares, f"{threshold:.3f}" if threshold else "", answered, differ))
    head = ("log", "training rows", "agreement, %", "most frequent answer, %", "calibration error, %", "threshold")
    return table((*head, "test rows from it on", "of these differ"), rows)


def decision_cost_table() -> str:
    """Processor time of a decision by students and by a stand-in for a language model."""
    titles = {"tiny": "student `tiny`", "base-v1.1": "student `base-v1.1`", "stand_in": "language model"}
    rows = [
        (log, title, figure("decision_cost", "logs", log, name, "ms"), f"{found[name]['times_faster']['median']:.3g}")
        for log, found in latest("decision_cost")["logs"].items()
        for name, title in titles.items()
    ]
    return table(("log", "decides", "ms of one thread, median (min to max)", "times faster"), rows)


def bulk_table() -> str:
    kinds = {
        "scenes": "scenes of 64 × 64 pixels, JPEG",
        "photographs": "photographs of 640 × 480 pixels, JPEG",
        "large": "photographs of 4032 × 3024 pixels, JPEG",
    }
    rows = [
        (title, *(figure("bulk", kind, name) for name in ("job_images_per_s", "loop_images_per_s", "ratio")))
        for kind, title in kinds.items()
    ]
    return table(("images", "`embed-bulk`, images/s", "loop, images/s", "ratio"), rows)


def bulk_on_ray_table() -> str:
    run = latest("bulk_ray")
    plain = run["images_per_s"]["plain"]["median"]
    rows = [
        (name, f"{rate['median']:,.0f}", f"{rate['median'] / plain:.2f}") for name, rate in run["images_per_s"].items()
    ]
    rates = table(("job", "images/s", "times the plain job's"), rows)
    told = f"Ray took {run['ray_start_s']:.0f} s to start."
    return f"{rates}\n{told}\n"


def autoscaling_table() -> str:
    heading, *rows = autoscaling.load_rows(latest("autoscaling"))
    return table(heading, rows)


def drills_table() -> str:
    """The latest outcome of each drill."""
    figures: dict[str, Any] = {}
    for run in runs():
        figures |= run["drills"] if run["benchmark"] == "drills" else {}
    heading, *rows = drills.table_rows(figures)
    return table(heading, rows)


def waking_table() -> str:
    heading, *rows = autoscaling.waking_rows(latest("autoscaling"))
    return table(heading, rows)
