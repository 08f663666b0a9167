"""Services over a store that is mounted read-only, as the image of a model is in a cluster."""

import json
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest
import requests

from services.cli.programs import PACKAGES
from services.core.store.store import Store
from tests.contract.processes import Process
from tests.contract.running_fovea import settings_of_a_test
from tests.contract.test_hung_versions import ROOT, SERVICES

pytestmark = pytest.mark.process
# The folder becomes a mount of itself, as a kubelet mounts an image: not even root writes into it.
MOUNT = "mount --bind {store} {store} && mount -o remount,bind,ro {store} && "


def can_mount(folder: Path) -> bool:
    command = ["unshare", "-rm", "sh", "-c", MOUNT.format(store=folder) + f"! touch {folder}/file"]
    return shutil.which("unshare") is not None and subprocess.run(command, capture_output=True).returncode == 0


@pytest.mark.parametrize("name", SERVICES)
def test_a_service_answers_from_a_mounted_store_and_copies_nothing(name: str, tmp_path: Path) -> None:
    if not can_mount(tmp_path):
        pytest.skip("nothing can be mounted here")
    served = SERVICES[name]
    settings = settings_of_a_test(tmp_path) | {
        f"FOVEA_{name.upper()}_PORT": "0",
        f"FOVEA_{name.upper()}_MODELS": served.starter,
        "FOVEA_CHECKPOINT_CACHE_MAX_BYTES": "0",
    }
    Store.open(settings["FOVEA_STORE_URL"]).publish_starters([ROOT / "services" / name / "starter" / served.starter])
    program = f"exec {sys.executable} -m {PACKAGES[name][0]}"
    command = ["unshare", "-rm", "sh", "-c", MOUNT.format(store=tmp_path / "store") + program]
    log = tmp_path / "service.log"
    with log.open("wb") as output:
        process = subprocess.Popen(command, env=settings, stdout=output, stderr=subprocess.STDOUT, cwd=ROOT)
    try:
        while b'"port"' not in log.read_bytes():
            assert process.poll() is None, log.read_text()
            time.sleep(0.05)  # another process tells nobody when it listens
        listening = next(line for line in log.read_text().splitlines() if '"port"' in line)
        service = Process(process, log, json.loads(listening)["port"])
        service.wait_until_ready()
        answer = requests.post(f"{service.url}{served.route}", json=served.body, timeout=60)
    finally:
        process.kill()
        process.wait()

    assert answer.status_code == 200, answer.text
    assert not (tmp_path / "checkpoints").exists()
    assert "error" not in {json.loads(line)["level"] for line in log.read_text().splitlines()}
