"""The documentation is true: commands exist, settings tables match, the first example is answered."""

import contextlib
import functools
import json
import os
import re
import signal
import subprocess
import sys
import threading
from collections import deque
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.metrics import MetricWrapperBase
from typer.testing import CliRunner

from gateway.settings import GatewaySettings
from services.cli.main import app
from services.core.metrics import Metrics
from services.core.settings import COMMAND_LINE_VARIABLES, ProcessSettings, SettingRow, describe_settings
from services.embed.settings import EmbedSettings
from services.generate.settings import GenerateSettings
from services.predict.settings import PredictSettings
from services.score.settings import ScoreSettings
from tests.kept_port import kept_port

# The first test that asks `fovea up` starts every service, and a guide has dozens of examples.
pytestmark = pytest.mark.timeout(600)

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
    """Return the commands that `fovea WORDS --help` lists."""
    shown = CliRunner(env={"COLUMNS": "200"}).invoke(app, [*words, "--help"])
    assert shown.exit_code == 0, shown.output
    return set(re.findall(r"^│ ([a-z][a-z-]*)", shown.output.partition("─ Commands ─")[2], re.MULTILINE))


@pytest.fixture(scope="module")
def gateway(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """`fovea up` as a user starts it, except for its ports and its folders."""
    home = tmp_path_factory.mktemp("home")
    with contextlib.ExitStack() as kept:
        yield from fovea_up(home, {name: kept.enter_context(kept_port()) for name in PROCESSES})


def fovea_up(home: Path, ports: dict[str, int]) -> Iterator[str]:
    environment = {
        **{name: value for name, value in os.environ.items() if not name.startswith("FOVEA_")},
        "HOME": str(home),
        **{f"FOVEA_{name}_PORT": str(port) for name, port in ports.items()},
    }
    command = [sys.executable, "-m", "services.cli.main", "up"]
    with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True, cwd=ROOT) as process:
        assert process.stdout is not None
        output = []
        for line in process.stdout:
            output.append(line)
            if "Ctrl-C" in line:
                break
        else:
            pytest.fail("".join(output))
        # Processes whose output nobody reads stop at a full pipe.
        reader = threading.Thread(target=deque, args=(process.stdout, 0))
        reader.start()
        yield f"http://127.0.0.1:{ports['GATEWAY']}"
        process.send_signal(signal.SIGINT)
        reader.join()
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
    """Return the keys and types of an answer; in a list the first entry stands for all."""
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
