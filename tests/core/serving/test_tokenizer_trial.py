import json
import resource
import signal
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil
import pytest

from services.core.batching.batcher import Batcher
from services.core.serving import model_service, tokenizer_worker
from services.core.serving.model_service import ModelService
from services.core.serving.model_settings import ModelSettings
from services.core.serving.served_checkpoint import Candidate, VersionRefused
from services.core.serving.served_models import ServedModels
from services.core.serving.tokenizer_trial import CPU_S, MEMORY_BYTES, MEMORY_OF_FILES, WORKER, try_tokenizers
from services.core.store.errors import StoreUnavailable
from services.core.store.store import Store
from tests.core.serving.hostile_tokenizers import GROWING, HANGING, PANICKING, Hostile, hostile_tokenizer
from tests.core.tiny_checkpoints import INFO, write_checkpoint


class Engine:
    def warm_up(self) -> None:
        """Do nothing."""

    def self_check(self) -> None:
        """Do nothing."""

    def run_batch(self, items: Sequence[str]) -> list[str]:
        return list(items)


def write(folder: Path, tokenizer: dict[str, Any]) -> Path:
    folder.mkdir(exist_ok=True)
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer))
    return folder


@pytest.mark.parametrize(("hostile", "cpu_s"), [(HANGING, 1), (GROWING, CPU_S), (PANICKING, CPU_S)])
def test_a_tokenizer_that_needs_too_much_as_it_is_read_is_refused(tmp_path: Path, hostile: Hostile, cpu_s: int) -> None:
    write(tmp_path / "text", hostile_tokenizer(hostile))
    with pytest.raises(
        VersionRefused, match=rf"toy@v1: its tokenizer.json takes more than {cpu_s} s .* or breaks its library"
    ):
        try_tokenizers("toy@v1", tmp_path, cpu_s=cpu_s)


@pytest.mark.parametrize("texts", ["reference.json", "text_tower/reference.json", "labels.json"])
def test_a_tokenizer_is_tried_with_all_texts_of_the_version_whatever_else_is_there(tmp_path: Path, texts: str) -> None:
    tokenizer = hostile_tokenizer(HANGING)
    token = tokenizer["added_tokens"].pop()["content"]
    write(tmp_path / "text_tower", tokenizer)
    (tmp_path / "damaged.json").write_text("{")
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps([token]))  # texts of no tokenizer
    if texts == "reference.json":
        try_tokenizers("toy@v1", tmp_path)

    (tmp_path / texts).write_text(json.dumps({token: 1} if texts == "labels.json" else {"inputs": [{"text": token}]}))
    with pytest.raises(VersionRefused):
        try_tokenizers("toy@v1", tmp_path, cpu_s=1)


@pytest.mark.parametrize("folder", ["", "text"])
def test_a_version_whose_tokenizer_may_have_another_name_is_refused(tmp_path: Path, folder: str) -> None:
    (tmp_path / folder).mkdir(exist_ok=True)
    config = tmp_path / folder / "tokenizer_config.json"
    for harmless in ("0", "[]", json.dumps({"tokenizer_class": "T5Tokenizer"})):
        config.write_text(harmless)
        try_tokenizers("toy@v1", tmp_path)

    (config.parent / "tokenizer.4.0.0.json").write_text(json.dumps(hostile_tokenizer(HANGING)))
    config.write_text(json.dumps({"fast_tokenizer_files": ["tokenizer.4.0.0.json"]}))
    with pytest.raises(VersionRefused, match=r"toy@v1: its tokenizer_config\.json has fast_tokenizer_files"):
        try_tokenizers("toy@v1", tmp_path)


@pytest.mark.slow
def test_texts_that_can_not_be_read_within_the_memory_of_a_trial_are_not_passed_over(tmp_path: Path) -> None:
    folder = write(tmp_path, hostile_tokenizer(Hostile({"type": "Lowercase"}, "token")))
    try_tokenizers("toy@v1", folder)
    (folder / "labels.json").write_text(f"[{'[],' * (16 * 2**20)}0]")
    with pytest.raises(VersionRefused):
        try_tokenizers("toy@v1", folder)


