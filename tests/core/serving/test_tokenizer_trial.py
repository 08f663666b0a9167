import json
import threading
import time
from pathlib import Path
from typing import Any

import psutil
import pytest

from services.core.serving.served_checkpoint import Candidate, Refused
from services.core.serving.tokenizer_trial import CPU_S, WORKER, try_tokenizers
from services.core.store.errors import StoreUnavailable
from tests.core.serving.hostile_tokenizers import GROWING, HANGING, PANICKING, Hostile, hostile_tokenizer


class Engine:
    def warm_up(self) -> None:
        """Do nothing."""

    def self_check(self) -> None:
        """Do nothing."""


def write(folder: Path, tokenizer: dict[str, Any]) -> Path:
    folder.mkdir(exist_ok=True)
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer))
    return folder


@pytest.mark.parametrize(("hostile", "cpu_s"), [(HANGING, 1), (GROWING, CPU_S), (PANICKING, CPU_S)])
def test_a_tokenizer_that_needs_too_much_as_it_is_read_is_refused(tmp_path: Path, hostile: Hostile, cpu_s: int) -> None:
    write(tmp_path / "text", hostile_tokenizer(hostile))
    with pytest.raises(
        Refused, match=rf"toy@v1: its tokenizer.json takes more than {cpu_s} s .* or breaks its library"
    ):
        try_tokenizers("toy@v1", tmp_path, cpu_s=cpu_s)


def test_a_tokenizer_is_tried_with_the_texts_beside_it_whatever_else_is_there(tmp_path: Path) -> None:
    tokenizer = hostile_tokenizer(HANGING)
    token = tokenizer["added_tokens"].pop()["content"]
    folder = write(tmp_path, tokenizer)
    try_tokenizers("toy@v1", folder, cpu_s=1)

    (folder / "damaged.json").write_text("{")
    (folder / "reference.json").write_text(json.dumps({"inputs": [{"text": token}]}))
    with pytest.raises(Refused):
        try_tokenizers("toy@v1", folder, cpu_s=1)


@pytest.mark.slow
def test_texts_that_can_not_be_read_within_the_memory_of_a_trial_are_not_passed_over(tmp_path: Path) -> None:
    folder = write(tmp_path, hostile_tokenizer(Hostile({"type": "Lowercase"}, "token")))
    try_tokenizers("toy@v1", folder)
    (folder / "tokenizer_config.json").write_text(f"[{'[],' * (8 * 2**20)}0]")
    with pytest.raises(Refused):
        try_tokenizers("toy@v1", folder)


def test_a_trial_that_was_killed_from_outside_says_nothing_of_the_version(tmp_path: Path) -> None:
    folder = write(tmp_path, hostile_tokenizer(HANGING))

    def kill() -> None:
        while not (workers := [one for one in psutil.Process().children() if str(WORKER) in one.cmdline()]):
            time.sleep(0.01)
        workers[0].kill()

    killer = threading.Thread(target=kill)
    killer.start()
    with pytest.raises(StoreUnavailable, match="toy@v1: the process that tried its tokenizer was killed"):
        try_tokenizers("toy@v1", folder)
    killer.join()


async def test_the_trial_of_a_version_that_is_given_up_ends(tmp_path: Path) -> None:
    folder = write(tmp_path, hostile_tokenizer(HANGING))

    def load() -> Engine:
        try_tokenizers("toy@v1", folder)
        return Engine()

    with pytest.raises(Refused, match=r"did not load within 0\.3 s"):
        await Candidate("toy@v1", load).ready(0.3)
    assert not [one for one in psutil.Process().children() if str(WORKER) in one.cmdline()]
