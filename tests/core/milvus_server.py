"""A real Milvus server for the tests: standalone, with its own etcd and message queue, keeping all in one folder."""

import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

import pytest

START_S = 120.0
# What Go's account of a crash begins with. The stacks of all threads follow, so its last lines are of no use.
CRASH = re.compile(r"^(?:panic|fatal error|SIG[A-Z]+|unexpected fault address|\[signal)\b", re.MULTILINE)
# What deployments set, too: indexes that Milvus makes for vectors without lists are approximate, whatever is asked for;
# and for `common.session.ttl` seconds a Milvus that starts waits for its former self.
DEPLOYED = {"queryNode.segcore.interimIndex.enableIndex": "false", "common.session.ttl": "10"}
OPTIONS = {**DEPLOYED, "log.level": "warn"}

ETCD = """
name: default
listen-client-urls: http://127.0.0.1:{client_port}
advertise-client-urls: http://127.0.0.1:{client_port}
listen-peer-urls: http://127.0.0.1:{peer_port}
initial-advertise-peer-urls: http://127.0.0.1:{peer_port}
initial-cluster: default=http://127.0.0.1:{peer_port}
"""


class MilvusCrashed(Exception):
    """The server ended while it started; the message is what it said of the reason."""


def first_lines_of_the_crash(output: str, num_lines: int = 40) -> str:
    """Cut the crash and the ten lines before it out of the server's output; without a crash, its end."""
    crash = CRASH.search(output)
    if crash is None:
        return "\n".join(output.splitlines()[-num_lines:])
    before, after = output[: crash.start()].splitlines(), output[crash.start() :].splitlines()
    return "\n".join([*before[-10:], *after[:num_lines]])


class MilvusServer:
    """A server that can be killed and started again with the same data and address."""

    def __init__(self, folder: Path) -> None:
        """Write the configuration, with free ports, and the program into `folder`. Takes seconds."""
        import milvus

        self._folder = folder
        configuration = milvus.MilvusServerConfig(data_dir=str(folder))
        names = [name for name in configuration.configurable_items if name.endswith("_port")]
        *ports, self._metrics_port, client_port, peer_port = free_ports(len(names) + 3)
        configuration.update(**dict(zip(names, ports, strict=True)))
        for name, value in OPTIONS.items():
            configuration.set(name, value)
        configuration.resolve()
        milvus._initialize_data_files(str(folder))
        # without this file, etcd takes the same two ports for every server
        (folder / "etcd.yaml").write_text(ETCD.format(client_port=client_port, peer_port=peer_port))
        self.url = f"http://127.0.0.1:{configuration.get('proxy_port')}"
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Return when it answers. Raises MilvusCrashed."""
        environment = os.environ | {
            "DEPLOY_MODE": "STANDALONE",
            "ETCD_CONFIG_PATH": str(self._folder / "etcd.yaml"),
            "METRICS_PORT": str(self._metrics_port),
            "MILVUS_RUN_DIR": str(self._folder / "run"),
            "LD_LIBRARY_PATH": str(self._folder / "bin"),
        }
        command = [str(self._folder / "bin" / "milvus"), "run", "standalone"]
        with (self._folder / "output.log").open("a") as output:
            self._process = subprocess.Popen(
                command, cwd=self._folder, env=environment, stdout=output, stderr=output, start_new_session=True
            )
        give_up = time.monotonic() + START_S
        while not self._is_healthy():
            if self._process.poll() is not None:
                raise MilvusCrashed(first_lines_of_the_crash((self._folder / "output.log").read_text()))
            assert time.monotonic() < give_up, "milvus does not become healthy"
            time.sleep(0.1)  # a server that starts can only be polled

    def kill(self) -> None:
        """End it at once; what it acknowledged is on the disk."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()

    def hang(self) -> None:
        """Stop answering, while connections stay open."""
        assert self._process is not None
        self._process.send_signal(signal.SIGSTOP)

    def go_on(self) -> None:
        assert self._process is not None
        self._process.send_signal(signal.SIGCONT)

    def _is_healthy(self) -> bool:
        with suppress(OSError), urllib.request.urlopen(f"http://127.0.0.1:{self._metrics_port}/healthz") as answer:
            return b"OK" in answer.read()
        return False


@contextmanager
def milvus_server() -> Iterator[MilvusServer]:
    """Start a server without data, a second time if it crashes. Skips the test where Milvus is not installed."""
    pytest.importorskip("milvus", reason="needs the server of PyPI's `milvus`, for Linux on x86-64")
    with ExitStack() as stack:
        try:
            server = stack.enter_context(_started())
        except MilvusCrashed as crashed:
            print(f"milvus crashed while it started, and is started again:\n{crashed}", file=sys.stderr)
            server = stack.enter_context(_started())
        yield server


@contextmanager
def _started() -> Iterator[MilvusServer]:
    """Start a server in a folder and on ports of its own."""
    folder = Path(tempfile.mkdtemp(prefix="fovea-milvus-"))
    try:
        server = MilvusServer(folder)
        try:
            server.start()
            yield server
        finally:
            server.kill()
    finally:
        shutil.rmtree(folder)


def free_ports(number: int) -> list[int]:
    sockets = [socket.socket() for _ in range(number)]
    try:
        for one in sockets:
            one.bind(("127.0.0.1", 0))
        return [one.getsockname()[1] for one in sockets]
    finally:
        for one in sockets:
            one.close()
