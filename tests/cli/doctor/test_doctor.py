"""`fovea doctor` as a user runs it, on machines on which something is missing."""

import re
import shutil
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from services.core.store.checkpoint_files import packaged_starters, read_description
from services.core.store.manifest import VERSION_ID_LENGTH
from services.core.store.store import Store
from tests.cli.doctor.machine import ROOT, Machine
from tests.cli.test_missing_packages import EXTRAS
from tests.core.child_processes import running
from tests.core.redis_server import RedisServer, redis_executables
from tests.core.tiny_checkpoints import INFO, write_checkpoint
from tests.kept_port import kept_port

pytestmark = pytest.mark.process


def test_a_machine_on_which_all_works_has_no_failure_and_status_0(machine: Machine) -> None:
    ended = machine.doctor()
    assert (ended.returncode, ended.stderr) == (0, "")
    assert "gateway, predict, generate, embed, score can start" in ended.stdout
    assert "open-facts is packaged" in ended.stdout
    assert f"embed {machine.ports['EMBED']}" in ended.stdout
    assert re.search(r"^ok +versions +python 3\.\d+\.\d+, fovea-serving ", ended.stdout)
    assert not (machine.home / ".fovea").exists()


def test_every_topic_is_examined_and_whatever_is_not_well_has_a_cure(machine: Machine) -> None:
    found = machine.findings()
    topics = ["versions", "processes", "extras", "memory", "devices", "room", "store", "ports", "redis"]
    assert list(dict.fromkeys(one["topic"] for one in found)) == topics
    assert all(one["cure"] for one in found if one["status"] != "ok")
    extras = next(one for one in found if one["topic"] == "extras")
    assert {"gateway", "telemetry", "mcp"} <= set(extras["figures"]["installed"])


def test_the_doctor_imports_no_torch(machine: Machine) -> None:
    script = """
import sys
from services.cli.main import app
try:
    app(["doctor"], standalone_mode=False)
finally:
    sys.exit("torch" in sys.modules)
"""
    asked = subprocess.run(
        [sys.executable, "-c", script], env={**machine.environment, "PATH": ""}, capture_output=True, check=False
    )
    assert asked.returncode == 0, asked.stdout


def test_a_redis_that_is_configured_and_down_is_named_without_its_password(machine: Machine) -> None:
    with kept_port() as port:
        machine.environment["FOVEA_REDIS_URL"] = f"redis://:hunter2@127.0.0.1:{port}/0"
        ended = machine.doctor()
        [(topic, found, cure)] = machine.failures()
    assert (topic, ended.returncode) == ("redis", 1)
    assert found.startswith(f"redis://127.0.0.1:{port}/0 does not answer: ")
    assert cure == f"redis-server --port {port}, or go without it: unset FOVEA_REDIS_URL"
    assert "hunter2" not in ended.stdout + ended.stderr


@pytest.mark.parametrize("given", ["redis.example:6379", "redis://:hun/ter2@127.0.0.1:6379"])
def test_an_address_that_is_none_of_redis_is_a_failure_that_shows_no_password(given: str, machine: Machine) -> None:
    machine.environment["FOVEA_EMBED_REDIS_URL"] = given
    ended = machine.doctor()
    [(topic, found, cure)] = machine.failures()
    assert (topic, cure) == ("settings", "unset FOVEA_EMBED_REDIS_URL")
    assert found.startswith("embed would not start: FOVEA_EMBED_REDIS_URL: ")
    assert not any(part in ended.stdout + ended.stderr for part in ("hun", "ter2"))


@pytest.mark.skipif(not redis_executables(), reason="no Redis server is installed")
def test_a_redis_that_answers_is_well_and_one_that_hangs_is_not(machine: Machine) -> None:
    server = RedisServer(next(iter(redis_executables().values())), None)
    server.start()
    try:
        machine.environment["FOVEA_REDIS_URL"] = server.url
        assert {"topic": "redis", "status": "ok"}.items() <= machine.findings()[-1].items()
        server.hang()
        [(topic, _, _)] = machine.failures()
        assert topic == "redis"
    finally:
        server.stop()


def test_a_port_that_is_taken_is_named_with_a_free_one(machine: Machine) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = machine.environment["FOVEA_EMBED_PORT"] = str(taken.getsockname()[1])
        [(topic, found, cure)] = machine.failures()
    assert (topic, found) == ("ports", f"embed cannot listen on 127.0.0.1:{port} (Address already in use)")
    match = re.fullmatch(r"FOVEA_EMBED_PORT=(\d+) fovea up", cure)
    assert match is not None
    socket.create_server(("127.0.0.1", int(match[1]))).close()


