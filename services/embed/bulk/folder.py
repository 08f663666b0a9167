"""Embeddings of many images in a folder of files that stays consistent if a job is killed, so that it can be continued.

        bulk.json               what is embedded, and how: a job continues only with the same plan
        embeddings-00000.npy    (N, C, E) of one shard; written last, so a shard that has it is finished
        ids-00000.jsonl         its N images, one `{"id", "metadata"}` per line
        skipped.jsonl           skipped images, one `{"id", "reason"}` per line; a job that has it is finished

Shapes: N images of a shard, C conditions (1 if there are none), E embedding width.
"""

import fcntl
import json
import os
import re
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, fields
from io import BytesIO
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from services.core.durable_files import half_written_files, make_folder_durably, write_durably
from services.core.printable import json_line
from services.embed.bulk.image_sources import ListedImage, Skipped, fingerprint

Array = NDArray[np.float32]
StoredDtype = Literal["float32", "float16"]
Precision = Literal["float32", "bfloat16", "float16"]

PLAN_FILE = "bulk.json"
SKIPPED_FILE = "skipped.jsonl"
ROWS_WRITTEN_AT_ONCE = 256

_OURS = re.compile(r"bulk\.json|skipped(-\d{5,})?\.jsonl|ids-\d{5,}\.jsonl|embeddings-\d{5,}\.npy")


class OutputError(Exception):
    """A folder that can't be written to or continued; the message can be shown to users."""


class EmbeddingError(Exception):
    """A checkpoint that does not load or can't do what was requested; the message can be shown to users."""


@dataclass(frozen=True)
class PlannedShard:
    """A run of the listed images: their number, the first and the last id, and their fingerprint."""

    num_images: int
    first: str
    last: str
    fingerprint: str


@dataclass(frozen=True)
class BulkPlan:
    """The content of bulk.json: everything on which the embeddings depend.

    `model` is `name@version`, or the name of a folder; `digest` is that of its content; `precision` is the dtype of the
    forward pass, `dtype` that of the files.
    """

    model: str
    digest: str
    conditions: Sequence[str]
    width: int
    precision: str
    dtype: StoredDtype
    shard_size: int
    num_images: int
    shards: Sequence[PlannedShard]

    def differences(self, begun: dict[str, Any]) -> Iterator[str]:
        """Yield the differences between this plan and the one in the folder, one sentence each."""
        now = json.loads(_to_json(self))
        for name in (field.name for field in fields(self) if field.name != "shards"):
            if begun.get(name) != now[name]:
                yield f"{name} was {json.dumps(begun.get(name))} and is now {json.dumps(now[name])}"
        if begun.get("shard_size") != self.shard_size:
            return
        for index, (then, shard) in enumerate(zip(begun.get("shards", []), now["shards"], strict=False)):
            if then != shard:
                first = index * self.shard_size
                yield f"images {first} to {first + shard['num_images'] - 1} of the source changed: {_ends(then, shard)}"
                return


@dataclass(frozen=True)
class Shard:
    """Results of a shard, or of a run of its images: row i of `embeddings` (N, C, E) belongs to record i."""

    index: int
    embeddings: Array
    records: Sequence[dict[str, Any]]
    skipped: Sequence[Skipped]

    @property
    def num_images(self) -> int:
        """Count the images, including skipped ones."""
        return len(self.records) + len(self.skipped)


