"""Digests of checkpoints and of data, by which a run knows what it has evaluated before."""

import hashlib
from collections.abc import Iterable, Sequence
from pathlib import Path

from services.score.evaluation.image_files import ImageFile, file_of
from services.score.evaluation.records import Task


def fingerprint(model: Path | str) -> str:
    """Compute what tells a checkpoint from others: a digest of its files, or open_clip's name of it."""
    if isinstance(model, str):
        name, _, pretrained = model.partition(":")
        return f"{name}:{_digest([Path(pretrained)])}" if Path(pretrained).is_file() else model
    return _digest(sorted(path for path in model.rglob("*") if path.is_file()) if model.is_dir() else [model])


def digest_of_tasks(tasks: Iterable[Task], data: Path) -> str:
    """Compute the digest of tasks' records and images."""
    tasks = list(tasks)
    said = [
        *((task.name, task.by_category, task.num_true, task.left_out) for task in tasks),
        *(
            (record.id, record.captions, record.category, len(record.images))
            for task in tasks
            for record in task.records
        ),
    ]
    return digest_of_data(said, [image for task in tasks for record in task.records for image in record.images], data)


def digest_of_data(said: Iterable[object], images: Sequence[ImageFile], data: Path) -> str:
    """Compute the digest of texts and labels by their content, and of images in order by their places below `data`.

    The content of an image counts by its file's size and time of modification, because reading all images again would
    take long.
    """
    digest = hashlib.sha256()
    for one in said:
        digest.update(f"{one!r}\n".encode())
    for image in images:
        digest.update(f"{str(image).removeprefix(str(data))}\n".encode())
    for file in sorted(set(map(file_of, images))):
        found = file.stat()
        digest.update(f"{found.st_size} {found.st_mtime_ns}\n".encode())
    return digest.hexdigest()[:16]


def _digest(paths: Sequence[Path]) -> str:
    digest = hashlib.sha256()
    for path in paths:
        with path.open("rb") as file:
            digest.update(path.name.encode() + b"\0" + hashlib.file_digest(file, "sha256").digest())
    return digest.hexdigest()[:16]
