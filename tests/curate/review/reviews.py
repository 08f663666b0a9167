"""Reviews as people hold them: pairs on photographs, and the command that serves them as a process of its own."""

import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import httpx2
import skimage

from services.jobs.sugarcrepe import Pair, write_pairs

# The commands of this checkout, in whatever folder they run.
ENVIRONMENT = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[3])}
PHOTOGRAPHS = ("chelsea.png", "coffee.png", "astronaut.png", "rocket.jpg")
# By hand. The last of each photograph has a negative that is true as well.
_CAPTIONS: dict[str, list[tuple[Any, str, str]]] = {
    "chelsea.png": [
        ("replace_obj", "A ginger cat looks past the camera.", "A ginger dog looks past the camera."),
        ("replace_att", "A ginger cat looks past the camera.", "A black cat looks past the camera."),
        ("add_att", "A cat with long whiskers.", "A cat with long whiskers and a red collar."),
        ("swap_att", "A ginger cat with green eyes.", "A green cat with ginger eyes."),
        ("replace_rel", "A cat that looks past the camera.", "A cat that faces the camera."),
    ],
    "coffee.png": [
        ("replace_obj", "A cup of coffee on a saucer.", "A glass of wine on a saucer."),
        ("replace_rel", "A spoon lies beside a cup of coffee.", "A spoon stands in a cup of coffee."),
        ("add_obj", "A cup of coffee on a table.", "A cup of coffee and a croissant on a table."),
        ("swap_obj", "A cup stands on a saucer.", "A saucer stands on a cup."),
        ("replace_att", "A cup of coffee with light brown foam.", "A cup of coffee with golden foam."),
    ],
    "astronaut.png": [
        ("replace_att", "A smiling woman in an orange suit.", "A smiling woman in a green suit."),
        ("replace_obj", "A woman in front of a flag.", "A woman in front of a bookshelf."),
        ("swap_obj", "A flag behind a woman in a suit.", "A woman behind a flag in a suit."),
        ("negate", "A woman who smiles.", "A woman who does not smile."),
        ("replace_obj", "An astronaut in front of a model of a shuttle.", "A person in front of a model of a shuttle."),
    ],
    "rocket.jpg": [
        ("replace_rel", "A rocket stands on its launch pad.", "A rocket flies above its launch pad."),
        ("replace_att", "A white rocket on a launch pad.", "A red rocket on a launch pad."),
        ("add_obj", "A rocket between tall masts.", "A rocket and a helicopter between tall masts."),
        ("shuffle", "A rocket stands between tall masts.", "Masts tall a between rocket stands."),
        ("replace_obj", "A rocket between tall masts.", "A rocket between lightning rods."),
    ],
}
PAIRS = [
    Pair(id=f"{Path(name).stem}-{place}", kind=kind, filename=name, caption=caption, negative_caption=negative)
    for name, captions in _CAPTIONS.items()
    for place, (kind, caption, negative) in enumerate(captions, 1)
]


def write_review(folder: Path, pairs: Sequence[Pair] = PAIRS) -> None:
    """Write `pairs.jsonl` and the photographs in `images`."""
    write_pairs(folder / "pairs.jsonl", pairs)
    (folder / "images").mkdir()
    for name in PHOTOGRAPHS:
        shutil.copy(Path(skimage.__file__).parent / "data" / name, folder / "images")


class Served:
    """`fovea curate review` as a process, which can be killed and started again on the same files and port."""

    def __init__(self, folder: Path, port: int, *options: str) -> None:
        self.url = f"http://127.0.0.1:{port}"
        files = ("pairs.jsonl", "--images", "images", "--database", "verdicts.sqlite", "--port", str(port))
        self.command = (sys.executable, "-m", "services.cli.main", "curate", "review", *files, *options)
        self._folder = folder
        self._process: subprocess.Popen[str] | None = None

    def start(self) -> str:
        """Start it and return the address that it prints."""
        self._process = subprocess.Popen(
            self.command, cwd=self._folder, env=ENVIRONMENT, stdout=subprocess.PIPE, text=True
        )
        assert self._process.stdout is not None
        printed = self._process.stdout.readline()
        found = re.search(r"http://\S+", printed)
        assert found, printed
        with httpx2.Client(transport=httpx2.HTTPTransport(retries=8)) as client:
            assert client.get(f"{self.url}/livez", timeout=60).status_code == 200
        return found[0]

    @property
    def is_running(self) -> bool:
        return self._process is not None

    def end(self, how: signal.Signals = signal.SIGTERM) -> int:
        """Send a signal and return the exit status."""
        assert self._process is not None
        self._process.send_signal(how)
        status = self._process.wait()
        assert self._process.stdout is not None
        self._process.stdout.close()
        self._process = None
        return status

    def __enter__(self) -> "Served":
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._process is not None:
            self.end(signal.SIGKILL)
