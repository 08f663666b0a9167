"""The plan of an import: which files a checkpoint takes, which are converted or made, and which are left, and why;
and the folder in which the checkpoint is put together.
"""

import fcntl
import hashlib
import os
import re
import shutil
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from pydantic import JsonValue
from rich.filesize import decimal as human_bytes

from services.core.refusals import Refused
from services.core.store.errors import CorruptCheckpoint, InvalidCheckpoint
from services.core.store.manifest import CheckpointInfo
from services.jobs.imports.source import Source
from services.jobs.imports.weights import Weights, convert, is_wrapped, stored_names
from services.jobs.progress import standard_bars, watched

# A licence goes with what it is about.
LICENCES = re.compile(r"(LICEN[CS]E|NOTICE|USE_POLICY)(\.(md|txt))?", re.IGNORECASE)


@dataclass(frozen=True)
class Plan:
    """The files of a source for a checkpoint of a kind, and the services that serve it.

    `taken` stay as they are; `weights`, None if they are among the others, are converted if they are pickles; `read`
    are needed to make others; `made` are new files with what they are made of; and `left` are the others with the
    reason. `facts` describe the model to people and enter the manifest, unless `info` is all that it says.
    """

    kind: str
    services: tuple[str, ...]
    taken: tuple[str, ...]
    weights: Weights | None
    read: tuple[str, ...] = ()
    made: Mapping[str, str] = field(default_factory=dict)
    left: Mapping[str, str] = field(default_factory=dict)
    facts: Mapping[str, JsonValue] = field(default_factory=dict)
    info: CheckpointInfo | None = None

    @property
    def converted(self) -> Mapping[str, str]:
        """Pickled weights, and the files that they are converted to."""
        if self.weights is None or not self.weights.are_pickles:
            return {}
        return dict(zip(self.weights.files, self.weights.made(), strict=True))

    @property
    def all_read(self) -> tuple[str, ...]:
        """Files that others are made of, with the index of weights that are converted."""
        index = self.weights.index if self.weights is not None and self.converted else None
        return self.read if index is None else (*self.read, index)

    @property
    def placed(self) -> tuple[str, ...]:
        """Files that become part of the checkpoint as they are."""
        return self.taken if self.weights is None or self.converted else (*self.taken, *self.weights.files)


def left_files(
    source: Source, weights: Weights | None, others: Collection[str], reasons: Mapping[str, str]
) -> dict[str, str]:
    """Say for each file of a source but the weights and `others` why it is left."""
    used = {*others, *((*weights.files, weights.index) if weights else ())}
    left = [path for path in source.files if path not in used and not LICENCES.fullmatch(path)]
    return {path: reasons.get(path, "not needed for serving") for path in left}


# An interrupted import continues with the shards in its folder, <name>-<digest of the source's files>, which is removed
# when the import is published; one process at a time works on it, which holds <name>-<digest>.lock beside it.
IMPORTS = Path("~/.fovea/imports")


@contextmanager
def put_together(source: Source, plan: Plan, build: Callable[[Path], None]) -> Iterator[Path]:
    """Yield a folder with the checkpoint's files, which is removed at the end of the block.

    Where the block or the work before it fails, converted shards stay for the next attempt. Raises Refused.
    """
    folder = _folder_of(source)
    with _only_one(folder.with_name(f"{folder.name}.lock")):
        _keep_only(folder, plan)
        try:
            _check_room(source, plan, folder)
            _fill(source, plan, folder)
            build(folder)
            yield folder
        except (
            InvalidCheckpoint,
            CorruptCheckpoint,
        ):  # of what was put together: another attempt would end like this one
            shutil.rmtree(folder)
            raise
        except BaseException:
            _keep_only(folder, plan)
            if any(folder.iterdir()):
                standard_bars().say(f"The converted weights stay in {folder}: the same command continues.")
            else:
                shutil.rmtree(folder)
            raise
        shutil.rmtree(folder)


def _folder_of(source: Source) -> Path:
    listing = "\n".join(f"{path} {size}" for path, size in source.files.items())
    digest = hashlib.sha256(f"{source.uri}\n{source.revision}\n{listing}".encode()).hexdigest()[:12]
    return IMPORTS.expanduser() / f"{source.name}-{digest}"


@contextmanager
def _only_one(lock: Path) -> Iterator[None]:
    """Wait until no other process imports the same source."""
    lock.parent.mkdir(parents=True, exist_ok=True)
    while True:
        with lock.open("w") as held:
            try:
                fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                standard_bars().say("Another import of this source is running; waiting for it.")
                fcntl.flock(held, fcntl.LOCK_EX)
            # The other one may have removed the file that was waited for.
            if not lock.exists() or not os.path.samestat(lock.stat(), os.fstat(held.fileno())):
                continue
            try:
                yield
            finally:
                lock.unlink()
            return


def _keep_only(folder: Path, plan: Plan) -> None:
    """Make the folder, and remove from it all but converted shards: other files may depend on options."""
    folder.mkdir(parents=True, exist_ok=True)
    for path in list(folder.iterdir()):
        if path.is_dir():
            shutil.rmtree(path)
        elif path.name not in plan.converted.values():
            path.unlink()


def _check_room(source: Source, plan: Plan, folder: Path) -> None:
    """Raises Refused if what has to be written does not fit; files of the same file system are linked, not written."""
    device = folder.stat().st_dev
    needed = sum(source.files[path] for path, name in plan.converted.items() if not (folder / name).exists())
    local = {path: source.local(path) for path in plan.placed}
    needed += sum(source.files[path] for path, file in local.items() if file and file.stat().st_dev != device)
    free = shutil.disk_usage(folder).free
    if needed > free:
        needs = f"{human_bytes(needed)} have to be written to {folder.parent}"
        raise Refused(f"{needs}, where {human_bytes(free)} are free")


def _fill(source: Source, plan: Plan, folder: Path) -> None:
    converted = plan.weights if plan.weights and (plan.converted or is_wrapped(source, plan.weights)) else None
    for path in watched(plan.placed, "fetching", len(plan.placed)):
        file = source.fetch(path)
        if path.endswith(".safetensors"):
            list(stored_names(file))
        if converted is None or path not in converted.files:
            _place(file, folder / path)
    for path in [path for path in source.files if LICENCES.fullmatch(path) and path not in (*plan.placed, *plan.left)]:
        _place(source.fetch(path), folder / f"{path.partition('.')[0]}.txt")
    if converted is not None:
        convert(source, converted, folder)


def _place(source: Path, target: Path) -> None:
    """Put a local file into the folder, as a hard link, or as a copy where the file systems differ."""
    target.parent.mkdir(parents=True, exist_ok=True)
    try:
        os.link(source.resolve(), target)
    except OSError:
        shutil.copyfile(source, target)
