"""`fovea models` and `fovea up --models`, over a server that speaks the Hub's HTTP with tiny checkpoints in the
published layouts.
"""

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from typer.testing import CliRunner

from services.cli.catalogue import Model, app, catalogue, import_and_choose
from services.cli.programs import PACKAGES
from services.cli.store_import import ENGINES
from services.core.refusals import Refused
from tests.core.child_processes import running
from tests.documentation.capacity import published_models
from tests.hub_server import serving
from tests.kept_port import kept_port
from tests.published_clips import openai_state, training_checkpoint, write_hugging_face, write_laion, write_siglip
from tests.published_instructblip import write_instructblip
from tests.published_llava import write_llava
from tests.published_magiclens import write_magiclens
from tests.published_models import publish
from tests.published_qwen3_vl import write_qwen2_5_vl_instruct, write_qwen3_vl_embedding
from tests.published_rerankers import publish_reranker

ROOT = Path(__file__).parents[2]
GUIDE = (ROOT / "docs" / "guide" / "import.md").read_text()
SERVICES = ("embed", "generate", "predict", "score")


def _published(name: str, folder: Path) -> None:
    publish(folder.parent / "made", name).rename(folder)


def _reranker(name: str, folder: Path) -> None:
    publish_reranker(folder.parent / "made", name).rename(folder)


def _training(file: Path) -> None:
    torch.save(training_checkpoint(openai_state()), file)


# The writer of each row's published layout.
LAYOUTS: dict[str, Callable[[Path], Any]] = {
    "vicuna-7b-v1.5": partial(_published, "vicuna-7b-v1.5"),
    "vicuna-7b-v1.5-16k": partial(_published, "vicuna-7b-v1.5-16k"),
    "tulu-2-7b": partial(_published, "tulu-2-7b"),
    "mistral-7b-instruct-v0.2": partial(_published, "Mistral-7B-Instruct-v0.2"),
    **{f"qwen2.5-{size}b-instruct": partial(_published, "Qwen2.5-7B-Instruct") for size in ("0.5", "1.5", "7")},
    "llama-3.1-8b-instruct": partial(_published, "Llama-3.1-8B-Instruct"),
    "ms-marco-minilm-l6-v2": partial(_reranker, "ms-marco-MiniLM-L6-v2"),
    "bge-reranker-base": partial(_reranker, "bge-reranker-base"),
    "bge-reranker-v2-m3": partial(_reranker, "bge-reranker-base"),
    "gte-reranker-modernbert-base": partial(_reranker, "gte-reranker-modernbert-base"),
    "qwen3-reranker-0.6b": partial(_reranker, "Qwen3-Reranker-0.6B"),
    "qwen3-reranker-4b": partial(_reranker, "Qwen3-Reranker-0.6B"),
    **{f"flan-t5-{size}": partial(_published, "flan-t5-base") for size in ("small", "base", "large")},
    **{f"t5-v1_1-{size}": partial(_published, "t5-v1_1-small") for size in ("small", "base", "large")},
    **{f"clip-vit-{size}": write_laion for size in ("b-32", "b-16", "l-14", "h-14")},
    "clip-vit-l-14-336": write_hugging_face,
    "siglip-vit-b-16": write_siglip,
    "siglip-so400m-14-384": write_siglip,
    "fsc-clip-vit-b-32": _training,
    "negclip-vit-b-32": _training,
    "llava-1.5-7b-hf": write_llava,
    "qwen3-vl-embedding-2b": write_qwen3_vl_embedding,
    "qwen2.5-vl-3b-instruct": write_qwen2_5_vl_instruct,
    "qwen2.5-vl-7b-instruct": write_qwen2_5_vl_instruct,
    "instructblip-vicuna-7b": write_instructblip,
    "magiclens-base": write_magiclens,
    "magiclens-large": write_magiclens,
}
# Runs `fovea store` for each list of words, and prints what each prints.
IMPORTER = """
import json, sys
from typer.testing import CliRunner
from services.cli.store import app
for name, words in json.loads(sys.argv[1]).items():
    done = CliRunner().invoke(app, words)
    print(json.dumps([name, done.exit_code, done.stdout, done.stderr]))
"""


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A home and a store of its own."""
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setenv("FOVEA_STORE_URL", f"file://{tmp_path}/store")
    return tmp_path


@pytest.fixture
def gpu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[int], None]:
    """Have nvidia-smi tell a GPU with so many GiB free."""

    def install(free_gib: int) -> None:
        (tmp_path / "nvidia-smi").write_text(f"#!/bin/sh\necho {free_gib * 1024}\n")
        (tmp_path / "nvidia-smi").chmod(0o755)
        monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")

    return install


def models(*arguments: str) -> list[dict[str, Any]]:
    asked = CliRunner().invoke(app, [*arguments, "--json"])
    assert asked.exit_code == 0, asked.output
    rows: list[dict[str, Any]] = json.loads(asked.stdout)
    return rows


def _repository(row: Model) -> str:
    return row.source.removeprefix("hf://")


@pytest.fixture
def hub(tmp_path: Path) -> Iterator[Callable[..., str]]:
    """Serve tiny checkpoints under the repositories' names of these rows; returns the address for HF_ENDPOINT."""
    with ExitStack() as served:

        def serve(*names: str, **options: Any) -> str:
            repositories = {}
            for name in names:
                folder = tmp_path / "published" / name
                folder.parent.mkdir(exist_ok=True)
                LAYOUTS[name](folder)
                repositories[_repository(catalogue()[name])] = folder
            return served.enter_context(serving(repositories, **options))

        yield serve


