"""Versions that hang, grow or ask for too much, published to the store of a running service."""

import base64
import json
import shutil
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil
import pytest
import requests

from services.cli.programs import PACKAGES
from services.core.serving.tokenizer_trial import MEMORY_BYTES, MEMORY_OF_FILES
from services.core.store.checkpoint_files import read_description
from services.core.store.store import Store
from tests.contract.processes import Process, start_process
from tests.contract.running_fovea import settings_of_a_test
from tests.core.image_files import encode, scene
from tests.core.serving.hostile_tokenizers import GROWING, HANGING, SOURCE, Hostile, hostile_tokenizer

ROOT = Path(__file__).parents[2]
# Enough to load a starter on a slow machine; the test waits as long for one that hangs.
LOAD_TIMEOUT_S = 25
# What requests leave in the allocator and a process that reads a tokenizer take some 50 MB. A version that does not end
# takes 40 to 230 MB more each second.
FREE_BYTES = 150 * 2**20
PHOTO = f"data:image/jpeg;base64,{base64.b64encode(encode(scene(), 'JPEG')).decode()}"
PROBLEM = {"body": "Tom has 3 red and 4 blue cars.", "question": "How many cars does he have?"}
# Fields of answers that name the request, its time and the version.
NAMES = ("id", "created", "model", "system_fingerprint")


@dataclass(frozen=True)
class Served:
    """A service with a starter, a small request, and the path of a number of layers in one of the starter's files."""

    starter: str
    route: str
    body: dict[str, Any]
    config: str
    layers: tuple[str, ...]


SERVICES = {
    "predict": Served("word-problems", "/predict", {"inputs": [PROBLEM]}, "config.json", ("num_layers",)),
    "generate": Served(
        "litm-facts",
        "/v1/completions",
        {"model": "litm-facts", "prompt": "Question: who lit it?", "max_tokens": 2, "temperature": 0},
        "config.json",
        ("num_hidden_layers",),
    ),
    "embed": Served(
        "focallens-shapes",
        "/v1/embeddings",
        {"model": "focallens-shapes", "input": "a red square"},
        "open_clip_config.json",
        ("model_cfg", "text_cfg", "layers"),
    ),
    "score": Served(
        "fsc-clip-scenes",
        "/score",
        {"image": PHOTO, "captions": ["a red square", "a blue circle"]},
        "open_clip_config.json",
        ("model_cfg", "vision_cfg", "layers"),
    ),
}


@dataclass
class Memory:
    """The memory that a process and its children hold."""

    process: psutil.Process
    peak_bytes: int = 0

    def now(self) -> int:
        total, own = self.process.memory_info().rss, self.process.cmdline()
        for child in self.process.children(recursive=True):
            try:
                # before it runs its own program, a child shares its parent's memory
                total += child.memory_info().rss if child.cmdline() != own else 0
            except psutil.NoSuchProcess:  # also a zombie
                continue
        return total

    @contextmanager
    def watched(self) -> Iterator[None]:
        """Keep the most that they hold meanwhile."""
        is_over = threading.Event()
        self.peak_bytes = self.now()

        def watch() -> None:
            while not is_over.wait(0.05):
                self.peak_bytes = max(self.peak_bytes, self.now())

        with ThreadPoolExecutor(1) as pool:
            watching = pool.submit(watch)
            try:
                yield
            finally:
                is_over.set()
            watching.result()


@dataclass
class Running:
    """The process of a service with one starter, and the store from which it takes versions."""

    name: str
    folder: Path
    store: Store
    process: Process
    memory: Memory = field(init=False)

    def __post_init__(self) -> None:
        self.memory = Memory(psutil.Process(self.process.process.pid))

    @property
    def served(self) -> Served:
        return SERVICES[self.name]

    def answer(self) -> Any:
        """Send the small request; returns its answer without NAMES."""
        response = requests.post(f"{self.process.url}{self.served.route}", json=self.served.body, timeout=60)
        assert response.status_code == 200, response.text
        return {name: value for name, value in response.json().items() if name not in NAMES}

    def publish(self, change: Callable[[Path, Served], None]) -> str:
        """Publish a changed copy of the starter as the version that the service follows; returns its id."""
        starter = ROOT / "services" / self.name / "starter" / self.served.starter
        copy = self.folder / change.__name__
        shutil.copytree(starter, copy)
        change(copy, self.served)
        return self.store.publish(self.served.starter, copy, read_description(starter).info()).id

    def told(self, version: str) -> dict[str, Any]:
        """Return what the service says of a version; nothing before it has seen it."""
        url = f"{self.process.url}/v1/models/{self.served.starter}/versions"
        versions = requests.get(url, timeout=60).json()["data"]
        return next((one for one in versions if one["version"] == version), {})

    def answer_until(self, fact: str, version: str, expected: Any) -> None:
        """Send the small request again and again, for the same answer, until `fact` is told of a version."""
        while not self.told(version).get(fact):
            assert self.answer() == expected
            time.sleep(0.1)  # leaves the machine to the service


