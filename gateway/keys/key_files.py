"""Sources of keys: a file that the gateway follows, or the Secret that a cluster mounts as one."""

import base64
import fcntl
import json
import os
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from gateway.access import KeyFile, parse_key_file, read_key_file
from services.core.durable_files import write_durably

ENTRY = "keys.json"


class KeysUnavailable(Exception):
    """Keys that can't be read or written; the message is one line for users."""


class KeysInFile:
    """A keys file, which one command changes at a time.

    Within `changing`, which yields what it holds, `write` replaces that and nothing else. All methods raise
    KeysUnavailable.
    """

    def __init__(self, path: Path) -> None:
        self._shown = path
        self._path = path.expanduser()

    def __str__(self) -> str:
        return str(self._shown)

    def read(self) -> KeyFile:
        try:
            return read_key_file(self._path)
        except FileNotFoundError:
            return KeyFile()
        except OSError as error:
            raise KeysUnavailable(f"{self}: {error.strerror}") from error
        except ValueError as broken:
            raise KeysUnavailable(str(broken)) from broken

    @contextmanager
    def changing(self) -> Iterator[KeyFile]:
        self._path.parent.mkdir(parents=True, exist_ok=True)
        folder = os.open(self._path.parent, os.O_RDONLY | os.O_DIRECTORY)
        try:
            fcntl.flock(folder, fcntl.LOCK_EX)
            yield self.read()
        finally:
            os.close(folder)

    def write(self, keys: KeyFile) -> None:
        write_durably(self._path, [_content(keys)])


class KeysInSecret:
    """A Secret, by kubectl and its current context. What else is in it stays.

    Its methods are those of `KeysInFile`. Several people may change it from their own machines: each changes the keys
    as they are in the cluster, and a change that another has overtaken is refused, so that nobody's keys are revoked by
    somebody who did not know of them.
    """

    def __init__(self, reference: str) -> None:
        self._namespace, _, self._name = reference.partition("/")
        if not (self._namespace and self._name) or "/" in self._name:
            raise KeysUnavailable(f"{reference!r} is not NAMESPACE/NAME of a Secret, such as fovea/fovea-keys.")
        self._found: dict[str, Any] | None = None

    def __str__(self) -> str:
        return f"The Secret {self._namespace}/{self._name}"

    def read(self) -> KeyFile:
        text = self._kubectl("get", "secret", self._name, "--ignore-not-found", "--output=json")
        self._found = json.loads(text) if text.strip() else None
        encoded = ((self._found or {}).get("data") or {}).get(ENTRY)
        if encoded is None:
            return KeyFile()
        try:
            return parse_key_file(base64.b64decode(encoded), str(self))
        except ValueError as broken:
            raise KeysUnavailable(str(broken)) from broken

    @contextmanager
    def changing(self) -> Iterator[KeyFile]:
        yield self.read()

    def write(self, keys: KeyFile) -> None:
        entries = {ENTRY: base64.b64encode(_content(keys)).decode("ascii")}
        before = self._found
        if before is None:
            metadata = {"name": self._name, "namespace": self._namespace}
            sent: object = {"apiVersion": "v1", "kind": "Secret", "metadata": metadata, "data": entries}
            arguments = ["create", "--filename=-", "--validate=false"]
        else:
            path, value = (f"/data/{ENTRY}", entries[ENTRY]) if before.get("data") else ("/data", entries)
            # The server takes both steps or neither.
            sent = [
                {"op": "test", "path": "/metadata/resourceVersion", "value": before["metadata"]["resourceVersion"]},
                {"op": "add", "path": path, "value": value},
            ]
            arguments = ["patch", "secret", self._name, "--type=json", "--patch-file=/dev/stdin"]
        try:
            self._found = json.loads(self._kubectl(*arguments, "--output=json", sent=json.dumps(sent)))
        except KeysUnavailable:
            self.read()
            if self._version(before) != self._version(self._found):
                raise KeysUnavailable(
                    f"{self} was changed by somebody else meanwhile, and nothing was done: run the command again."
                ) from None
            raise

    @staticmethod
    def _version(secret: dict[str, Any] | None) -> str | None:
        return secret["metadata"]["resourceVersion"] if secret else None

    def _kubectl(self, *arguments: str, sent: str | None = None) -> str:
        command: Sequence[str] = ("kubectl", f"--namespace={self._namespace}", *arguments)
        try:
            done = subprocess.run(command, input=sent, capture_output=True, text=True)
        except FileNotFoundError:
            raise KeysUnavailable("A Secret needs kubectl, which is not on the path.") from None
        if done.returncode:
            raise KeysUnavailable(f"{self}: {' '.join(done.stderr.split()) or 'kubectl failed'}")
        return done.stdout


KeySource = KeysInFile | KeysInSecret


def _content(keys: KeyFile) -> bytes:
    return keys.model_dump_json(indent=2, exclude_defaults=True).encode() + b"\n"