def _environment(hub: str, **more: str) -> dict[str, str]:
    return {**os.environ, "HF_ENDPOINT": hub, "HF_HUB_DISABLE_XET": "1", "HF_HUB_DISABLE_PROGRESS_BARS": "1", **more}


@pytest.mark.process
def test_every_row_is_imported_as_the_kind_and_for_the_services_that_it_says(
    tmp_path: Path, hub: Callable[..., str]
) -> None:
    assert LAYOUTS.keys() == catalogue().keys()
    rows = catalogue().values()
    for row in rows:
        if not row.source.startswith("hf://"):
            LAYOUTS[row.name](tmp_path / row.source)
    url = hub(*(row.name for row in rows if row.source.startswith("hf://")))
    words = {row.name: [*" ".join(row.words).replace("TASK", "esnli").split(), "--dry-run", "--json"] for row in rows}
    command = [sys.executable, "-c", IMPORTER, json.dumps(words)]
    environment = _environment(url, PYTHONPATH=str(ROOT))
    done = subprocess.run(command, env=environment, cwd=tmp_path, capture_output=True, text=True, check=True)
    for name, status, stdout, stderr in map(json.loads, done.stdout.splitlines()):
        assert status == 0, f"{name}: {stderr}"
        plan, row = json.loads(stdout), catalogue()[name]
        assert (plan["name"], plan["kind"], tuple(plan["services"])) == (name, row.kind, row.services)


