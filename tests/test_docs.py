"""What the documentation says is true: commands exist, settings tables match, the first example answers."""

import functools
import json
import os
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.metrics import MetricWrapperBase
from typer.testing import CliRunner

from gateway.settings import GatewaySettings
from services.cli import app
from services.core.metrics import Metrics
from services.core.settings import COMMAND_LINE_VARIABLES, ProcessSettings, SettingRow, describe_settings
from services.embed.settings import EmbedSettings
from services.generate.settings import GenerateSettings
from services.predict.settings import PredictSettings
from services.score.settings import ScoreSettings

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text()
# One in a guide, over as many lines as are indented further.
COMMAND = r"^ {4}curl (.*\n(?: {5,}.*\n)*)"
PROCESSES: dict[str, type[ProcessSettings]] = {
    "EMBED": EmbedSettings,
    "GENERATE": GenerateSettings,
    "PREDICT": PredictSettings,
    "SCORE": ScoreSettings,
    "GATEWAY": GatewaySettings,
}
PAGES = [
    *(ROOT / name for name in ("README.md", "CHANGELOG.md", "k8s/README.md")),
    *sorted((ROOT / "docs").rglob("*.md")),
]


def settings() -> dict[str, SettingRow]:
    return {row.variable: row for known in PROCESSES.values() for row in describe_settings(known)}


def settings_page() -> str:
    """docs/reference/settings.md as it must read."""
    lines = [
        "# Settings",
        "",
        "Every setting is an environment variable. A shared one can be set for one process alone by its own prefix:",
        "`FOVEA_EMBED_LOG_LEVEL` wins over `FOVEA_LOG_LEVEL` in the embed service. A variable that no process knows",
        "is refused at start, with the nearest name that exists.",
        "",
        "| variable | type | default | meaning |",
        "| --- | --- | --- | --- |",
    ]
    for row in settings().values():
        default = f"`{row.default}`" if row.default not in (None, "None", "") else ""
        lines.append(f"| `{row.variable}` | {row.type.replace('|', 'or')} | {default} | {row.description} |")
    return "\n".join(lines) + "\n"


def test_the_settings_page_lists_every_setting_as_the_code_has_it() -> None:
    page = ROOT / "docs" / "reference" / "settings.md"
    assert page.read_text() == settings_page(), "write it anew: python -m tests.test_docs"


def metrics() -> dict[str, MetricWrapperBase]:
    """By the name that a scraper sees; a histogram's is that of its `_bucket`, `_sum` and `_count`."""
    named = {}
    for metric in vars(Metrics("docs")).values():
        if isinstance(metric, MetricWrapperBase):
            (family,) = metric.describe()
            named[f"{family.name}_total" if family.type == "counter" else family.name] = metric
    return named


def metrics_page() -> str:
    """docs/reference/metrics.md as it must read."""
    lines = [
        "# Metrics",
        "",
        "Every process serves these on `/metrics`, with the `process_` and `python_` metrics of the Prometheus client.",
        "The list is one for all: what a process has no use for stays at zero, or out of sight where it has labels.",
        "A histogram appears as `_bucket`, `_sum` and `_count`.",
        "",
        "| metric | type | labels | meaning |",
        "| --- | --- | --- | --- |",
    ]
    for name, metric in metrics().items():
        (family,) = metric.describe()
        # The library tells a metric's labels in public only once one has a value.
        labels = ", ".join(f"`{label}`" for label in metric._labelnames)
        lines.append(f"| `{name}` | {family.type} | {labels} | {family.documentation} |")
    return "\n".join(lines) + "\n"


def test_the_metrics_page_lists_every_metric_as_the_code_has_it() -> None:
    page = ROOT / "docs" / "reference" / "metrics.md"
    assert page.read_text() == metrics_page(), "write it anew: python -m tests.test_docs"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_settings_and_metrics_that_a_page_names_exist(page: Path) -> None:
    text = page.read_text()
    prefixes = tuple(f"FOVEA_{process}_" for process in PROCESSES)
    shared = [name.removeprefix("FOVEA_") for name in settings() if not name.startswith(prefixes)]
    for_one_process = {f"FOVEA_{process}_{name}" for process in PROCESSES for name in shared}
    known = settings().keys() | for_one_process | COMMAND_LINE_VARIABLES
    assert set(re.findall(r"\bFOVEA_[A-Z_]+\b", text)) <= known
    assert set(re.findall(r"\bfovea_[a-z_]+\b", text)) <= metrics().keys()


def latest(benchmark: str) -> Any:
    """What its latest recorded run says."""
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


