"""The folder in which an import is put together; an interrupted import continues with what lies there."""

import hashlib
import os
import shutil
from collections.abc import Collection
from pathlib import Path

from services.jobs.imports.source import Source

IMPORTS = Path("~/.fovea/imports")


def staging_folder(source: Source, kept: Collection[str] = ()) -> Path:
    """Make the folder for a source, the same for the same files.

    Of an earlier attempt, only finished files with the names `kept` remain: others may depend on options.
    """
    listing = "\n".join(f"{path} {size}" for path, size in source.files.items())
    digest = hashlib.sha256(f"{source.uri}\n{source.revision}\n{listing}".encode()).hexdigest()[:12]
    folder = IMPORTS.expanduser() / f"{source.name}-{digest}"
    folder.mkdir(parents=True, exist_ok=True)
    for file in [file for file in folder.rglob("*") if file.is_file() and file.name not in kept]:
        file.unlink()
    return folder


def place(source: Path, target: Path) -> None:
    """Put a local file into the folder, as a hard link, or as a copy where the file systems differ."""
    target.parent.mkdir(parents=True, exist_ok=True)
    target.unlink(missing_ok=True)
    try:
        os.link(source, target)
    except OSError:
        unfinished = target.with_name(f"{target.name}.partial")
        shutil.copyfile(source, unfinished)
        unfinished.replace(target)


def remove(folder: Path) -> None:
    """Remove the folder of a finished import."""
    shutil.rmtree(folder)
