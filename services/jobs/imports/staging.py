"""The folder in which an import is put together; an interrupted import continues with the shards that lie there.

~/.fovea/imports/<name>-<digest of the source's files>/       removed when the import is published
~/.fovea/imports/<name>-<digest>.lock                         held by the one process that works on it
"""

import fcntl
import hashlib
import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from rich.filesize import decimal as human_bytes

from services.core.refusals import Refused
from services.jobs.imports.plan import LICENCES, Plan
from services.jobs.imports.source import Source
from services.jobs.imports.weights import convert
from services.jobs.progress import standard_bars, watched
from services.nn.weight_files import readable_weights, shapes_in

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
    for path in watched(plan.placed, "fetching", len(plan.placed)):
        file = source.fetch(path)
        if path.endswith(".safetensors"):
            with readable_weights(Path(path)):
                list(shapes_in(file))
        _place(file, folder / path)
    for path in [path for path in source.files if LICENCES.fullmatch(path)]:
        _place(source.fetch(path), folder / f"{path.partition('.')[0]}.txt")
    if plan.converted and plan.weights is not None:
        convert(source, plan.weights, folder)


def _place(source: Path, target: Path) -> None:
    """Put a local file into the folder, as a hard link, or as a copy where the file systems differ."""
    target.parent.mkdir(parents=True, exist_ok=True)
    try:
        os.link(source, target)
    except OSError:
        shutil.copyfile(source, target)
