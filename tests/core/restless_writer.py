"""Other processes' changes to a store in tests."""

import random
from collections.abc import Mapping
from multiprocessing.connection import Connection
from multiprocessing.queues import Queue
from pathlib import Path

from services.core.store.errors import AliasMoved, NotFoundInStore, StoreUnavailable
from services.core.store.store import Store
from tests.core.tiny_checkpoints import INFO, write_checkpoint

# A writer that is killed on a remote store keeps the next one waiting this long.
CLAIM_LIFE_S = 1.0

AcceptedMove = tuple[str | None, str]


def write_until_killed(url: str, options: Mapping[str, str], folder: Path, seed: int, started: Connection) -> None:
    """Publish, promote, roll back and collect garbage in random order for ever."""
    chance = random.Random(seed)
    store = Store.open(url, options=options, claim_life_s=CLAIM_LIFE_S)
    started.send(True)
    while True:
        try:
            version = store.publish("toy", write_checkpoint(folder, chance.randbytes(2000)), INFO)
            if chance.random() < 0.5:
                store.promote("toy", version.id, "stable")
            if chance.random() < 0.3:
                store.rollback("toy", "latest")
            if chance.random() < 0.3:
                store.gc(keep=1, grace_s=0, dry_run=False)
        except (NotFoundInStore, StoreUnavailable):
            # Nothing to roll back to, or a claim's life is short on a busy machine.
            continue


def move_alias(store: Store, versions: list[str]) -> list[AcceptedMove]:
    """Promote each version once, from wherever the alias is found; returns the moves that were accepted."""
    moves: list[AcceptedMove] = []
    for version in versions:
        while True:
            try:
                expected: str | None = store.resolve("toy", "stable")
            except NotFoundInStore:
                expected = None
            try:
                store.promote("toy", version, "stable", expected=expected)
            except AliasMoved:
                continue
            moves.append((expected, version))
            break
    return moves


def move_alias_and_report(
    url: str, options: Mapping[str, str], versions: list[str], results: "Queue[list[AcceptedMove]]"
) -> None:
    results.put(move_alias(Store.open(url, options=options), versions))


def fetch_and_report(url: str, version: str, cache_dir: Path, results: "Queue[bool]") -> None:
    copy = Store.open(url).fetch("toy", version, cache_dir)
    results.put((copy / "config.json").is_file())