@dataclass(frozen=True)
class BulkFolder:
    """The folder of one plan. Any number of processes may write shards, each its own."""

    directory: Path
    plan: BulkPlan

    @contextmanager
    def opened(self, *, overwrite: bool) -> Iterator[None]:
        """Begin the plan or continue it. The folder is locked meanwhile: one job at a time.

        Output of another plan is removed with `overwrite`. Otherwise raises OutputError that names the differences;
        also if another job holds the folder, and if the folder can't be written.
        """
        try:
            make_folder_durably(self.directory)
            with _only_one_job(self.directory):
                self._begin(overwrite=overwrite)
                yield
        except OSError as error:
            raise OutputError(f"{error.filename or self.directory}: {error.strerror}") from error

    def is_finished(self) -> bool:
        return (self.directory / SKIPPED_FILE).exists()

    def unfinished(self) -> list[int]:
        """List the numbers of the shards that are still to be embedded."""
        return [i for i in range(len(self.plan.shards)) if not self._embeddings_file(i).exists()]

    def num_embedded(self) -> int:
        """Count the images of the finished shards, including skipped ones."""
        unfinished = set(self.unfinished())
        return sum(shard.num_images for i, shard in enumerate(self.plan.shards) if i not in unfinished)

    def write(self, shard: Shard) -> None:
        """Write a shard; it is complete and on disk when this returns. Raises OSError."""
        lines = (json_line(json.dumps(record, ensure_ascii=False)) for record in shard.records)
        write_durably(self.directory / f"ids-{shard.index:05d}.jsonl", lines)
        if shard.skipped:
            write_durably(self._skipped_file(shard.index), _skipped_lines(shard.skipped))
        dtype = np.dtype(self.plan.dtype).newbyteorder("<")
        write_durably(self._embeddings_file(shard.index), _npy(shard.embeddings.astype(dtype)))

    def finish(self, unlisted: Sequence[Skipped]) -> int:
        """Collect the skipped images once every shard is written, `unlisted` first. Returns their number."""
        assert not self.unfinished(), "a job without all of its shards is not finished"
        parts = [part for i in range(len(self.plan.shards)) if (part := self._skipped_file(i)).exists()]
        if not self.is_finished():
            lines = [*_skipped_lines(unlisted), *(part.read_bytes() for part in parts)]
            write_durably(self.directory / SKIPPED_FILE, lines)
        for part in parts:
            part.unlink()
        return (self.directory / SKIPPED_FILE).read_bytes().count(b"\n")

    def _begin(self, *, overwrite: bool) -> None:
        for leftover in half_written_files(self.directory):
            if leftover.parent == self.directory and _OURS.fullmatch(leftover.name.rpartition("#")[0]):
                leftover.unlink(missing_ok=True)
        ours = [path for path in self.directory.iterdir() if _OURS.fullmatch(path.name)]
        objection = self._objection() if ours else None
        if objection and not overwrite:
            raise OutputError(f"{objection}. Use --overwrite to start again.")
        if objection:
            for path in ours:
                path.unlink()
        if objection or not ours:
            write_durably(self.directory / PLAN_FILE, [_to_json(self.plan)])

    def _objection(self) -> str | None:
        """Explain why the folder's content can't be continued."""
        plan_file = self.directory / PLAN_FILE
        if not plan_file.exists():
            return f"{self.directory} contains embeddings but no {PLAN_FILE}"
        try:
            differences = list(self.plan.differences(json.loads(plan_file.read_bytes())))
        except (ValueError, AttributeError, TypeError, KeyError) as error:
            return f"{plan_file} is not a valid plan ({error})"
        return (
            f"{self.directory} belongs to a job with other arguments: {'; '.join(differences)}" if differences else None
        )

    def _embeddings_file(self, index: int) -> Path:
        return self.directory / f"embeddings-{index:05d}.npy"

    def _skipped_file(self, index: int) -> Path:
        return self.directory / f"skipped-{index:05d}.jsonl"


def planned_shards(images: Sequence[ListedImage], shard_size: int) -> list[PlannedShard]:
    """Split the listed images into runs of `shard_size`."""
    runs = [images[start : start + shard_size] for start in range(0, len(images), shard_size)]
    return [PlannedShard(len(run), run[0].id, run[-1].id, fingerprint(run)) for run in runs]


@contextmanager
def _only_one_job(directory: Path) -> Iterator[None]:
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise OutputError(f"another job is writing to {directory}") from None
        yield
    finally:
        os.close(descriptor)


def _ends(then: dict[str, Any], now: dict[str, Any]) -> str:
    if then["first"] == now["first"] and then["last"] == now["last"] and then["num_images"] == now["num_images"]:
        return f"a name, size or modification time between {now['first']} and {now['last']}"
    return f"they were {then['first']} to {then['last']} and are now {now['first']} to {now['last']}"


def _to_json(plan: BulkPlan) -> bytes:
    return json.dumps(asdict(plan), indent=1, ensure_ascii=False).encode() + b"\n"


def _skipped_lines(skipped: Iterable[Skipped]) -> Iterator[bytes]:
    # ASCII also represents names that are not UTF-8
    return (json_line(json.dumps(asdict(one))) for one in skipped)


def _npy(array: NDArray[Any]) -> Iterator[bytes]:
    """Yield a file that `numpy.load` reads, in pieces."""
    head = BytesIO()
    np.lib.format.write_array_header_1_0(head, np.lib.format.header_data_from_array_1_0(array))
    yield head.getvalue()
    for start in range(0, len(array), ROWS_WRITTEN_AT_ONCE):
        yield array[start : start + ROWS_WRITTEN_AT_ONCE].tobytes()
