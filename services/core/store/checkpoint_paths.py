"""The paths that files of a version may have: relative, plain, and distinct on every file system."""

import re
from collections.abc import Collection

from services.core.store.errors import InvalidCheckpoint

MAX_FILES = 1000
MAX_PATH_LENGTH = 200

JSON_SUFFIXES = frozenset({".json"})
# .jinja: a chat template, as transformers writes it beside a tokenizer and runs it in a sandbox.
TEXT_SUFFIXES = frozenset({".jsonl", ".txt", ".md", ".csv", ".tsv", ".jinja"})
TENSOR_SUFFIXES = frozenset({".safetensors"})
# .txt.gz: BPE merges as open_clip ships them; .model: SentencePiece, a protocol buffer.
OTHER_SUFFIXES = frozenset({".txt.gz", ".model"})
ALLOWED_SUFFIXES = JSON_SUFFIXES | TEXT_SUFFIXES | TENSOR_SUFFIXES | OTHER_SUFFIXES

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