@pytest.mark.parametrize("kind", sorted({row.kind for row in catalogue().values()}))
def test_a_row_whose_importer_has_gone_is_refused_with_those_there_are(
    kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    catalogue.cache_clear()
    monkeypatch.delitem(ENGINES, kind)
    with pytest.raises(Refused, match=f"models.toml: kind: nothing imports '{kind}'"):
        catalogue()


def test_every_size_follows_from_the_parameters_unless_the_row_says_it_or_that_it_is_unknown() -> None:
    sizes = {name: row.content() for name, row in catalogue().items()}
    vicuna = sizes["vicuna-7b-v1.5"]
    assert vicuna["download_bytes"] == 6_738_000_000 * 2
    assert (vicuna["cpu_bytes"], vicuna["gpu_bytes"]) == (int(6_738_000_000 * 4 / 0.9), int(6_738_000_000 * 2 / 0.9))
    clip = sizes["clip-vit-b-32"]
    assert (clip["download_bytes"], clip["cpu_bytes"]) == (151_000_000 * 4, int(151_000_000 * 4 / 0.9))
    assert sizes["instructblip-vicuna-7b"]["download_bytes"] == 9_900_000_000
    assert sizes["negclip-vit-b-32"]["download_bytes"] is None
    for name, model in published_models().items():
        if row := catalogue().get(name.lower()):
            assert row.parameters == round(model["num_parameters"] / 10**6)


def test_models_are_filtered_by_service_licence_and_what_this_machine_holds(gpu: Callable[[int], None]) -> None:
    everything = models()
    assert [row["name"] for row in everything] == list(catalogue())
    assert {row["name"] for row in models("--service", "predict")} == {
        row["name"] for row in everything if row["services"] == ["predict"]
    }
    assert {row["licence"] for row in models("--licence", "MIT")} == {"mit"}
    gpu(16)
    held = {row["name"] for row in models("--fits", "--service", "generate")}
    assert "vicuna-7b-v1.5" in held  # 15.0 of 17.2 GB
    assert "llama-3.1-8b-instruct" not in held  # 17.8 GB
    gpu(4)
    clips = {row["name"] for row in models("--fits", "--service", "score")}
    assert "siglip-so400m-14-384" in clips  # 2.0 GB in each of two services, of 4.3
    assert "clip-vit-h-14" not in clips  # 2.2 GB in each


def test_a_row_tells_people_its_sizes_what_is_not_known_and_its_command() -> None:
    told = CliRunner().invoke(app, ["--service", "score"]).output
    assert re.search(r"clip-vit-b-32 +│ score, embed +│ mit +│ 604.0 MB +│ 671.1 MB +│ 335.6 MB", told)
    assert re.search(r"clip-vit-l-14-336 +│ score, embed +│ not named +│", told)
    assert "fovea store import hf://laion/CLIP-ViT-B-32-laion2B-s34B-b79K --name clip-vit-b-32\n" in told
    assert "llama3.1 (gated)" in CliRunner().invoke(app, ["--service", "generate"]).output


@pytest.mark.parametrize(
    ("names", "told"),
    [
        (["vicuna-7b"], "fovea models lists no 'vicuna-7b'; the nearest are vicuna-7b-v1.5, vicuna-7b-v1.5-16k"),
        (["zzz"], "fovea models lists no 'zzz'; none has a similar name"),
        ([" "], "--models names no model"),
        (["flan-t5-base"], "choose its task, and run fovea store import hf://google/flan-t5-base --name flan-t5-base"),
        (["magiclens-base"], "download magic_lens_clip_base.pkl from https://github.com/google-deepmind/magiclens"),
    ],
)
def test_a_name_that_can_t_be_served_is_refused_with_the_way_on(names: list[str], told: str) -> None:
    with pytest.raises(Refused, match=re.escape(told)):
        import_and_choose(names, {}, SERVICES)


def test_a_model_of_a_service_that_is_not_installed_is_refused_before_anything_is_downloaded() -> None:
    with pytest.raises(Refused, match=r"embed is not installed here; pip install 'fovea-serving\[embed\]'"):
        import_and_choose(["clip-vit-b-32"], {}, ("score", "generate"))


def test_models_that_the_memory_does_not_hold_together_are_refused_with_the_figures(gpu: Callable[[int], None]) -> None:
    gpu(16)
    figures = "GPU has 17.2 GB of free memory, and 17.8 GB are needed (llama-3.1-8b-instruct in generate 17.8 GB)"
    with pytest.raises(Refused, match=re.escape(figures)):
        import_and_choose(["llama-3.1-8b-instruct"], {}, SERVICES)
    with pytest.raises(
        Refused, match=r"vicuna-7b-v1.5 in generate 15\.0 GB, clip-vit-h-14 in score 2\.2 GB, clip-vit-h"
    ):
        import_and_choose(["vicuna-7b-v1.5", "clip-vit-h-14"], {}, SERVICES)


@pytest.mark.process
def test_a_gated_model_names_the_variable_for_its_token(hub: Callable[..., str], gpu: Callable[[int], None]) -> None:
    gpu(80)
    name = "llama-3.1-8b-instruct"
    url = hub(name, gated={_repository(catalogue()[name])})
    command = [sys.executable, "-m", "services.cli.main", "up", "--models", name]
    refused = subprocess.run(command, env=_environment(url), capture_output=True, text=True, check=False)
    assert refused.returncode == 1
    assert "is gated: accept its conditions on its page, and set HF_TOKEN" in refused.stderr
    assert "Traceback" not in refused.stderr


@pytest.fixture
def ports() -> Iterator[dict[str, int]]:
    with ExitStack() as kept:
        yield {name: kept.enter_context(kept_port()) for name in PACKAGES}


@pytest.mark.process
def test_the_guides_models_are_imported_and_served_in_one_command_and_not_imported_again(
    hub: Callable[..., str], ports: dict[str, int]
) -> None:
    (named,) = re.findall(r"^fovea up --models (\S+)$", GUIDE, re.MULTILINE)
    (curl,) = re.findall(r"^curl http://127.0.0.1:8080/v1/rerank (?:.*\n)*?.*'$", GUIDE, re.MULTILINE)
    listening = {f"FOVEA_{name.upper()}_PORT": str(port) for name, port in ports.items()}
    url = hub(*named.split(","))
    gateway = f"http://127.0.0.1:{ports['gateway']}"
    for address, is_first in ((url, True), ("http://127.0.0.1:9", False)):
        command = [sys.executable, "-m", "services.cli.main", "up", "--models", named]
        environment = _environment(address, FOVEA_GENERATE_DEVICE="cpu", **listening)
        with running(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, cwd=ROOT) as process:
            assert process.stdout is not None
            output = []
            for line in process.stdout:
                output.append(line)
                if "Ctrl-C stops" in line or " refused " in line:
                    break
            told = "".join(output)
            assert "Ready in" in told, told
            assert ("Importing 1 of 2: fovea store import hf://" in told) == is_first, told
            listed = subprocess.run(["curl", "-s", f"{gateway}/v1/models"], capture_output=True, check=True).stdout
            served = {one["id"].partition("@")[0] for one in json.loads(listed)["data"]}
            assert served == set(named.split(","))
            asked = curl.replace("http://127.0.0.1:8080", gateway)
            done = subprocess.run(["bash", "-c", asked], capture_output=True, text=True, check=True)
            assert len(json.loads(done.stdout)["results"]) == 2
            process.send_signal(signal.SIGINT)
            process.stdout.read()
        assert process.returncode == 0
    assert "predict  |" not in told
