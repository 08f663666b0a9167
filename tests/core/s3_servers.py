"""Real S3 servers on free ports: rclone, which ignores conditions on a put, and moto, which honours them."""

import re
import ssl
import subprocess
import sys
import threading
import urllib.request
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from http.client import HTTPConnection
from pathlib import Path
from typing import IO
from urllib.parse import quote

ACCESS_KEY_ID = "testaccess"
SECRET_ACCESS_KEY = "testsecret"
BUCKET = "checkpoints"


@dataclass(frozen=True)
class S3Server:
    endpoint: str

    def url(self, prefix: str) -> str:
        return f"s3://{BUCKET}/{prefix}?endpoint={self.endpoint}&region=us-east-1"

    @property
    def options(self) -> dict[str, str]:
        return {"access_key_id": ACCESS_KEY_ID, "secret_access_key": SECRET_ACCESS_KEY}


@contextmanager
def rclone_server(folder: Path, *flags: str, port: int = 0) -> Iterator[S3Server]:
    """Objects lie as files under `folder/BUCKET/`.

    Its own cache stays off: with it, an object that is replaced is missing or of the wrong size for a moment.
    """
    (folder / BUCKET).mkdir(parents=True, exist_ok=True)
    command = ["rclone", "serve", "s3", "--addr", f"127.0.0.1:{port}", "--vfs-cache-mode", "off", *flags]
    command += ["--auth-key", f"{ACCESS_KEY_ID},{SECRET_ACCESS_KEY}"]
    command[0] = str(Path(sys.executable).with_name("rclone"))
    with _running([*command, str(folder)]) as endpoint:
        yield S3Server(endpoint)


@contextmanager
def moto_server(authority: Path | None = None, certificate: Path | None = None) -> Iterator[S3Server]:
    """`certificate` is a file with a certificate and its key, for TLS, which the authority gave."""
    command = [str(Path(sys.executable).with_name("moto_server")), "-H", "127.0.0.1", "-p", "0"]
    if certificate is not None:
        command += ["--ssl", f"--ssl-cert={certificate}", f"--ssl-key={certificate}"]
    trusting = None if authority is None else ssl.create_default_context(cafile=str(authority))
    with _running(command) as endpoint:
        making = urllib.request.Request(f"{endpoint}/{BUCKET}", method="PUT")
        urllib.request.urlopen(making, context=trusting).close()
        yield S3Server(endpoint)


def put_raw(server: S3Server, bucket: str, *keys: str) -> None:
    """Put empty objects under keys that no client of ours would send."""
    connection = HTTPConnection(server.endpoint.removeprefix("http://"))
    for path in (bucket, *(f"{bucket}/{quote(key)}" for key in keys)):
        connection.request("PUT", f"/{path}", body=b"")
        answer = connection.getresponse()
        assert answer.status == 200, answer.read()
        answer.read()
    connection.close()


@contextmanager
def _running(command: Sequence[str]) -> Iterator[str]:
    """The address that a server prints when it is ready."""
    server = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    assert server.stdout is not None
    # A server whose output nobody reads stops at a full pipe.
    reader = threading.Thread(target=deque, args=(server.stdout, 0))
    try:
        address = _printed_address(server.stdout)
        reader.start()
        yield address
    finally:
        server.kill()
        server.wait()
        if reader.is_alive():
            reader.join()
        server.stdout.close()


def _printed_address(output: IO[str]) -> str:
    printed = []
    for line in output:
        printed.append(line)
        if address := re.search(r"https?://127\.0\.0\.1:\d+", line):
            return address.group()
    raise AssertionError(f"the server ended: {''.join(printed)}")