def test_a_port_that_fovea_itself_listens_on_is_a_warning(machine: Machine) -> None:
    port = machine.ports["GATEWAY"]
    command = [sys.executable, "-m", "services.cli.main", "serve", "gateway"]
    with running(command, env=machine.environment, stdout=subprocess.PIPE) as gateway:
        assert gateway.stdout is not None
        while "listening" not in gateway.stdout.readline():
            assert gateway.poll() is None
        found = machine.findings()
        gateway.terminate()
    [warning] = [one for one in found if one["topic"] == "ports" and one["status"] == "warning"]
    assert warning["found"] == f"gateway: a Fovea runs already on 127.0.0.1:{port}"
    assert [one for one in found if one["status"] == "failure"] == []


@pytest.mark.parametrize("given", ["eighty", "70000"])
def test_what_is_no_port_is_a_failure(given: str, machine: Machine) -> None:
    machine.environment["FOVEA_SCORE_PORT"] = given
    assert ("unset FOVEA_SCORE_PORT") in [cure for _, _, cure in machine.failures()]


def test_less_room_than_is_asked_for_is_a_failure_that_names_the_folder(machine: Machine) -> None:
    [(topic, found, cure)] = machine.failures("--room", "1000000TiB")
    assert topic == "room"
    assert str(machine.home) in found
    assert "FOVEA_STORE_URL" in cure


def can_mount() -> bool:
    command = ["unshare", "-rm", "sh", "-c", "mount -t tmpfs -o size=1m tmpfs /mnt"]
    return shutil.which("unshare") is not None and subprocess.run(command, check=False).returncode == 0


def test_a_full_disk_is_a_failure(machine: Machine) -> None:
    if not can_mount():
        pytest.skip("no file system can be mounted here")
    disk = machine.home / "disk"
    disk.mkdir()
    script = f"mount -t tmpfs -o size=2m tmpfs {disk} && exec {sys.executable} -m services.cli.main doctor"
    environment = {**machine.environment, "HOME": str(disk)}
    ended = subprocess.run(
        ["unshare", "-rm", "sh", "-c", script], env=environment, capture_output=True, text=True, check=False
    )
    assert ended.returncode == 1, ended.stderr
    assert re.search(rf"^FAILURE +room +2 MiB of 2 MiB free for {disk}.*less than 1 GiB$", ended.stdout, re.MULTILINE)


def test_without_torch_the_services_can_not_start_and_one_command_mends_it(machine: Machine) -> None:
    [(topic, found, cure)] = machine.failures(without=("torch",))
    assert (topic, cure) == ("processes", "pip install 'fovea-serving[cpu]'")
    assert found == "torch is not installed, and predict, generate, embed, score can't start"


def test_one_service_that_lacks_its_packages_is_left_out_with_a_warning(machine: Machine) -> None:
    found = machine.findings(without=("textblob",))
    [warning] = [one for one in found if one["topic"] == "processes" and one["status"] == "warning"]
    assert warning["cure"] == "pip install 'fovea-serving[score]'"


def test_an_installation_without_the_gateway_as_in_the_image_of_jobs_works(machine: Machine) -> None:
    found = machine.findings(without=("limits",))
    [warning] = [one for one in found if one["topic"] == "processes" and one["status"] == "warning"]
    assert warning["found"].endswith("is not part of this installation, which lacks limits")
    assert warning["cure"] == "pip install 'fovea-serving[gateway]'"
    assert not [one for one in found if one["status"] == "failure"]


def test_the_core_alone_is_told_what_it_lacks(machine: Machine) -> None:
    failures = machine.failures(without=tuple(EXTRAS))
    assert {topic for topic, _, _ in failures} == {"processes"}
    assert {cure for _, _, cure in failures} == {"pip install 'fovea-serving[cpu]'"}


def test_collections_without_faiss_are_a_warning(machine: Machine) -> None:
    found = machine.findings(without=("faiss",))
    assert "pip install 'fovea-serving[search]'" in [one["cure"] for one in found if one["status"] == "warning"]


@pytest.mark.parametrize(
    ("variable", "value"),
    [("FOVEA_TYPO", "1"), ("FOVEA_GENERATE_MAX_TOKENS", "0"), ("FOVEA_EMBED_IMAGE_URL_HOSTS", "example.org")],
)
def test_a_setting_with_which_a_process_would_not_start_is_one_failure(
    variable: str, value: str, machine: Machine
) -> None:
    machine.environment[variable] = value
    [(topic, found, cure)] = machine.failures()
    assert (topic, cure) == ("settings", f"unset {variable}")
    assert variable in found


