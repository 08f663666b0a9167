"""The documentation is true: commands exist, settings tables match, the first example is answered."""

import ast
import contextlib
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

import fovea_vllm
import services.cli.main
import starters.__main__
from fovea_vllm.estimates import FIELDS as FIELDS_OF_ESTIMATES
from fovea_vllm.request import FIELDS
from services.core.settings import COMMAND_LINE_VARIABLES
from tests.core.child_processes import running
from tests.documentation.reference import PROCESSES, metrics, settings, subcommands
from tests.kept_port import kept_port

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text()
# One in a guide, over as many lines as are indented further.
COMMAND = r"^ {4}curl (.*\n(?: {5,}.*\n)*)"
PAGES = [
    *(ROOT / name for name in ("README.md", "CHANGELOG.md", "charts/fovea/README.md", "starters/README.md")),
    *sorted((ROOT / "docs").rglob("*.md")),
]

PYTHON_BLOCK = re.compile(r'^```python(?: title="([^"]*)")?\n(.*?)^```', re.MULTILINE | re.DOTALL)
FIFTH_SERVICE = ROOT / "docs/guide/add-a-service.md"
PROGRAMS = {"fovea": services.cli.main.app, "python -m starters": starters.__main__.app}
# Of requests to vLLM with the plug-in, the plug-in's package, and the beginning of our wheel's name.
NO_METRICS = {*FIELDS, *FIELDS_OF_ESTIMATES, fovea_vllm.__name__, "fovea_serving"}
# Of the service that the guide to adding one builds.
PREFIX_OF_THE_GUIDE = {"FOVEA_LANGUAGE_"}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_settings_and_metrics_that_a_page_names_exist(page: Path) -> None:
    text = page.read_text()
    prefixes = tuple(f"FOVEA_{process}_" for process in PROCESSES)
    shared = [name.removeprefix("FOVEA_") for name in settings() if not name.startswith(prefixes)]
    for_one_process = {f"FOVEA_{process}_{name}" for process in PROCESSES for name in shared}
    known = settings().keys() | for_one_process | COMMAND_LINE_VARIABLES | PREFIX_OF_THE_GUIDE
    assert set(re.findall(r"\bFOVEA_[A-Z_]+\b", text)) <= known
    assert set(re.findall(r"\bfovea_[a-z_]+\b", text)) <= metrics().keys() | NO_METRICS


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_commands_and_files_that_a_page_names_exist(page: Path) -> None:
    text = page.read_text()
    for target in re.findall(r"(?:`|^)make ([a-z]+)\b", text, re.MULTILINE):
        assert re.search(rf"^{target}:", (ROOT / "Makefile").read_text(), re.MULTILINE), f"make {target}"
    for link in re.findall(r"\]\((?!https?:)([^)#\s]+)\)", text):
        assert (page.parent / link).exists(), link
    commands = re.findall(r"(?:`|^ {4})(fovea|python -m starters) ((?:[a-z][a-z-]* ?)+)", text, re.MULTILINE)
    for program, command in sorted(set(commands)):
        words = command.split()
        known = {*subcommands((), PROGRAMS[program])}
        for i, word in enumerate(words):
            if known and word not in known:
                raise AssertionError(f"{program} {command}: no {word!r} after {program} {' '.join(words[:i])}")
            known = {*subcommands(tuple(words[: i + 1]), PROGRAMS[program])} if known else set()


@pytest.mark.parametrize("page", [*PAGES, ROOT / "CONTRIBUTING.md"], ids=lambda page: page.relative_to(ROOT).as_posix())
def test_python_on_a_page_is_python(page: Path) -> None:
    for _, code in PYTHON_BLOCK.findall(page.read_text()):
        ast.parse(code)


@pytest.mark.process
def test_the_service_that_the_guide_adds_passes_lint_and_its_own_tests(tmp_path: Path) -> None:
    files = {title: code for title, code in PYTHON_BLOCK.findall(FIFTH_SERVICE.read_text()) if title}
    for title, code in files.items():
        (tmp_path / title).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / title).write_text(code)
    lint = (sys.executable, "-m", "ruff", "check", "--ignore=I001", "--config", ROOT / "pyproject.toml", tmp_path)
    assert subprocess.run(lint, check=False).returncode == 0
    program = """
import sys, pytest, services
services.__path__.append("services")
sys.exit(pytest.main(["-q", "-p", "no:cacheprovider", "--rootdir=.", "tests/language/test_app.py"]))
"""
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    tests = subprocess.run((sys.executable, "-c", program), cwd=tmp_path, env=environment, check=False)
    assert tests.returncode == 0


