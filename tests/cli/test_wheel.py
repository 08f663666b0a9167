"""The wheel, installed into an environment of its own, used from a folder with packages of the same import names."""

import os
import shutil
import subprocess
import sys
import sysconfig
import venv
from collections.abc import Callable
from pathlib import Path

import pytest

pytestmark = pytest.mark.process

ROOT = Path(__file__).parents[2]
Fovea = Callable[..., subprocess.Popen[str]]


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An environment whose own packages are the wheel's, and whose others are those of this one."""
    folder = tmp_path_factory.mktemp("wheel")
    source = folder / "source"
    for name in ("services", "gateway"):
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

    def start(*arguments: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [installed, *arguments],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            cwd=tmp_path,
            env=environment,
        )

    return start


@pytest.mark.parametrize(
    ("command", "printed"),
    [
        ("--version", "0.1.0"),
        ("keys create --name laptop --scope embed --file keys.json", "fovea-"),
        ("store ls", "clip-shapes"),
        ("embed-bulk photos --output embeddings", "1 image"),
        ("evaluate compositionality --help", "winoground"),
        ("evaluate visitor --services predict --url http://127.0.0.1:9", "no response from http://127.0.0.1:9/predict"),
        ("serve nosuch", "there is no 'nosuch'"),
    ],
)
def test_a_command_takes_nothing_from_the_working_directory(command: str, printed: str, fovea: Fovea) -> None:
    output, _ = fovea(*command.split()).communicate()
    assert printed in " ".join(output.split())


def test_all_services_start_and_serve_their_packaged_checkpoints(fovea: Fovea) -> None:
    with fovea("up") as process:
        assert process.stdout is not None
        lines: list[str] = []
        while not lines or not (lines[-1].startswith("Ready in") or "giving up" in lines[-1]):
            lines.append(process.stdout.readline())
            assert lines[-1], lines
        process.terminate()
        rest = process.stdout.read()
    assert lines[-1].startswith("Ready in"), lines
    assert "imported from the working directory" not in "".join(lines) + rest
    assert process.returncode == 0
