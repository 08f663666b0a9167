"""Sources of an import: a folder, one weights file or a repository of the Hugging Face Hub, each as files by path."""

import json
import os
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Protocol

from services.core.printable import first_line
from services.core.refusals import Refused
from services.core.store.manifest import check_sizes

HUB_SCHEME = "hf://"
README = "README.md"
MODEL_CONFIG = "config.json"
# Folders that are about the files beside them: of git, and of huggingface_hub's downloads.
BOOKKEEPING = frozenset({".git", ".cache", ".huggingface"})
LFS_POINTER = b"version https://git-lfs"
_REPOSITORY = re.compile(r"(?P<id>[\w.-]+/[\w.-]+)(?:@(?P<revision>[\w./-]+))?", re.ASCII)
_HUB_CACHE = re.compile(r"models--(?P<owner>.+?)--(?P<name>.+)")


class Source(Protocol):
    """Files by path with their sizes in bytes; `revision` is a commit, where one is known."""

    uri: str
    name: str
    revision: str | None
    files: Mapping[str, int]

    def local(self, path: str) -> Path | None:
        """Return the local file of a path by its own name, None if it has to be downloaded first."""

    def fetch(self, path: str) -> Path:
        """Return the local file of a path by its own name, downloaded if necessary. Raises Refused."""


class Folder:
    """A local folder: a clone, a snapshot in the Hub's cache with its links, or any other; also one file alone."""

    def __init__(self, path: Path) -> None:
        """Raises Refused for a path that is not there, an empty folder, and one without the files of git LFS."""
        if not path.exists():
            raise Refused(f"there is no {path}{_meant(path)}")
        self._root = _snapshot_of(path)
        named = _HUB_CACHE.fullmatch(path.name) or _HUB_CACHE.fullmatch(self._root.parent.parent.name)
        is_snapshot = named is not None and self._root.parent.name == "snapshots"
        self.revision = self._root.name if is_snapshot else None
        self.name = named["name"] if named and is_snapshot else (path.stem if path.is_file() else path.resolve().name)
        self.uri = f"{HUB_SCHEME}{named['owner']}/{named['name']}" if named and is_snapshot else self.name
        if path.is_file():
            self._root = path.parent
            self.files: Mapping[str, int] = {path.name: path.stat().st_size}
        else:
            self.files = dict(sorted(_walk(self._root, self._places())))
        if not self.files:
            raise Refused(f"{path} is an empty folder")
        for name in self.files:
            _refuse_pointer(self._root / name)

    def local(self, path: str) -> Path | None:
        return self.fetch(path)

    def fetch(self, path: str) -> Path:
        return self._root / path

    def _places(self) -> tuple[Path, ...]:
        """Return the folders to which links may lead: this one and, for a snapshot of the Hub, that of its blobs."""
        root = self._root.resolve()
        return (root, root.parent.parent / "blobs") if root.parent.name == "snapshots" else (root,)


class HubRepository:
    """A repository of the Hugging Face Hub, or of the server that `HF_ENDPOINT` names, at one commit."""

    def __init__(self, repository: str, revision: str | None) -> None:
        """Raises Refused for a repository or a revision that can't be read."""
        from huggingface_hub import HfApi

        with hub_errors(f"{HUB_SCHEME}{repository}"):
            found: Any = HfApi().model_info(repository, revision=revision, files_metadata=True)
        self.uri = f"{HUB_SCHEME}{repository}"
        self.name = repository.partition("/")[2]
        self.revision: str | None = found.sha
        self.is_private = bool(found.private)
        self.files: Mapping[str, int] = {file.rfilename: file.size or 0 for file in found.siblings or ()}
        self._repository = repository

    def local(self, path: str) -> Path | None:
        from huggingface_hub import try_to_load_from_cache

        found = try_to_load_from_cache(self._repository, path, revision=self.revision)
        return Path(found) if isinstance(found, str) else None

    def fetch(self, path: str) -> Path:
        from huggingface_hub import hf_hub_download

        with hub_errors(f"{self.uri}: {path}"):
            # An interrupted download continues where it was.
            return Path(hf_hub_download(self._repository, path, revision=self.revision))


def open_source(text: str) -> Source:
    """Open `hf://owner/name[@revision]`, a folder or a file. Raises Refused."""
    if not text.startswith(HUB_SCHEME):
        return Folder(Path(text).expanduser())
    return HubRepository(*repository_of(text))


def repository_of(text: str) -> tuple[str, str | None]:
    """Return the repository and the revision that `hf://owner/name[@revision]` names. Raises Refused."""
    named = _REPOSITORY.fullmatch(text.removeprefix(HUB_SCHEME)) if text.startswith(HUB_SCHEME) else None
    if named is None:
        raise Refused(f"{text!r} is not of the form {HUB_SCHEME}owner/name or {HUB_SCHEME}owner/name@revision")
    return named["id"], named["revision"]


