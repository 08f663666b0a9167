"""kill -9 at random moments: every alias still names a complete version that can be fetched."""

import random
import time
from pathlib import Path

import pytest

from services.core.store.store import Store
from tests.core.child_processes import forked_processes
from tests.core.restless_writer import CLAIM_LIFE_S, write_until_killed
from tests.core.s3_servers import S3Server
from tests.core.store_places import StorePlace
from tests.core.tiny_checkpoints import INFO, write_checkpoint

pytestmark = pytest.mark.process

# Long enough for a few rounds of publish, promote, rollback and gc.
LONGEST_LIFE_S = 0.08
# Of the one who writes after all the others: time to write in, however slow the server, and to wait for a dead claim.
LAST_CLAIM_LIFE_S = 10.0


def kill_a_writer(place: StorePlace, folder: Path, seed: int, longest_life_s: float) -> None:
    processes = forked_processes()
    started, child_end = processes.Pipe()
    writer = processes.Process(target=write_until_killed, args=(place.url, place.options, folder, seed, child_end))
    writer.start()
    started.recv()
    # The random moment; nothing is waited for.
    time.sleep(random.Random(seed).uniform(0, longest_life_s))
    writer.kill()
    writer.join()
    started.close()
    child_end.close()


def check_every_alias(store: Store, cache_dir: Path) -> None:
    for listed in store.versions("toy"):
        store.verify("toy", listed.id)
    for alias in store.aliases("toy"):
        version = store.resolve("toy", alias)
        store.verify("toy", version)
        assert (store.fetch("toy", version, cache_dir) / "model.safetensors").is_file()


@pytest.mark.slow
def test_after_a_hundred_kills_every_alias_of_a_folder_still_loads(tmp_path: Path) -> None:
    place = StorePlace((tmp_path / "store").as_uri())
    store = place.open()
    num_unfinished = 0

    for seed in range(100):
        kill_a_writer(place, tmp_path / "checkpoint", seed, LONGEST_LIFE_S)
        check_every_alias(store, tmp_path / "cache")
        num_unfinished += sum(removal.reason == "incomplete" for removal in store.gc(grace_s=0))

    # Else the moments were not random enough to mean anything.
    assert num_unfinished > 0
    store.publish("toy", write_checkpoint(tmp_path / "checkpoint"), INFO)
    store.gc(keep=1, grace_s=0, dry_run=False)
    check_every_alias(store, tmp_path / "cache")
    assert list((tmp_path / "store").rglob("*#*")) == []


@pytest.mark.slow
@pytest.mark.parametrize("server", ["rclone", "moto"])
def test_after_kills_every_alias_on_s3_still_loads(request: pytest.FixtureRequest, tmp_path: Path, server: str) -> None:
    s3: S3Server = request.getfixturevalue(server)
    place = StorePlace(s3.url(f"{tmp_path.parent.name}-{tmp_path.name}"), s3.options)
    store = place.open(claim_life_s=LAST_CLAIM_LIFE_S)

    for seed in range(6):
        kill_a_writer(place, tmp_path / "checkpoint", seed, 2 * CLAIM_LIFE_S)
        check_every_alias(store, tmp_path / "cache")

    published = store.publish("toy", write_checkpoint(tmp_path / "checkpoint"), INFO)
    assert store.resolve("toy") == published.id