def test_a_model_that_the_store_lacks_is_a_failure_and_one_that_it_holds_is_named(
    machine: Machine, tmp_path: Path
) -> None:
    machine.environment["FOVEA_GENERATE_MODELS"] = "my-llama"
    [(topic, found, cure)] = machine.failures()
    assert topic == "store"
    assert found.startswith("generate would lack a model: there is no model 'my-llama' in ")
    assert cure == (
        "fovea store import SOURCE --name my-llama --alias latest, or fovea store publish FOLDER --name my-llama "
        "--alias latest, or change FOVEA_GENERATE_MODELS"
    )
    url = machine.environment["FOVEA_STORE_URL"] = (tmp_path / "store").as_uri()
    version = Store.open(url).publish("my-llama", write_checkpoint(tmp_path / "folder"), INFO)
    assert f"generate: my-llama@latest is {version.id}" in [one["found"] for one in machine.findings()]


def test_a_starter_of_an_earlier_release_is_told_with_the_command_that_publishes_the_packaged_one(
    machine: Machine, tmp_path: Path
) -> None:
    [packaged] = [folder for folder in packaged_starters() if folder.name == "open-facts"]
    url = machine.environment["FOVEA_STORE_URL"] = (tmp_path / "store").as_uri()
    store = Store.open(url)
    store.publish("open-facts", write_checkpoint(tmp_path / "earlier"), INFO)
    [warning] = [one for one in machine.findings() if one["topic"] == "store" and one["status"] == "warning"]
    assert warning["found"].startswith("generate: open-facts@latest is not the starter that this release packages")
    assert warning["cure"] == f"fovea store publish {packaged}"
    store.publish("open-facts", packaged, read_description(packaged).info())
    assert not [one for one in machine.findings() if one["topic"] == "store" and one["status"] == "warning"]


def test_a_task_that_the_store_lacks_is_named_with_the_variable_that_asks_for_it(machine: Machine) -> None:
    machine.environment["FOVEA_PREDICT_MODELS"] = "inferences,my-task@stable"
    [(_, found, cure)] = machine.failures()
    assert found.startswith("predict would lack a model: there is no model 'my-task' in ")
    assert cure.endswith("fovea store publish FOLDER --name my-task --alias stable, or change FOVEA_PREDICT_MODELS")


def test_a_misspelt_model_is_told_the_one_that_is_meant(machine: Machine, tmp_path: Path) -> None:
    machine.environment["FOVEA_GENERATE_MODELS"] = "my-lama"
    url = machine.environment["FOVEA_STORE_URL"] = (tmp_path / "store").as_uri()
    Store.open(url).publish("my-llama", write_checkpoint(tmp_path / "folder"), INFO)
    [(_, found, cure)] = machine.failures()
    assert found.endswith("; did you mean my-llama?")
    assert cure.endswith("or change FOVEA_GENERATE_MODELS")


def test_a_version_that_the_store_lacks_can_not_be_imported_under_its_id(machine: Machine) -> None:
    version = "0" * VERSION_ID_LENGTH
    machine.environment["FOVEA_GENERATE_MODELS"] = f"my-llama@{version}"
    [(_, found, cure)] = machine.failures()
    assert found.startswith("generate would lack a model: there is no model 'my-llama' in ")
    assert cure == "change FOVEA_GENERATE_MODELS"


@pytest.mark.parametrize("variable", ["FOVEA_GATEWAY_POOLS", "FOVEA_GATEWAY_KEYS_FILE"])
@pytest.mark.parametrize("content", [None, "{", '{"pools": [{}], "keys": [{}]}'])
def test_a_file_with_which_the_gateway_would_not_start_is_a_failure(
    machine: Machine, tmp_path: Path, variable: str, content: str | None
) -> None:
    path = tmp_path / "file.json"
    if content is not None:
        path.write_text(content)
    machine.environment[variable] = str(path)
    [(topic, found, cure)] = machine.failures()
    assert (topic, cure) == ("gateway", f"mend {path}, or unset {variable}")
    assert found.startswith(variable)


def test_a_damaged_model_is_a_failure(machine: Machine, tmp_path: Path) -> None:
    url = machine.environment["FOVEA_STORE_URL"] = (tmp_path / "store").as_uri()
    machine.environment["FOVEA_GENERATE_MODELS"] = "my-llama"
    version = Store.open(url).publish("my-llama", write_checkpoint(tmp_path / "folder"), INFO)
    (tmp_path / "store/models/my-llama/versions" / version.id / "manifest.json").write_text("{}")
    [(topic, found, _)] = machine.failures()
    assert topic == "store"
    assert "damaged" in found


@pytest.mark.parametrize("url", ["ftp://example.org", "file://elsewhere/store"])
def test_a_store_that_can_not_be_opened_is_one_failure(url: str, machine: Machine) -> None:
    machine.environment["FOVEA_STORE_URL"] = url
    [(topic, _, cure)] = machine.failures()
    assert topic == "store"
    assert "unset FOVEA_STORE_URL" in cure