@contextmanager
def running(name: str, folder: Path) -> Iterator[Running]:
    settings = {
        **settings_of_a_test(folder),
        f"FOVEA_{name.upper()}_PORT": "0",
        f"FOVEA_{name.upper()}_MODELS": SERVICES[name].starter,
        f"FOVEA_{name.upper()}_DTYPE": "float32",
        "FOVEA_STORE_POLL_S": "0.1",
        "FOVEA_LOAD_TIMEOUT_S": str(LOAD_TIMEOUT_S),
        "FOVEA_CACHE_MAX_BYTES": "0",  # every answer is computed
    }
    process = start_process(PACKAGES[name][0], folder / "log", settings)
    try:
        process.wait_until_ready()
        yield Running(name, folder, Store.open(settings["FOVEA_STORE_URL"]), process)
        assert process.stop() == 0, process.log.read_text()
    finally:
        process.process.kill()
        process.process.wait()


def of_a_thousand_million_layers(copy: Path, served: Served) -> None:
    config = json.loads((copy / served.config).read_text())
    *parents, last = served.layers
    part = config
    for parent in parents:
        part = part[parent]
    part[last] = 10**9
    (copy / served.config).write_text(json.dumps(config))


def with_tokenizer(copy: Path, served: Served, hostile: Hostile) -> None:
    path = copy / "tokenizer.json"
    tokenizer = hostile_tokenizer(hostile, path if path.exists() else SOURCE)
    path.write_text(json.dumps(tokenizer))
    if served.config == "open_clip_config.json":
        config = json.loads((copy / served.config).read_text())
        config["model_cfg"]["text_cfg"]["hf_tokenizer_name"] = "of the folder"
        (copy / served.config).write_text(json.dumps(config))


def that_grows(copy: Path, served: Served) -> None:
    with_tokenizer(copy, served, GROWING)


def that_hangs(copy: Path, served: Served) -> None:
    with_tokenizer(copy, served, HANGING)


def that_is_good(copy: Path, served: Served) -> None:
    (copy / "notes.txt").write_text("The same weights once more.\n")


REFUSALS = {
    of_a_thousand_million_layers: "did not load (Refused)",  # at once
    that_grows: "tokenizer.json takes more than",
    that_hangs: f"did not load within {LOAD_TIMEOUT_S} s",
}


@pytest.mark.slow
@pytest.mark.parametrize("name", SERVICES)
def test_a_version_that_hangs_or_grows_is_refused_while_the_old_one_answers_and_the_next_good_one_serves(
    name: str, tmp_path: Path
) -> None:
    with running(name, tmp_path) as service:
        expected = service.answer()
        children = service.memory.process.children()
        for bad, reason in REFUSALS.items():
            before = service.memory.now()
            with service.memory.watched():
                version = service.publish(bad)
                service.answer_until("refusal", version, expected)
            assert reason in service.told(version)["refusal"]
            trial_bytes = 0
            if bad is that_grows:  # as far as the process may in which tokenizers are tried
                file_bytes = (tmp_path / bad.__name__ / "tokenizer.json").stat().st_size
                trial_bytes = MEMORY_BYTES + MEMORY_OF_FILES * file_bytes
            assert service.memory.peak_bytes - before < FREE_BYTES + trial_bytes
            assert service.memory.process.children() == children, "nothing of the version goes on"

        version = service.publish(that_is_good)
        service.answer_until("serving", version, expected)
        assert service.answer() == expected