def test_the_readmes_settings_exist_with_the_defaults_it_states() -> None:
    rows = re.findall(r"^\| `(FOVEA_\w+)` \| (.*?) \| (.*?) \|$", README, re.MULTILINE)
    assert len(rows) >= 5
    known = settings()
    for variable, default, meaning in rows:
        assert meaning == known[variable].description
        assert default.strip("`") == (known[variable].default if known[variable].default != "None" else "")


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_commands_and_files_that_a_page_names_exist(page: Path) -> None:
    text = page.read_text()
    for target in re.findall(r"(?:`|^)make ([a-z]+)\b", text, re.MULTILINE):
        assert re.search(rf"^{target}:", (ROOT / "Makefile").read_text(), re.MULTILINE), f"make {target}"
    for link in re.findall(r"\]\((?!https?:)([^)#]+)\)", text):
        assert (page.parent / link).exists(), link
    commands = {m.strip() for m in re.findall(r"(?:`|^ {4})fovea ((?:[a-z][a-z-]* ?)+)", text, re.MULTILINE)}
    for command in sorted(commands):
        words = command.split()
        known = subcommands(())
        for i, word in enumerate(words):
            if known and word not in known:
                raise AssertionError(f"fovea {command}: no {word!r} after fovea {' '.join(words[:i])}")
            known = subcommands(tuple(words[: i + 1])) if known else set()


@functools.cache
def subcommands(words: tuple[str, ...]) -> set[str]:
    """What `fovea WORDS --help` lists as commands."""
    shown = CliRunner(env={"COLUMNS": "200"}).invoke(app, [*words, "--help"])
    assert shown.exit_code == 0, shown.output
    return set(re.findall(r"^│ ([a-z][a-z-]*)", shown.output.partition("─ Commands ─")[2], re.MULTILINE))


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


@pytest.fixture(scope="module")
def gateway(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """`fovea up` as a user starts it, but for its ports and its folders."""
    home = tmp_path_factory.mktemp("home")
    port = free_port()
    environment = {
        **{name: value for name, value in os.environ.items() if not name.startswith("FOVEA_")},
        "HOME": str(home),
        "FOVEA_GATEWAY_PORT": str(port),
        "FOVEA_EMBED_PORT": str(free_port()),
        "FOVEA_GENERATE_PORT": str(free_port()),
        "FOVEA_PREDICT_PORT": str(free_port()),
        "FOVEA_SCORE_PORT": str(free_port()),
    }
    command = [sys.executable, "-m", "services.cli", "up"]
    with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True, cwd=ROOT) as process:
        assert process.stdout is not None
        output = []
        for line in process.stdout:
            output.append(line)
            if "Ctrl-C" in line:
                break
        else:
            pytest.fail("".join(output))
        yield f"http://127.0.0.1:{port}"
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=60)
    assert process.returncode == 0


def test_the_readmes_first_curl_answers_as_the_readme_says(gateway: str) -> None:
    shell, answer = re.findall(r"```sh\n(curl .*?)```\n\n```json\n(.*?)```", README, re.DOTALL)[0]
    command = shell.replace("http://127.0.0.1:8080", gateway)
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, check=True, cwd=ROOT)
    body = json.loads(done.stdout)
    promised = json.loads(answer.replace(", …]", "]"))
    assert body.keys() == promised.keys()
    assert body["data"][0].keys() == promised["data"][0].keys()
    assert body["usage"] == promised["usage"]
    assert body["model"].split("@")[0] == promised["model"].split("@")[0]
    assert sum(x * x for x in body["data"][0]["embedding"]) == pytest.approx(1, abs=1e-5)


def test_the_readmes_similarities_are_what_the_starter_answers(gateway: str) -> None:
    rows = re.findall(r"^\| (?:`condition=(.*?)`|no condition) \| ([\d.−-]+) \| ([\d.−-]+) \|$", README, re.MULTILINE)
    assert len(rows) == 3

    def embed(image: str, condition: str) -> list[float]:
        query = ["-G", "--data-urlencode", f"condition={condition}"] if condition else []
        url = subprocess.run(
            ["curl", "-s", "-o", os.devnull, "-w", "%{url_effective}", *query, f"{gateway}/embed"],
            capture_output=True, text=True, check=True,
        ).stdout  # fmt: skip
        post = ["curl", "-s", url, "-H", "Content-Type: image/jpeg", "--data-binary", f"@docs/images/{image}.jpg"]
        done = subprocess.run(post, capture_output=True, text=True, check=True, cwd=ROOT)
        embedding: list[float] = json.loads(done.stdout)["data"][0]["embedding"]
        return embedding

    for condition, circle, star in rows:
        query = embed("red-star", condition)
        for image, stated in (("red-circle", circle), ("blue-star", star)):
            cosine = sum(a * b for a, b in zip(query, embed(image, condition), strict=True))
            assert cosine == pytest.approx(float(stated.replace("−", "-")), abs=0.011), (condition, image)


