"""Manifests of published versions, and the paths, names and ids that the store accepts.

A version's id is the head of its content digest, so equal contents have equal ids wherever they are published,
and a manifest is self-certifying: changing any field that the digest covers changes the digest that it must match.
Paths are relative, plain, and distinct on every file system.
"""

import hashlib
import json
import re
from collections.abc import Collection, Mapping
from datetime import UTC, datetime
from typing import Any, Self

from pydantic import BaseModel, ConfigDict, Field, JsonValue, ValidationError

from services.core.store.errors import CorruptCheckpoint, InvalidCheckpoint

MAX_FILES = 1000
MAX_PATH_LENGTH = 200

JSON_SUFFIXES = frozenset({".json"})
# .jinja: a chat template, as transformers writes it beside a tokenizer and runs it in a sandbox.
TEXT_SUFFIXES = frozenset({".jsonl", ".txt", ".md", ".csv", ".tsv", ".jinja"})
TENSOR_SUFFIXES = frozenset({".safetensors"})
# .txt.gz: BPE merges as open_clip ships them; .model: SentencePiece, a protocol buffer.
OTHER_SUFFIXES = frozenset({".txt.gz", ".model"})
ALLOWED_SUFFIXES = JSON_SUFFIXES | TEXT_SUFFIXES | TENSOR_SUFFIXES | OTHER_SUFFIXES

# Python reads JSON in one go, in which nothing else runs: for a second or two at these sizes.
MAX_JSON_BYTES, MAX_TEXT_BYTES = 16 * 1024 * 1024, 64 * 1024 * 1024
VOCABULARIES = ("tokenizer.json", "vocab.json", "tekken.json", ".index.json")

# Not `.` or `..`, not empty, no drive, no backslash, no control character.
PATH_SEGMENT = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]*")


def check_paths(paths: Collection[str]) -> None:
    """Raises InvalidCheckpoint for too many paths, one that `check_path` or `check_suffix` refuses, and two that
    are the same file where case is ignored, or of which one would be a folder of the other.
    """
    if len(paths) > MAX_FILES:
        raise InvalidCheckpoint(f"there are {len(paths)} files, at most {MAX_FILES} are allowed")
    files: dict[str, str] = {}
    for path in paths:
        check_suffix(check_path(path))
        if (other := files.setdefault(path.lower(), path)) != path:
            raise InvalidCheckpoint(f"paths {other!r} and {path!r} differ only in case")
    for lowered, path in files.items():
        parts = lowered.split("/")
        for end in range(1, len(parts)):
            if (file := files.get("/".join(parts[:end]))) is not None:
                raise InvalidCheckpoint(f"path {file!r} would be both a file and the folder of {path!r}")


def check_path(path: str) -> str:
    """Return the path. Raises InvalidCheckpoint unless it is relative, stays inside, and has plain names only."""
    if len(path) > MAX_PATH_LENGTH:
        raise InvalidCheckpoint(f"path {path[:50]!r}… is longer than {MAX_PATH_LENGTH} characters")
    for segment in path.split("/"):
        if PATH_SEGMENT.fullmatch(segment) is None:
            raise InvalidCheckpoint(
                f"path {path!r}: {segment!r} must consist of A-Z, a-z, 0-9, '.', '_', '-', and not start with '.' or "
                "'-'"
            )
    return path


def check_suffix(path: str) -> str:
    """Return the path. Raises InvalidCheckpoint for a kind of file that no version may hold."""
    if not path.endswith(tuple(ALLOWED_SUFFIXES)):
        allowed = ", ".join(sorted(ALLOWED_SUFFIXES))
        raise InvalidCheckpoint(f"{path} has a file type that a checkpoint may not contain (only {allowed})")
    return path


MANIFEST_FILE = "manifest.json"
MAX_MANIFEST_BYTES = 4 * 1024 * 1024
MAX_NAME_LENGTH = 63
MAX_STATEMENT_LENGTH = 1_000
VERSION_ID_LENGTH = 12
# Optional fields that were added after versions had been published.
LATER_FIELDS = ("statement", "source")

NAME_PATTERN = re.compile(rf"[a-z0-9][a-z0-9._-]{{0,{MAX_NAME_LENGTH - 1}}}")
VERSION_ID_PATTERN = re.compile(rf"[0-9a-f]{{{VERSION_ID_LENGTH}}}")


class StoredFile(BaseModel):
    """The sha256 in hex and the size in bytes of one file of a version."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    sha256: str = Field(pattern=r"^[0-9a-f]{64}$")
    size_bytes: int = Field(ge=0)


def check_sizes(label: str, sizes: Mapping[str, int]) -> None:
    """Raises InvalidCheckpoint, naming the file and its limit, for JSON or text of `label` that is long to read.

    `sizes` are bytes by the paths of its files.
    """
    for path, size_bytes in sizes.items():
        is_json, is_text = (path.endswith(tuple(suffixes)) for suffixes in (JSON_SUFFIXES, TEXT_SUFFIXES))
        limit = MAX_TEXT_BYTES if is_text or path.endswith(VOCABULARIES) else MAX_JSON_BYTES
        if (is_json or is_text) and size_bytes > limit:
            kind = "JSON" if is_json else "text"
            raise InvalidCheckpoint(f"{label}: {path} has {size_bytes} bytes; a {kind} file may have {limit}")


class CheckpointInfo(BaseModel):
    """The publisher's information about a checkpoint; all of it enters the version id.

    `kind` names the code that can load it (e.g. `focallens-clip`), `base` the checkpoint that it was trained
    from, `training` the job's arguments, `metrics` what was measured, `code_revision` the commit of the job,
    `statement` what the model has seen and knows, in a sentence for its users, and `source` where an imported one came
    from and what it is.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    kind: str = Field(min_length=1, max_length=MAX_NAME_LENGTH)
    base: str | None = None
    training: dict[str, JsonValue] = {}
    seed: int | None = None
    metrics: dict[str, JsonValue] = {}
    code_revision: str | None = None
    licence: str | None = None
    statement: str | None = Field(default=None, min_length=1, max_length=MAX_STATEMENT_LENGTH)
    source: dict[str, JsonValue] | None = None


