"""Writers exclude each other, on stores with and without conditional puts."""

from collections import deque
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from multiprocessing.queues import Queue
from pathlib import Path

import pytest

from services.core.store.aliases import Alias, Aliases
from services.core.store.errors import NotFoundInStore, StoreUnavailable
from services.core.store.objects import Objects
from services.core.store.store import Store
from services.core.store.writers import Writers
from tests.core.awkward_proxy import AwkwardProxy, Treatment, awkward_proxy
from tests.core.child_processes import forked_processes
from tests.core.restless_writer import AcceptedMove, move_alias, move_alias_and_report
from tests.core.s3_servers import S3Server
from tests.core.store_places import StorePlace
from tests.core.tiny_checkpoints import INFO, write_checkpoint, write_starter

pytestmark = pytest.mark.process

NUM_WRITERS = 3
NUM_MOVES = 5


@pytest.fixture
def proxy(rclone: S3Server) -> Iterator[AwkwardProxy]:
    with awkward_proxy(rclone) as proxy:
        yield proxy


def test_turns_on_one_model_never_overlap(place: StorePlace) -> None:
    objects = place.objects
    objects.write("counter", [b"0"], 1)

    def count(_: int) -> None:
        for _ in range(NUM_MOVES):
            with Writers(objects).turn("toy"):
                # A read and a write that lose a count as soon as two threads do them at once.
                counted = b"%d" % (int(objects.read("counter").body) + 1)
                objects.write("counter", [counted], len(counted))

    with ThreadPoolExecutor(NUM_WRITERS) as threads:
        deque(threads.map(count, range(NUM_WRITERS)), maxlen=0)

    assert objects.read("counter").body == b"%d" % (NUM_WRITERS * NUM_MOVES)


def test_of_racing_promotions_exactly_one_wins_from_each_version_and_none_is_lost(
    place: StorePlace, tmp_path: Path
) -> None:
    store = place.open()
    ids = [
        store.publish("toy", write_checkpoint(tmp_path / "a", b"%d" % number), INFO, alias=None).id
        for number in range(NUM_WRITERS * NUM_MOVES)
    ]
    shares = [ids[start::NUM_WRITERS] for start in range(NUM_WRITERS)]

    if place.url.startswith("memory:"):
        with ThreadPoolExecutor(NUM_WRITERS) as threads:
            accepted = [move for moves in threads.map(lambda ids: move_alias(store, ids), shares) for move in moves]
    else:
        accepted = race_in_processes(place, shares)

    alias = store.aliases("toy")["stable"]
    history = [None, *reversed(alias.previous), alias.version]
    assert sorted(accepted, key=lambda move: history.index(move[1])) == list(pairwise(history))


def race_in_processes(place: StorePlace, shares: list[list[str]]) -> list[AcceptedMove]:
    processes = forked_processes()
    results: Queue[list[AcceptedMove]] = processes.Queue()
    racers = [
        processes.Process(target=move_alias_and_report, args=(place.url, place.options, share, results))
        for share in shares
    ]
    for racer in racers:
        racer.start()
    accepted = [move for _ in racers for move in results.get(timeout=100)]
    for racer in racers:
        racer.join()
    return accepted


def test_a_store_is_tried_for_conditional_puts_and_not_believed(place: StorePlace, rclone: S3Server) -> None:
    ignores_conditions = place.url.startswith("file:") or rclone.endpoint in place.url

    assert Aliases(place.objects).has_conditional_puts() is not ignores_conditions
    assert place.objects.entries("probes") == []


def test_a_server_that_refuses_conditional_puts_is_written_to_without(proxy: AwkwardProxy, tmp_path: Path) -> None:
    def refuse_conditions(_method: str, _path: str, headers: set[str]) -> Treatment:
        return "not implemented" if headers & {"if-match", "if-none-match"} else "forward"

    proxy.treat = refuse_conditions
    store = Store.open(proxy.server.url(tmp_path.name), options=proxy.server.options)

    versions = [store.publish("toy", write_checkpoint(tmp_path / "a", body), INFO) for body in (b"1", b"2")]

    assert store.resolve("toy") == versions[1].id
    assert store.rollback("toy", "latest") == versions[0].id


@pytest.mark.parametrize("ignored", ["ignore if-match", "ignore if-none-match"])
def test_a_server_that_honours_only_half_of_the_conditions_is_not_believed(
    moto: S3Server, tmp_path: Path, ignored: Treatment
) -> None:
    with awkward_proxy(moto) as proxy:
        objects = Objects(proxy.server.url(tmp_path.name), proxy.server.options)
        assert Aliases(objects).has_conditional_puts()
        proxy.treat = lambda *_: ignored
        assert not Aliases(objects).has_conditional_puts()