def fetch_small(source: Source, path: str) -> Path:
    """Return the local file of a path that is read whole. Raises InvalidCheckpoint for a large one, and Refused."""
    check_sizes(source.uri, {path: source.files[path]})
    return source.fetch(path)


def read_object(source: Source, path: str) -> dict[str, Any]:
    """Read a JSON object of a source, empty where there is no such file. Raises Refused."""
    if path not in source.files:
        return {}
    try:
        content = json.loads(fetch_small(source, path).read_bytes())
    except (ValueError, RecursionError) as error:
        raise Refused(f"{path} is not JSON: {error}") from None
    if not isinstance(content, dict):
        raise Refused(f"{path} is not a JSON object")
    return content


def read_model_config(source: Source) -> dict[str, Any]:
    """Read a model's `config.json`. Raises Refused also for one that names programs of the source."""
    config = read_object(source, MODEL_CONFIG)
    if "auto_map" in config:
        raise Refused(f"{MODEL_CONFIG} names programs of the source (auto_map); nothing of a source is run")
    return config


def licence_of(source: Source) -> str | None:
    """Return the licence that the model card names, if there is one."""
    if README not in source.files:
        return None
    from huggingface_hub import metadata_load

    try:
        metadata = metadata_load(fetch_small(source, README))
    except ValueError:  # a card without valid metadata says nothing
        return None
    licence = (metadata or {}).get("license")
    return licence if isinstance(licence, str) else None


def _meant(path: Path) -> str:
    """Suggest the form of a repository for what looks like one: a name, or the address of its page."""
    parts = [part for part in path.parts if part not in ("https:", "http:", "huggingface.co")]
    return f"; did you mean {HUB_SCHEME}{'/'.join(parts)}?" if len(parts) == 2 and not path.is_absolute() else ""


def _snapshot_of(path: Path) -> Path:
    """Return the snapshot that a repository in the Hub's cache names as its main one, or the path itself."""
    main = path / "refs" / "main"
    if _HUB_CACHE.fullmatch(path.name) and main.is_file():
        return path / "snapshots" / main.read_text().strip()
    return path


def _walk(root: Path, places: tuple[Path, ...]) -> Iterator[tuple[str, int]]:
    """Yield the files of a folder with their sizes. Raises Refused for a link that leads out of `places` or nowhere."""
    for folder, folders, names in os.walk(root, followlinks=True):
        folders[:] = sorted(name for name in folders if name not in BOOKKEEPING)
        for linked in (Path(folder, name) for name in (*folders, *names) if Path(folder, name).is_symlink()):
            if linked.exists() and not any(linked.resolve().is_relative_to(place) for place in places):
                raise Refused(f"{linked} links to {linked.resolve()}, out of the source: put the file itself there")
        if Path(folder).resolve() in {parent.resolve() for parent in Path(folder).parents if parent != root.parent}:
            raise Refused(f"{folder} links to a folder that contains it")
        for name in names:
            file = Path(folder, name)
            if file.is_file():
                yield file.relative_to(root).as_posix(), file.stat().st_size
            elif file.is_symlink():
                raise Refused(f"{file} links to {file.readlink()}, which is not there: its download is incomplete")


def _refuse_pointer(file: Path) -> None:
    with file.open("rb") as opened:
        if opened.read(len(LFS_POINTER)) == LFS_POINTER:
            raise Refused(f"{file} is a pointer of git LFS, not the file itself: run `git lfs pull` in its folder")


@contextmanager
def hub_errors(what: str, done: str = "read") -> Iterator[None]:
    """Turn errors of the Hub in this block, in which something is read or written, into refusals of one line."""
    from huggingface_hub import errors
    from huggingface_hub.constants import ENDPOINT

    try:
        yield
    except errors.GatedRepoError:
        told = f"{what} is gated: accept its conditions on its page, and set HF_TOKEN to a token of yours"
        raise Refused(told) from None
    except errors.RepositoryNotFoundError:
        raise Refused(f"{what}: there is no such repository, or it may not be {done} with HF_TOKEN") from None
    except errors.RevisionNotFoundError:
        raise Refused(f"{what}: the repository has no such revision") from None
    # the last but one is the root of its HTTP client's errors, which it does not export
    except (errors.HFValidationError, errors.HTTPError, OSError) as error:  # type: ignore[attr-defined]
        ways = f"HF_ENDPOINT, now {ENDPOINT}, may name a mirror; a folder of its files serves as well"
        told = f"{what} can't be {done}: {first_line(error)} ({ways}; the same command continues)"
        raise Refused(told) from None