def test_the_commands_page_lists_every_target_of_make() -> None:
    (targets,) = re.findall(r"^\.PHONY: (.*)$", (ROOT / "Makefile").read_text(), re.MULTILINE)
    listed = re.findall(r"^\| `make ([a-z-]+)` \|", (ROOT / "docs/reference/commands.md").read_text(), re.MULTILINE)
    assert sorted(listed) == sorted(targets.split())


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
    with running(command, env=environment, stdout=subprocess.PIPE, cwd=ROOT) as process:
        assert process.stdout is not None
        output = []
        for line in process.stdout:
            output.append(line)
            if "Ctrl-C" in line:
                break
        else:
            pytest.fail("".join(output))
        # Processes whose output nobody reads stop at a full pipe.
        reader = threading.Thread(target=deque, args=(process.stdout, 0), daemon=True)
        reader.start()
        yield f"http://127.0.0.1:{ports['GATEWAY']}"
        process.send_signal(signal.SIGINT)
        reader.join()
    assert process.returncode == 0


def test_the_readmes_first_curl_answers_as_the_readme_says(gateway: str) -> None:
    shell, answer = re.findall(r"```sh\n(curl .*?)```\n\n```json\n(.*?)```", README, re.DOTALL)[0]
    command = shell.replace("http://127.0.0.1:8080", gateway)
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, check=True, cwd=ROOT)
    body, promised = json.loads(done.stdout), json.loads(answer)
    differences = unlike(body, promised)
    assert differences == []
    for scored, stated in zip(body["scores"], promised["scores"], strict=True):
        assert scored == pytest.approx(stated, abs=0.011)


def test_the_readmes_table_says_what_the_guides_examples_answer() -> None:
    rows = re.findall(r"^\| `\w+` \| .*? \| (.*?) \| \[.*\((docs/guide/\w+\.md)\) \|$", README, re.MULTILINE)
    assert len(rows) == 4
    for answer, guide in rows:
        for stated in re.findall(r"`(.*?)`", answer):
            assert f'"{stated}"' in (ROOT / guide).read_text(), (stated, guide)


def test_the_guides_similarities_are_what_the_starter_answers(gateway: str) -> None:
    guide = (ROOT / "docs" / "guide" / "embed.md").read_text()
    rows = re.findall(r"^\| (?:`condition=(.*?)`|no condition) \| ([\d.−-]+) \| ([\d.−-]+) \|$", guide, re.MULTILINE)
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


@pytest.mark.parametrize(
    ("page", "num_commands", "num_programs"),
    [
        ("embed", 9, 4),
        ("search", 14, 0),
        ("generate", 4, 4),
        ("predict", 3, 0),
        ("score", 2, 0),
        ("decide", 1, 1),
        ("client", 0, 3),
        ("frameworks", 0, 3),
    ],
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
        assert unlike(json.loads(answers[command]), json.loads(elided(promised))) == []
    for program in programs:
        subprocess.run([sys.executable, "-c", program], check=True, cwd=ROOT)


def elided(promised: str) -> str:
    """The JSON of a guide without the ends of lists and digits that it leaves out; texts keep their `…`."""
    shortened = re.sub(r"\s*,\s*…\s*([\]}])", r"\1", promised)
    return re.sub(r"(\d\.?\d*)…|(: )…", lambda found: found.group(1) + "0" if found.group(1) else ": 0", shortened)


def unlike(answer: Any, promised: Any, where: str = "") -> list[str]:
    """Where an answer is not as promised: other keys, types, truth values or texts, or a list that is too short.

    Numbers differ by machine; a promised text may leave a part out by `…`.
    """
    if isinstance(promised, dict) and isinstance(answer, dict):
        if answer.keys() != promised.keys():
            return [f"{where}: {sorted(answer.keys() ^ promised.keys())}"]
        return [found for key in promised for found in unlike(answer[key], promised[key], f"{where}.{key}")]
    if isinstance(promised, list) and isinstance(answer, list) and len(answer) >= len(promised):
        pairs = enumerate(zip(answer, promised, strict=False))
        return [found for i, (one, other) in pairs for found in unlike(one, other, f"{where}.{i}")]
    if isinstance(promised, str) and isinstance(answer, str):
        pattern = ".*".join(re.escape(part) for part in promised.split("…"))
        return [] if re.fullmatch(pattern, answer, re.DOTALL) else [f"{where}: {answer!r}"]
    alike = answer == promised if isinstance(promised, bool) else type(answer) is type(promised)
    return [] if alike else [f"{where}: {answer!r}"]


def test_a_photograph_embeds_under_a_condition(gateway: str) -> None:
    from sklearn.datasets import load_sample_images

    photograph = Path(load_sample_images().filenames[0])
    post = ["curl", "-s", f"{gateway}/embed?condition=Focus+on+the+color.", "-H", "Content-Type: image/jpeg"]
    done = subprocess.run([*post, "--data-binary", f"@{photograph}"], capture_output=True, text=True, check=True)
    assert json.loads(done.stdout)["usage"]["images"] == 1