class Manifest(CheckpointInfo):
    """`manifest.json` of a version; `files` maps paths inside the version to digest and size."""

    name: str
    version: str
    digest: str
    created: datetime
    files: dict[str, StoredFile]

    @classmethod
    def describe(cls, name: str, info: CheckpointInfo, files: Mapping[str, StoredFile]) -> Self:
        """Return a manifest of these files with its digest and id. Raises InvalidCheckpoint for NaN or an infinity."""
        try:
            digest = content_digest(info, files)
        except ValueError as error:
            raise InvalidCheckpoint(f"training and metrics must be plain JSON: {error}") from error
        return cls(
            **{field: getattr(info, field) for field in CheckpointInfo.model_fields},
            name=name,
            version=digest[:VERSION_ID_LENGTH],
            digest=digest,
            created=datetime.now(UTC),
            files=dict(files),
        )

    @classmethod
    def parse(cls, body: bytes, *, name: str, version: str) -> Self:
        """Parse the manifest in `body`.

        Raises CorruptCheckpoint if it is not the one that has this name and id, or names files that no version may
        hold: any writer to the store may have written it, so its paths are checked before any of them is used.
        """
        checkpoint = f"{name}@{version}"
        try:
            manifest = cls.model_validate_json(body)
            found = content_digest(manifest, manifest.files)
        except (ValidationError, ValueError) as error:
            # A validation error's text holds the input, which may be long: the first line is enough.
            found = str(error).splitlines()[0]
            raise CorruptCheckpoint(checkpoint, MANIFEST_FILE, expected="a manifest", found=found) from error
        if manifest.name != name:
            raise CorruptCheckpoint(checkpoint, MANIFEST_FILE, expected=f"name {name}", found=repr(manifest.name[:50]))
        for expected in (manifest.digest, version, manifest.version):
            if not found.startswith(expected) or len(expected) < VERSION_ID_LENGTH:
                raise CorruptCheckpoint(checkpoint, MANIFEST_FILE, expected=repr(expected), found=found)
        try:
            check_paths(manifest.files)
        except InvalidCheckpoint as error:
            raise CorruptCheckpoint(
                checkpoint, MANIFEST_FILE, expected="paths that files of a version may have", found=str(error)
            ) from error
        if any(path.lower() == MANIFEST_FILE for path in manifest.files):
            raise CorruptCheckpoint(checkpoint, MANIFEST_FILE, expected="other files", found="its own path among them")
        return manifest

    def to_json(self) -> bytes:
        return json.dumps(_known(self.model_dump(mode="json")), indent=2, sort_keys=True, allow_nan=False).encode()

    @property
    def size_bytes(self) -> int:
        """The bytes of all files, without the manifest."""
        return sum(file.size_bytes for file in self.files.values())


def content_digest(info: CheckpointInfo, files: Mapping[str, StoredFile]) -> str:
    """Return the sha256 in hex over the files and every field of CheckpointInfo, but not the name or the time.

    Raises ValueError for NaN and infinities, which JSON does not have.
    """
    dumped = _known(info.model_dump(mode="json"))
    content: dict[str, Any] = {field: value for field, value in dumped.items() if field in CheckpointInfo.model_fields}
    content["files"] = sorted([path, file.sha256, file.size_bytes] for path, file in files.items())
    canonical = json.dumps(content, sort_keys=True, separators=(",", ":"), allow_nan=False)
    return hashlib.sha256(canonical.encode()).hexdigest()


def _known(dumped: Mapping[str, Any]) -> dict[str, Any]:
    """Leave out later fields that are not given: earlier versions have none of them, and ids stay as they were."""
    return {field: value for field, value in dumped.items() if field not in LATER_FIELDS or value is not None}


def check_model_name(name: str) -> str:
    """Return the name. Raises InvalidCheckpoint, naming the rule, if the store does not accept it."""
    return _check_name("model name", name)


def check_alias(alias: str) -> str:
    """Return the alias. Raises InvalidCheckpoint also for one that could be taken for a version id."""
    if is_version_id(alias):
        raise InvalidCheckpoint(f"alias {alias!r} looks like a version id ({VERSION_ID_LENGTH} hex digits)")
    return _check_name("alias", alias)


def is_version_id(text: str) -> bool:
    return VERSION_ID_PATTERN.fullmatch(text) is not None


def _check_name(field: str, name: str) -> str:
    if NAME_PATTERN.fullmatch(name) is None:
        raise InvalidCheckpoint(
            f"{field} {name[: 2 * MAX_NAME_LENGTH]!r} must be 1 to {MAX_NAME_LENGTH} characters of a-z, 0-9, '.', '_', "
            "'-', starting with a letter or digit"
        )
    return name