def test_a_gpu_that_torch_can_not_use_is_a_warning_and_a_service_set_to_it_a_failure(
    machine: Machine, tmp_path: Path
) -> None:
    import torch

    if torch.cuda.is_available():
        pytest.skip("torch can use this machine's GPU")
    with_gpu(machine, tmp_path)
    machine.environment["FOVEA_EMBED_DEVICE"] = "cuda"
    found = [one for one in machine.findings() if one["topic"] == "devices"]
    assert [one["status"] for one in found] == ["warning", "warning", "failure"]
    assert torch.__version__ in found[0]["found"]
    assert "FOVEA_EMBED_DEVICE" in found[2]["cure"]


def test_searches_on_a_gpu_that_is_not_there_are_a_warning_as_they_run_on_the_processor(machine: Machine) -> None:
    import torch

    if torch.cuda.is_available():
        pytest.skip("there is one")
    machine.environment["FOVEA_EMBED_INDEX_DEVICE"] = "cuda"
    found = [one for one in machine.findings() if "index_device" in one["found"]]
    assert [(one["status"], one["cure"]) for one in found] == [("warning", "unset FOVEA_EMBED_INDEX_DEVICE")]


def with_gpu(machine: Machine, folder: Path) -> None:
    """Give the machine a GPU, as far as can be told without its libraries."""
    (folder / "programs").mkdir()
    (folder / "programs/nvidia-smi").write_text("#!/bin/sh\n")
    (folder / "programs/nvidia-smi").chmod(0o755)
    machine.environment["PATH"] = f"{folder}/programs:{machine.environment['PATH']}"


def test_on_a_gpu_it_tells_what_generate_answers_by_and_refuses_shares_of_more_than_all(
    machine: Machine, tmp_path: Path
) -> None:
    def told() -> tuple[str, str]:
        found = next(one for one in machine.findings() if one["topic"] == "devices" and "GPU, but" not in one["found"])
        return found["status"], found["found"]

    with_gpu(machine, tmp_path)
    status, found = told()
    assert (status, "own engine" in found) == ("warning", True)
    machine.environment["FOVEA_UP_VLLM"] = sys.executable
    status, found = told()
    assert status == "ok"
    assert f"vLLM ({sys.executable})" in found
    machine.environment["FOVEA_EMBED_MEMORY_SHARE"] = "0.5"
    status, found = told()
    assert status == "failure"
    assert "1.3 of a GPU" in found


def test_a_package_that_is_older_than_needed_is_named_with_the_version_to_install(
    machine: Machine, tmp_path: Path
) -> None:
    old = tmp_path / "packages" / "typer-0.1.0.dist-info"
    old.mkdir(parents=True)
    (old / "METADATA").write_text("Metadata-Version: 2.1\nName: typer\nVersion: 0.1.0\n")
    machine.environment["PYTHONPATH"] = f"{ROOT}:{old.parent}"
    [(topic, found, cure)] = machine.failures()
    assert topic == "versions"
    assert found.startswith("typer 0.1.0 is older than ")
    assert re.fullmatch(r"pip install 'typer>=[\d.]+'", cure)


def test_a_room_that_is_no_size_is_refused(machine: Machine) -> None:
    refused = machine.doctor("--room", "plenty")
    assert refused.returncode == 2
    assert "not a size such as 24GiB" in refused.stderr


def test_services_that_would_refuse_the_gateway_or_answer_anybody_are_told_with_how_to_make_a_secret(
    machine: Machine,
) -> None:
    def signing() -> dict[str, Any]:
        found = [one for one in machine.findings() if one["topic"] == "signing"]
        return found[0] if found else {}

    assert signing() == {}
    machine.environment["FOVEA_HOST"] = "0.0.0.0"
    assert (signing()["status"], "openssl rand -hex 32" in signing()["cure"]) == ("warning", True)
    shared, other = machine.home / "shared.secret", machine.home / "other.secret"
    machine.environment["FOVEA_SIGNING_SECRET_FILE"] = str(shared)
    assert signing()["status"] == "failure"
    assert str(shared) in signing()["found"]
    shared.write_text("a" * 64)
    other.write_text("b" * 64)
    assert (signing()["status"], "predict" in signing()["found"]) == ("ok", True)
    machine.environment["FOVEA_EMBED_SIGNING_SECRET_FILE"] = str(other)
    assert signing()["found"].startswith("embed would refuse the gateway's requests")
    other.write_text(f"{'b' * 64}\n{'a' * 64}")
    assert signing()["status"] == "ok"
