"""`fovea` as the first process of a container, which the kernel lets ignore every signal that it has no handler for."""

import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.core.child_processes import running

pytestmark = pytest.mark.process

NAMESPACE = ["unshare", "--user", "--map-root-user", "--pid", "--fork", "--kill-child"]


def namespaces_work() -> bool:
    return shutil.which("unshare") is not None and subprocess.run([*NAMESPACE, "true"]).returncode == 0


@pytest.mark.skipif(not namespaces_work(), reason="needs unshare and user namespaces")
def test_it_ends_when_it_is_told_so_while_it_still_starts() -> None:
    command = [*NAMESPACE, sys.executable, "-m", "services.cli.main", "serve", "embed"]
    with running(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT) as process:
        children = Path(f"/proc/{process.pid}/task/{process.pid}/children")
        while process.poll() is None:
            for first in children.read_text().split():
                subprocess.run(["kill", "-TERM", first], stderr=subprocess.DEVNULL)
            time.sleep(0.05)  # it is deaf until it has begun
        output, _ = process.communicate()
    assert (process.returncode, output) == (143, "")
