"""The wheel, installed into an environment of its own, used from a folder with packages of the same import names."""

import base64
import json
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import urllib.request
import venv
from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

import pytest

pytestmark = pytest.mark.process

ROOT = Path(__file__).parents[2]
Fovea = Callable[..., subprocess.Popen[str]]
SHAPES = base64.b64encode((ROOT / "docs" / "images" / "two-shapes.jpg").read_bytes()).decode()
# One for each service.
QUESTIONS: dict[str, dict[str, Any]] = {
    "/embed": {"images": [SHAPES], "condition": "What is the shape of the object?"},
    "/generate": {
        "query": "What is the pet of Belan Ashford?",
        "documents": ["Belan Ashford owns the quiet otter."],
    },
    "/predict": {
        "task": "word-problems",
        "inputs": [
            {"body": "Dora split 63 spoons evenly into 9 bags.", "question": "How many spoons are in each bag?"}
        ],
    },
    "/score": {
        "image": SHAPES,
        "captions": ["a yellow square left of a blue circle", "a blue square left of a yellow circle"],
    },
}


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An environment whose own packages are the wheel's, and whose others are those of this one."""
    folder = tmp_path_factory.mktemp("wheel")
    source = folder / "source"
    for name in ("fovea", "services", "gateway"):
        shutil.copytree(ROOT / name, source / name, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, source)
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--quiet"]
    offline = ["--no-deps", "--no-index"]
    subprocess.run([*pip, "wheel", *offline, "--no-build-isolation", "-w", folder, source], check=True)
    environment = folder / "environment"
    venv.create(environment)
    (wheel,) = folder.glob("*.whl")
    subprocess.run([*pip, "--python", environment, "install", *offline, wheel], check=True)
    (packages,) = environment.glob("lib/python*/site-packages")
    # Of a .pth file only the folders are added, not the .pth files in them: this environment's own Fovea stays out.
    (packages / "others.pth").write_text(sysconfig.get_path("purelib"))
    return environment / "bin" / "fovea"


@pytest.fixture
def fovea(installed: Path, tmp_path: Path) -> Fovea:
    """Start the command in a folder where importing `services` or `gateway` fails."""
    for name in ("services", "gateway"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "__init__.py").write_text("raise SystemExit('imported from the working directory')")
    (tmp_path / "photos").mkdir()
    shutil.copy(ROOT / "docs" / "images" / "two-shapes.jpg", tmp_path / "photos")
    ports = {f"FOVEA_{name}_PORT": "0" for name in ("GATEWAY", "PREDICT", "GENERATE", "EMBED", "SCORE")}
    kept = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "PYTHONSAFEPATH")}
    environment = {**kept, **ports, "HOME": str(tmp_path)}

    def start(*arguments: str, variables: Mapping[str, str] = MappingProxyType({})) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [installed, *arguments],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            cwd=tmp_path,
            env={**environment, **variables},
        )

    return start


def asked(url: str, question: dict[str, Any]) -> dict[str, Any]:
    """The answer to a JSON body."""
    request = urllib.request.Request(url, json.dumps(question).encode(), {"Content-Type": "application/json"})
    with urllib.request.urlopen(request) as response:
        answer: dict[str, Any] = json.load(response)
        return answer


@pytest.mark.parametrize(
    ("command", "printed"),
    [
        ("--version", "0.1.0"),
        ("keys create --name laptop --scope embed --file keys.json", "fovea-"),
        ("store ls", "clip-shapes"),
        ("embed-bulk photos --output embeddings", "1 image"),
        ("evaluate compositionality --help", "winoground"),
        ("curate review --help", "--token-file"),
        ("papers show T4.4", "77.71"),
        ("serve nosuch", "there is no 'nosuch'"),
    ],
)
def test_a_command_takes_nothing_from_the_working_directory(command: str, printed: str, fovea: Fovea) -> None:
    output, _ = fovea(*command.split()).communicate()
    assert printed in " ".join(output.split())


def test_the_wheel_holds_the_client_with_its_types(installed: Path) -> None:
    program = "import fovea, os; print(os.listdir(os.path.dirname(fovea.__file__)), fovea.Client())"
    command = [str(installed.parent / "python"), "-P", "-c", program]
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run(command, capture_output=True, text=True, env=environment)
    assert "'py.typed'" in done.stdout, done.stderr


def test_the_wheel_names_its_extras_for_users_and_keeps_the_earlier_names(installed: Path) -> None:
    [(_, *found)] = [
        (path, *re.findall(r"^Provides-Extra: (.+)$", path.read_text(), re.MULTILINE))
        for path in installed.parents[1].glob("lib/python*/site-packages/fovea_serving-*.dist-info/METADATA")
    ]
    assert {"cpu", "gpu", "train", "search", "vllm"} <= set(found)
    assert {"gateway", "embed", "generate", "predict", "score", "search-gpu", "evaluate", "telemetry"} <= set(found)


@pytest.mark.parametrize("page", ["services/curate/review/page", "gateway/console/page"])
def test_pages_are_in_the_wheel_with_their_modules_and_licences(installed: Path, page: str) -> None:
    (packages,) = installed.parents[1].glob("lib/python*/site-packages")
    found, expected = (
        {path.relative_to(root / page).as_posix() for path in (root / page).rglob("*") if path.is_file()}
        for root in (packages, ROOT)
    )
    assert found == expected
    assert {"index.html", "vendor/preact.mjs", "vendor/preact.LICENSE", "vendor/htm.LICENSE"} <= found


def test_the_shell_completes_the_commands_of_the_wheel(fovea: Fovea) -> None:
    completing = {"_FOVEA_COMPLETE": "complete_bash", "COMP_WORDS": "fovea do", "COMP_CWORD": "1"}
    assert fovea(variables=completing).communicate()[0].split() == ["doctor"]


def test_the_doctor_finds_the_wheel_well_and_knows_what_it_can_serve(fovea: Fovea) -> None:
    process = fovea("doctor")
    output, _ = process.communicate()
    assert process.returncode == 0, output
    assert "gateway, predict, generate, embed, score can start" in output
    process = fovea("capacity", "open-facts", "--memory", "1GiB")
    output, _ = process.communicate()
    assert process.returncode == 0, output
    assert "longest context" in output


def test_all_services_start_outside_of_a_clone_and_answer_with_their_packaged_checkpoints(fovea: Fovea) -> None:
    with fovea("up") as process:
        assert process.stdout is not None
        lines: list[str] = []
        while not lines or not ("Ctrl-C stops" in lines[-1] or "giving up" in lines[-1]):
            lines.append(process.stdout.readline())
            assert lines[-1], lines
        try:
            addresses = dict(re.findall(r"^  (\w+) +(http://\S+)$", "".join(lines), re.MULTILINE))
            answers = {path: asked(f"{addresses['gateway']}{path}", question) for path, question in QUESTIONS.items()}
        finally:
            process.terminate()
            rest = process.stdout.read()
    assert f"Try it at {addresses['gateway']}/console, or:" in "".join(lines)
    assert "imported from the working directory" not in "".join(lines) + rest
    assert process.returncode == 0
    assert len(answers["/embed"]["data"][0]["embedding"]) > 1
    assert answers["/generate"]["answer"] == "quiet otter"
    assert answers["/predict"]["predictions"][0]["label"]
    assert answers["/score"]["best"] == 1
