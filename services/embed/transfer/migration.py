"""A collection copied from one running service to another, while the first one answers additions and deletions.

A pass lists both and makes the copy what the original is: it adds what the copy lacks, and removes what the original
lacks. Nothing is remembered between passes, so that a command that was interrupted is simply run again. What changes
during a pass is found by the next one. For the last passes the original is read-only, so that they end.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import aclosing
from dataclasses import asdict, dataclass, field
from typing import Any

from services.embed.bulk.collection_client import BATCH_SIZE, CallRefused, CollectionClient, in_batches, in_workers
from services.embed.transfer.entries import Entry, Total, TransferError, compared, fetched, listed
from services.jobs.progress import Bar, Bars

NUM_WORKERS = 4
# The original is made read-only once a pass has found no more changes than this.
FEW_CHANGES = 200
MAX_PASSES = 20
# With nobody changing the original, the second pass finds nothing to do.
MAX_LAST_PASSES = 4


@dataclass
class Pass:
    """The work of one pass; `num_missed` images changed or vanished before they were copied."""

    num_added: int = 0
    num_removed: int = 0
    num_missed: int = 0
    original: Total = field(default_factory=Total)
    copy: Total = field(default_factory=Total)

    @property
    def num_changes(self) -> int:
        return self.num_added + self.num_removed + self.num_missed


@dataclass(frozen=True)
class Migrated:
    """The end of a migration: `is_finished` if both were equal, with this digest, while the original was read-only."""

    is_finished: bool
    num_passes: int
    images: int
    bytes: int
    digest: str | None
    copy_images: int
    not_indexed: int

    def as_json(self) -> dict[str, Any]:
        names = {"is_finished": "finished", "num_passes": "passes"}
        return {names.get(name, name): value for name, value in asdict(self).items()}


async def migrate(original: CollectionClient, copy: CollectionClient, bars: Bars, *, finishes: bool) -> Migrated:
    """Copy until few changes are left, and then, if it `finishes`, until both are the same and the copy is open.

    Raises TransferError, Unavailable, CallRefused. If it fails, the original takes changes again.
    """
    before = await original.describe()
    if before["access"] == "copy":
        raise TransferError("the original is itself a copy that is being filled")
    await _prepare(before, copy)
    num_passes = 0
    while True:
        done = await _pass(original, copy, bars, total=before["size"])
        num_passes += 1
        bars.say(
            f"pass {num_passes}: {done.num_added:,} added, {done.num_removed:,} removed, {done.num_missed:,} missed"
        )
        if done.num_changes <= FEW_CHANGES or num_passes == MAX_PASSES:
            break
    if not finishes:
        return await _report(copy, done, num_passes, is_finished=False)
    await original.put({"access": "read_only"})
    is_finished = False
    try:
        await _prepare(await original.describe(), copy)
        for number in range(MAX_LAST_PASSES):
            done = await _pass(original, copy, bars, total=before["size"], is_last=True)
            num_passes += 1
            if not done.num_changes:
                break
            if number == MAX_LAST_PASSES - 1:
                raise TransferError("something else changes the copy; stop it, and run the command again")
        await _check_totals(original, copy, done)
        await copy.put({"access": "open"})
        is_finished = True
    finally:
        if not is_finished and before["access"] == "open":
            await asyncio.shield(original.put({"access": "open"}))
    return await _report(copy, done, num_passes, is_finished=True)


async def _prepare(original: dict[str, Any], copy: CollectionClient) -> None:
    """Make the copy and index the original's conditions in it. Raises TransferError if the name is taken."""
    pinned = [one["condition"] for one in original["conditions"] if one["pinned"] and one["condition"] is not None]
    asked = {key: original[key] for key in ("model", "created")}
    try:
        await copy.put({**asked, "access": "copy", "conditions": pinned})
    except CallRefused as refused:
        if refused.code == "collection_exists":
            raise TransferError(
                f"{copy.service}: {refused} If an earlier --finish has opened it, there is nothing left to do; if it "
                "is another collection, choose another name with --to-name."
            ) from None
        raise


async def _pass(
    original: CollectionClient, copy: CollectionClient, bars: Bars, *, total: int, is_last: bool = False
) -> Pass:
    done = Pass()
    with bars.bar("Comparing and copying", "images", total=total) as bar:
        async with aclosing(in_batches(_to_copy(original, copy, done, bar))) as found:
            await in_workers(found, lambda batch: _copy(original, copy, batch, done, is_last), NUM_WORKERS)
    return done


async def _to_copy(original: CollectionClient, copy: CollectionClient, done: Pass, bar: Bar) -> AsyncIterator[Entry]:
    """Yield the images that the copy lacks, and remove from it those that the original lacks or has otherwise."""
    removing: list[str] = []
    async with aclosing(compared(listed(original), listed(copy))) as pairs:
        async for one, other in pairs:
            if one is not None:
                done.original.add(one)
                bar.advance()
            if other is not None:
                done.copy.add(other)
            if one is not None and other is not None and one.line() == other.line():
                continue
            if other is not None:
                if one is not None:  # its successor is added afterwards
                    await copy.remove(other.id)
                else:
                    removing.append(other.id)
                done.num_removed += 1
            if len(removing) >= BATCH_SIZE:
                await _remove(copy, removing)
            if one is not None:
                yield one
    await _remove(copy, removing)


async def _remove(copy: CollectionClient, image_ids: list[str]) -> None:
    await asyncio.gather(*map(copy.remove, image_ids))
    image_ids.clear()


async def _copy(
    original: CollectionClient, copy: CollectionClient, batch: list[Entry], done: Pass, is_last: bool
) -> None:
    """Copy images, except those that have changed since they were listed, which the next pass finds."""
    found: list[tuple[Entry, bytes]] = []
    for entry, data in await fetched(original, batch):
        if data is not None:
            found.append((entry, data))
        elif is_last:
            raise TransferError(f"the bytes of the original's image {entry.id!r} are damaged or missing")
        else:
            done.num_missed += 1
    sent = await copy.add([entry.as_json(data) for entry, data in found])
    for rejected in sent.rejected:
        raise TransferError(f"the copy does not take {rejected.id!r}: {rejected.reason}")
    done.num_added += len(found)


async def _check_totals(original: CollectionClient, copy: CollectionClient, done: Pass) -> None:
    """Raises TransferError if the services count other images and bytes than the same ones that were listed."""
    one, other = await original.describe(), await copy.describe()
    same = [(one[key], other[key]) for key in ("size", "bytes")]
    if done.original.digest != done.copy.digest or any(a != b for a, b in same) or same[0][0] != done.copy.num_images:
        raise TransferError(f"the totals differ: {same}; run the command again")


async def _report(copy: CollectionClient, done: Pass, num_passes: int, *, is_finished: bool) -> Migrated:
    described = await copy.describe()
    return Migrated(
        is_finished=is_finished,
        num_passes=num_passes,
        images=done.original.num_images,
        bytes=described["bytes"],
        digest=done.original.digest if is_finished else None,
        copy_images=described["size"],
        not_indexed=max((one["waiting"] for one in described["conditions"]), default=0),
    )