def test_the_readmes_openai_example_runs(gateway: str) -> None:
    (code,) = re.findall(r"```python\n(.*?)```", README, re.DOTALL)
    program = code.replace("http://127.0.0.1:8080", gateway)
    subprocess.run([sys.executable, "-c", program], check=True, cwd=ROOT)


def test_the_readmes_search_finds_the_red_star(gateway: str) -> None:
    (block,) = re.findall(r"```sh\n(curl -X PUT .*?)```", README, re.DOTALL)
    program = "set -e\n" + block.replace("http://127.0.0.1:8080", gateway).replace("curl ", "curl --silent --fail ")
    done = subprocess.run(["bash", "-c", program], check=True, cwd=ROOT, capture_output=True, text=True)
    answer = json.loads(done.stdout[done.stdout.index('{"object":"search"') :])
    assert [hit["id"] for hit in answer["results"]] == ["red-star.jpg"]


def test_the_readmes_question_is_answered_as_it_says(gateway: str) -> None:
    (command, answer) = re.findall(r"```sh\n(curl \S+/generate .*?)```\n\nsays `(.*?)`", README, re.DOTALL)[0]
    command = command.replace("http://127.0.0.1:8080", gateway)
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, check=True)
    assert json.loads(done.stdout)["answer"] == answer


def test_the_readmes_problem_is_solved_as_it_says(gateway: str) -> None:
    pattern = r"```sh\n(curl \S+/predict .*?)```\n\nsays `(.*?)`, which is (\d+), because `(.*?)`"
    (command, label, value, rationale) = re.findall(pattern, README, re.DOTALL)[0]
    command = command.replace("http://127.0.0.1:8080", gateway)
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, check=True)
    (prediction,) = json.loads(done.stdout)["predictions"]
    assert (prediction["label"], prediction["value"]) == (label, int(value))
    assert prediction["rationale"] == " ".join(rationale.split())


def test_the_readmes_captions_are_told_apart_as_it_says(gateway: str) -> None:
    pattern = r"```sh\n(curl \S+/score .*?)```\n\nsays the second \(`best` is (\d)\), with a probability of ([\d.]+)"
    (command, best, probability) = re.findall(pattern, README, re.DOTALL)[0]
    command = command.replace("http://127.0.0.1:8080", gateway)
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, check=True, cwd=ROOT)
    answer = json.loads(done.stdout)
    assert answer["best"] == int(best)
    assert answer["scores"][answer["best"]]["probability"] == pytest.approx(float(probability), abs=0.011)


@pytest.mark.parametrize(
    ("page", "num_commands", "num_programs"),
    [("embed", 8, 3), ("search", 12, 0), ("generate", 3, 1), ("predict", 3, 0), ("score", 2, 0)],
)
def test_every_example_of_a_guide_is_answered(gateway: str, page: str, num_commands: int, num_programs: int) -> None:
    guide = (ROOT / "docs" / "guide" / f"{page}.md").read_text().replace("http://127.0.0.1:8080", gateway)
    commands = re.findall(COMMAND, guide, re.MULTILINE)
    programs = re.findall(r"```python\n(.*?)```", guide, re.DOTALL)
    assert len(commands) >= num_commands
    assert len(programs) >= num_programs
    answers = {}
    for command in commands:
        curl = ["bash", "-c", f"curl --silent --fail-with-body {command}"]
        answers[command] = subprocess.run(curl, check=True, cwd=ROOT, capture_output=True, text=True).stdout
    for command, promised in re.findall(rf"{COMMAND}\n(?:.+\n\n)?```json\n([^`]*)```", guide, re.MULTILINE):
        assert shape(json.loads(answers[command])) == shape(json.loads(promised.replace("…", "0")))
    for program in programs:
        subprocess.run([sys.executable, "-c", program], check=True, cwd=ROOT)


def shape(value: Any) -> Any:
    """Which keys and types an answer has; of a list the first entry stands for all."""
    if isinstance(value, dict):
        return {key: shape(one) for key, one in value.items()}
    return [shape(one) for one in value[:1]] if isinstance(value, list) else type(value).__name__


def test_a_photograph_embeds_under_a_condition(gateway: str) -> None:
    from sklearn.datasets import load_sample_images

    photograph = Path(load_sample_images().filenames[0])
    post = ["curl", "-s", f"{gateway}/embed?condition=Focus+on+the+color.", "-H", "Content-Type: image/jpeg"]
    done = subprocess.run([*post, "--data-binary", f"@{photograph}"], capture_output=True, text=True, check=True)
    assert json.loads(done.stdout)["usage"]["images"] == 1


if __name__ == "__main__":
    (ROOT / "docs" / "reference" / "settings.md").write_text(settings_page())
    (ROOT / "docs" / "reference" / "metrics.md").write_text(metrics_page())