def test_more_tokenizers_do_not_bring_more_memory(tmp_path: Path) -> None:
    for name in ("a", "b", "c"):
        write(tmp_path / name, hostile_tokenizer(HANGING))
    num_bytes = MEMORY_BYTES + MEMORY_OF_FILES * (tmp_path / "a/tokenizer.json").stat().st_size
    with pytest.raises(VersionRefused, match=f"or {num_bytes} bytes of memory"):
        try_tokenizers("toy@v1", tmp_path, cpu_s=1)


def workers() -> list[psutil.Process]:
    """Return the processes in which this one tries tokenizers."""
    found = []
    for one in psutil.Process().children():
        with suppress(psutil.NoSuchProcess):
            found += [one] if str(WORKER) in one.cmdline() else []
    return found


@pytest.mark.parametrize("sent", [signal.SIGKILL, signal.SIGTERM])
def test_a_trial_that_was_ended_from_outside_says_nothing_of_the_version(tmp_path: Path, sent: signal.Signals) -> None:
    folder = write(tmp_path, hostile_tokenizer(HANGING))

    def end() -> None:
        while not (found := workers()):
            time.sleep(0.01)
        found[0].send_signal(sent)

    with ThreadPoolExecutor(1) as pool:
        ending = pool.submit(end)
        with pytest.raises(StoreUnavailable, match=f"toy@v1: the process that tried its tokenizer ended with -{sent}"):
            try_tokenizers("toy@v1", folder)
        ending.result()


def test_a_trial_that_can_not_begin_says_nothing_of_the_version(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = write(tmp_path, hostile_tokenizer(HANGING))
    monkeypatch.setenv("PYTHONHOME", str(tmp_path))  # where there is no library of Python's
    with pytest.raises(StoreUnavailable, match="toy@v1: the process that tried its tokenizer ended with 1"):
        try_tokenizers("toy@v1", folder)


def test_tokenizers_are_tried_where_the_system_has_no_such_limits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise OSError

    write(tmp_path, hostile_tokenizer(PANICKING))
    monkeypatch.setattr("sys.argv", [str(WORKER), "1", "1", str(tmp_path)])
    monkeypatch.setattr(resource, "setrlimit", refuse)
    monkeypatch.setattr(Path, "write_text", refuse)
    assert tokenizer_worker.main() == tokenizer_worker.BROKEN


async def test_a_version_that_is_loaded_again_is_not_tried_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store_url = (tmp_path / "store").as_uri()
    version = Store.open(store_url).publish("toy", write_checkpoint(tmp_path / "new"), INFO)
    tried: list[str] = []
    monkeypatch.setattr(model_service, "try_tokenizers", lambda label, _: tried.append(label))
    settings = ModelSettings(port=1, models=("toy",), store_url=store_url, checkpoint_cache_dir=tmp_path / "cache")
    host = ModelService("test", settings)
    models: ServedModels[Engine, str, Batcher[str, str]] = host.follow(
        {INFO.kind: lambda _: Engine()}, make_batcher=host.batcher, measure=lambda _: 1, describe=str
    )
    checkpoint = models.residents[0].checkpoint
    await checkpoint.look()
    await checkpoint.unload()
    await checkpoint.load()
    assert checkpoint.is_loaded
    assert tried == [f"toy@{version.id}"]
    await models.close()


async def test_the_trial_of_a_version_that_is_given_up_ends(tmp_path: Path) -> None:
    folder = write(tmp_path, hostile_tokenizer(HANGING))

    def load() -> Engine:
        try_tokenizers("toy@v1", folder)
        return Engine()

    with pytest.raises(VersionRefused, match=r"did not load within 0\.3 s"):
        await Candidate("toy@v1", load).ready(0.3)
    assert not workers()