def test_a_version_that_is_removed_while_a_promoter_waits_is_not_promoted(proxy: AwkwardProxy, tmp_path: Path) -> None:
    store = Store.open(proxy.server.url(tmp_path.name), options=proxy.server.options)
    version = store.publish("toy", write_checkpoint(tmp_path / "a"), INFO)

    def remove_before_the_claim(method: str, path: str, _headers: set[str]) -> Treatment:
        if method == "PUT" and "/claims/" in path:
            objects = Objects(proxy.server.url(tmp_path.name), proxy.server.options)
            objects.delete([f"models/toy/versions/{version.id}/manifest.json"])
        return "forward"

    proxy.treat = remove_before_the_claim
    with pytest.raises(NotFoundInStore):
        store.promote("toy", version.id, "stable")
    assert list(store.aliases("toy")) == ["latest"]


def test_a_starter_does_not_move_an_alias_that_appears_while_it_is_uploaded(
    proxy: AwkwardProxy, tmp_path: Path
) -> None:
    place = StorePlace(proxy.server.url(tmp_path.name), proxy.server.options)
    other = Alias(version="0123456789ab").model_dump_json().encode()

    def set_the_alias_meanwhile(method: str, path: str, _headers: set[str]) -> Treatment:
        if method == "PUT" and path.endswith("manifest.json"):
            place.objects.write("models/one/aliases/latest", [other], len(other))
        return "forward"

    proxy.treat = set_the_alias_meanwhile
    store = place.open()
    store.publish_starters([write_starter(tmp_path / "starter", "one")])

    assert store.resolve("one") == "0123456789ab"


def test_a_move_whose_answer_was_lost_is_known_to_have_happened(proxy: AwkwardProxy, tmp_path: Path) -> None:
    store = Store.open(proxy.server.url(tmp_path.name), options=proxy.server.options)
    old = store.publish("toy", write_checkpoint(tmp_path / "a", b"1"), INFO)
    new = store.publish("toy", write_checkpoint(tmp_path / "a", b"2"), INFO, alias=None)
    lost: list[str] = []

    def lose_answers(method: str, path: str, _headers: set[str]) -> Treatment:
        if method != "PUT" or "/aliases/" not in path:
            return "forward"
        lost.append(path)
        return "lose the answer"

    proxy.treat = lose_answers
    store.promote("toy", new.id, "latest", expected=old.id)

    assert store.resolve("toy") == new.id
    assert lost


def test_a_download_that_breaks_off_is_continued(proxy: AwkwardProxy, tmp_path: Path) -> None:
    store = Store.open(proxy.server.url(tmp_path.name), options=proxy.server.options)
    version = store.publish("toy", write_checkpoint(tmp_path / "a", b"weights" * 1000), INFO)
    broken: list[str] = []

    def break_off_once(method: str, path: str, _headers: set[str]) -> Treatment:
        if method != "GET" or not path.endswith("model.safetensors") or broken:
            return "forward"
        broken.append(path)
        return "break off"

    proxy.treat = break_off_once
    copy = store.fetch("toy", version.id, tmp_path / "cache")

    assert broken
    assert (copy / "model.safetensors").read_bytes() == (tmp_path / "a" / "model.safetensors").read_bytes()


def test_the_claim_of_a_writer_that_died_stops_the_next_only_while_it_lives(tmp_path: Path) -> None:
    objects = Objects("memory://", {})
    objects.write("claims/toy/dead", [b"{}"], 2)

    with (
        pytest.raises(StoreUnavailable, match=r"other writers have held toy for 0\.1 s"),
        Writers(objects, claim_life_s=60, patience_s=0.1).turn("toy"),
    ):
        pass
    with Writers(objects, claim_life_s=0.5).turn("toy"):
        assert len(objects.entries("claims/toy")) == 1
    assert objects.entries("claims/toy") == []


def test_a_file_lock_that_is_not_released_is_reported_with_its_path(tmp_path: Path) -> None:
    writers = Writers(Objects(tmp_path.as_uri(), {}), patience_s=0.1)

    with (
        writers.turn("toy"),
        pytest.raises(StoreUnavailable, match=r"held toy for 0\.1 s .*locks/toy"),
        writers.turn("toy"),
    ):
        pass


def test_a_writer_whose_claim_is_about_to_expire_writes_nothing_more(tmp_path: Path) -> None:
    objects = Objects("memory://", {})
    published = Store(objects).publish("toy", write_checkpoint(tmp_path / "a"), INFO)

    with pytest.raises(StoreUnavailable, match="longer than a writer's turn"):
        Store(objects, claim_life_s=0).promote("toy", published.id, "stable")
    with pytest.raises(StoreUnavailable, match="longer than a writer's turn"):
        Store(objects, claim_life_s=0).publish("toy", write_checkpoint(tmp_path / "b", b"new"), INFO)

    assert list(Store(objects).aliases("toy")) == ["latest"]
    assert [version.id for version in Store(objects).versions("toy")] == [published.id]


def test_writers_of_different_models_do_not_wait_for_each_other(place: StorePlace) -> None:
    with Writers(place.objects).turn("toy"), Writers(place.objects, patience_s=0.001).turn("other") as turn:
        turn.check()
