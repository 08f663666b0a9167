"""One open collection: its stored images, the served checkpoint's indexes of them, and the task that fills these; and
the collections of all tenants that a process has open, whether they are its own or shared with other processes."""

import asyncio
import copy
import time
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import aclosing, asynccontextmanager, suppress
from typing import Any

import structlog

from services.core.backoff import backoff_s
from services.core.errors import Conflict, FoveaError, InternalError, NotFound, Overloaded, TooLarge, blaming
from services.core.exchange import NOBODY, RequestContext, set_caller
from services.core.http.health import CheckResult
from services.core.images.inputs import ImageInput
from services.core.images.references import StoredImage as StoredImageReference
from services.core.serving.served_models import Resident
from services.embed.call import EmbedBatchers, EmbedModel, ServedEmbed
from services.embed.collections import answers
from services.embed.collections.answers import SearchQuery, SearchResult, SearchResults
from services.embed.collections.indexes import AnyIndexes, Changes, OpenCheckpoint, OpenIndexes, Step
from services.embed.collections.reader import Prepared, Read, Wanted
from services.embed.collections.search import Question, Searcher, answered_by, kind_of, not_indexed, status_of
from services.embed.collections.serving import Serving
from services.embed.collections.storage.catalog import CollectionKey, no_collection
from services.embed.collections.storage.database import DatabaseFailed, StorageFull
from services.embed.collections.storage.image_store import Added, CollectionInfo, ImageStore, NewImage, StoredImage
from services.nn.clip_texts import Text

EmbedResident = Resident[EmbedModel, Any, EmbedBatchers]
RETRY_S = 1.0
# Maximum wait between attempts if indexing fails repeatedly.
MAX_RETRY_S = 60.0
# A wait for an index ends this long before the deadline, so that images that are stored are not answered with 504.
ANSWERING_S = 0.5
# Time between looks of a request that waits for what other replicas index.
FOLLOW_S = 0.1
# Longest wait of the indexer for its model, which may have made room for another.
LOADING_S = 600.0
# Number of problems that `/readyz` describes; further ones are only counted.
MAX_DESCRIBED = 10


def prepare_conditions(engine: EmbedModel, conditions: Sequence[str]) -> list[Text]:
    """Tokenise conditions. Raises what `prepare_condition` raises, naming the condition."""
    texts = []
    for index, condition in enumerate(conditions):
        with blaming(f"conditions.{index}"):
            texts.append(engine.prepare_condition(condition))
    return texts


class OpenCollection:
    """Started once; every method runs on the event loop, disk access and search on worker threads.

    `changes` is shared with the indexes that `open_checkpoint` opens. `on_failure` is called when the database turns
    out to be damaged, missing or unreadable.
    """

    def __init__(
        self,
        store: ImageStore,
        serving: Serving,
        changes: Changes,
        open_checkpoint: OpenCheckpoint,
        *,
        on_failure: Callable[[DatabaseFailed], None],
    ) -> None:
        self.info = store.info
        self._on_failure = on_failure
        self._store = store
        self._serving = serving
        self._settings = serving.settings
        self._changes = changes
        self._searcher = Searcher(
            store, serving.embedder, serving.reader, serving.search_threads, self._settings.shortlist_size
        )
        self._indexes = OpenIndexes(open_checkpoint)
        self._wake = asyncio.Event()
        self._progress = asyncio.Condition()
        self._settled_at = time.monotonic()
        self._task: asyncio.Task[None] | None = None
        self._num_users = 0
        self._may_give_back = True
        self._closing = asyncio.Event()
        self._refusal: FoveaError = no_collection(self.info.name)

    async def start(self) -> None:
        """Begin to index images that are not indexed yet."""
        self._task = asyncio.create_task(self._keep_indexing())

    async def close(self, refusal: FoveaError | None = None) -> None:
        """Let running requests end, save the indexes and close the files. Later calls get the refusal."""
        self._refusal = refusal or self._refusal
        self._closing.set()
        async with self._progress:
            await self._progress.wait_for(lambda: self._num_users == 0)
        if self._task is not None:
            self._task.cancel()
            with suppress(asyncio.CancelledError):
                await self._task
        await self._indexes.close(is_saving=refusal is None)
        await asyncio.to_thread(self._store.close)

    @asynccontextmanager
    async def in_use(self) -> AsyncIterator[ImageStore]:
        """Return its store, which stays open until the block ends. Raises the refusal of `close` once it is closing."""
        if self._closing.is_set():
            raise copy.copy(self._refusal)
        self._num_users += 1
        try:
            yield self._store
        except DatabaseFailed as error:
            self._on_failure(error)
            error.message = f"The collection {self.info.name!r} is damaged or can't be read; see the server's log."
            error.param = "collection"
            raise
        finally:
            self._num_users -= 1
            if self._closing.is_set():
                await self._notify()

    def wake(self) -> None:
        """Look for images to index now."""
        self._wake.set()

    async def add(self, images: Sequence[NewImage], *, fill: bool) -> Added:
        """Store images; they are on disk when this returns. Raises what ImageStore.add raises."""
        async with self.in_use() as store:
            added = await asyncio.to_thread(store.add, images, self._serving.limits, fill=fill)
            self._changes.note_rows(added.rows)
            self._wake.set()
            return added

    async def wait_until_indexed(self, deadline: float) -> None:
        """Return when every index has all images stored now, or just before `deadline` (time.monotonic())."""
        left_s = deadline - ANSWERING_S - time.monotonic()
        async with self.in_use():
            with suppress(TimeoutError):
                async with asyncio.timeout(left_s):
                    await self._refresh()
                    row = self._changes.last_row
                    while not self._has_indexed(row):
                        await self._wait_for_progress()
                        await self._refresh()

    async def delete(self, image_id: str, *, fill: bool) -> None:
        """Remove an image, also on a full disk; no search that begins afterwards finds it.

        Raises what ImageStore.delete raises.
        """
        async with self.in_use():
            row = await asyncio.to_thread(self._delete_stored, image_id, fill=fill)
            self._changes.deleted.add(row)
            self._may_give_back = True
            await self._indexes.delete(row)

    async def patch(self, image_id: str, changes: Mapping[str, Any]) -> StoredImage:
        """Change an image's metadata; every search that begins afterwards finds it. Raises what ImageStore.patch
        raises."""
        async with self.in_use() as store:
            return await asyncio.to_thread(store.patch, image_id, changes, self._serving.limits)

    async def index_ahead(
        self, conditions: Sequence[str], context: RequestContext, asked: EmbedResident | None = None
    ) -> None:
        """Keep an index of each condition.

        Raises TooLarge over the limit, Conflict if the collection's model is not served or another is asked, and what
        the tokenizer raises.
        """
        async with self.in_use():
            async with self._serving.models.hold(self._model(asked), context) as served:
                texts = prepare_conditions(served.engine, conditions)
                indexes = await self._indexes.of(served)
            await indexes.refresh()
            await self._pin(indexes, texts)
            self._wake.set()

    async def search(self, query: SearchQuery, context: RequestContext) -> SearchResults:
        """Raises NotFound for a model or an image that does not exist, Conflict if the collection's is another one."""
        async with self.in_use() as store:
            asked = await self._serving.models.find(query.model) if query.model else None
            resident = self._model(asked)
            async with self._serving.models.hold(resident, context, asked=query.model) as served:
                with blaming("condition"):
                    text = served.engine.prepare_condition(query.condition) if query.condition is not None else None
                among = await asyncio.to_thread(store.rows_matching, query.filter) if query.filter else None
                own = await self._own_row(query)
                indexes = await self._indexes.of(served)
                await indexes.refresh()
                question = Question(query.input, text, query.k + len(own), among, context)
                nearest = await self._searcher.search(served, indexes, question, last_row=self._changes.last_row)
                if text is not None and nearest.index is None and indexes.get(text) is None:
                    with suppress(StorageFull):  # the answer is complete even if the condition is not stored
                        await self._index_condition(indexes, text)
                    self._wake.set()
            images = await asyncio.to_thread(store.by_rows, nearest.rows)
            hits = [
                SearchResult.of(images[row], score)
                for row, score in zip(nearest.rows, nearest.scores, strict=True)
                if row in images and row not in own
            ]
            status = answered_by(nearest, text, self._changes.last_row)
            self._serving.metrics.searches.labels(kind_of(nearest)).inc()
            self._serving.metrics.stage_seconds.labels("search").observe(context.timing.stages.get("search", 0.0))
            return SearchResults.model_construct(
                model=served.label, condition=query.condition, results=hits[: query.k], index=status
            )

    async def status(self) -> answers.Collection:
        """Return the collection's size and the progress of its indexes."""
        async with self.in_use() as store:
            num_images, num_bytes = await asyncio.to_thread(store.size)
            await self._refresh()
            indexes = self._indexes.newest
            if indexes is not None:
                statuses = [status_of(index, num_images, self._changes.last_row) for index in indexes]
            else:
                statuses = [not_indexed(None, waiting=num_images, pinned=True)]
                for one in await asyncio.to_thread(store.conditions):
                    statuses.append(not_indexed(one.text, waiting=num_images, pinned=one.is_pinned))
            states = indexes.states if indexes else None
            return answers.Collection(
                name=self.info.name,
                model=self.info.model,
                created=int(self.info.created),
                access=await asyncio.to_thread(store.access),
                size=num_images,
                bytes=num_bytes,
                state="ready" if all(status.state == "ready" for status in statuses) else "building",
                conditions=statuses,
                image_states=states
                and answers.ImageStates(
                    images=states.num_images,
                    bytes=states.num_bytes,
                    bytes_per_image=states.record_bytes,
                    max_bytes=states.max_bytes,
                ),
            )

    def _model(self, asked: EmbedResident | None = None) -> EmbedResident:
        """Return the model that the collection was made for. Raises Conflict if it is not served, or another asked."""
        resident = self._serving.models.named(self.info.model)
        made_for = f"The collection {self.info.name!r} was made for the model {self.info.model!r}"
        if resident is None:
            raise Conflict(f"{made_for}; this service serves {self._serving.models.told_names}.", param="model")
        if asked not in (None, resident):
            raise Conflict(f"{made_for}.", param="model")
        return resident

    async def _pin(self, indexes: AnyIndexes, texts: Sequence[Text]) -> None:
        """Index these conditions and never drop them. Raises TooLarge, and changes nothing, if they are too many."""
        pinned = {index.text.digest for index in indexes if index.text is not None and index.is_pinned}
        num_conditions = len(pinned | {text.digest for text in texts})
        if num_conditions > (max_conditions := self._settings.collection_max_conditions):
            raise TooLarge(
                f"The collection would index {num_conditions} conditions in advance; the limit is {max_conditions}.",
                param="conditions",
            )
        for text in texts:
            if text.digest in pinned:
                continue
            if indexes.get(text) is None:
                await self._make_room(indexes)
            indexes.start(text).is_pinned = True
            await asyncio.to_thread(self._store.put_condition, text.text, is_pinned=True)

    async def _index_condition(self, indexes: AnyIndexes, text: Text) -> None:
        """Index the condition of a search, if another one can be dropped for it."""
        if await self._make_room(indexes):
            indexes.start(text)
            await asyncio.to_thread(self._store.put_condition, text.text, is_pinned=False)

    async def _make_room(self, indexes: AnyIndexes) -> bool:
        """Drop the least recently used index if the maximum is reached; False if all were requested in advance."""
        conditional = [index for index in indexes if index.text is not None]
        if len(conditional) < self._settings.collection_max_conditions:
            return True
        oldest = min((i for i in conditional if not i.is_pinned), key=lambda index: index.used, default=None)
        if oldest is None or oldest.condition is None:
            return False
        indexes.drop(oldest)
        await asyncio.to_thread(self._store.drop_condition, oldest.condition)
        return True

    async def _own_row(self, query: SearchQuery) -> set[int]:
        """Return the row of the stored image that is the query: it is not one of its own neighbours."""
        reference = query.input.reference if isinstance(query.input, ImageInput) else None
        if not isinstance(reference, StoredImageReference) or reference.collection != self.info.name:
            return set()
        with blaming(query.input.param):
            return {(await asyncio.to_thread(self._store.image, reference.image_id)).row}

    async def _keep_indexing(self) -> None:
        # Whoever opened the collection does not wait behind its images, and has no share of the model taken by them.
        set_caller(NOBODY)
        num_failures = 0
        while True:
            pause_s = self._settings.store_poll_s
            try:
                await self._give_back()
                while await self._index_a_step():
                    await self._notify()
                num_failures = 0
            except DatabaseFailed as error:
                self._on_failure(error)
                num_failures += 1
            except NotFound:  # deleted by another process; whoever asks for it next closes it
                pass
            except Overloaded as error:  # no checkpoint yet, or it is being replaced
                pause_s = error.retry_after_s or RETRY_S
            except Exception:  # noqa: BLE001 - whatever went wrong may be mended by the next attempt
                structlog.get_logger(__name__).error("indexing failed", collection=self.info.name, exc_info=True)
                num_failures += 1
            if num_failures:
                pause_s = max(pause_s, backoff_s(num_failures, 2 * pause_s, MAX_RETRY_S))
            await self._notify()
            # Until Python 3.12 `asyncio.wait_for` may lose a cancellation that arrives while it wakes up.
            with suppress(TimeoutError):
                async with asyncio.timeout(pause_s):
                    await self._wake.wait()
            self._wake.clear()

    def _delete_stored(self, image_id: str, *, fill: bool) -> int:
        try:
            return self._store.delete(image_id, fill=fill)
        except StorageFull:
            with self._serving.ballast.given_up():
                row = self._store.delete(image_id, fill=fill)
                with suppress(StorageFull):
                    self._store.give_back()
                return row

    async def _give_back(self) -> None:
        """Return the space of deleted images to the disk if it is large."""
        if not self._may_give_back:
            return
        self._may_give_back = False
        with suppress(StorageFull):
            if await asyncio.to_thread(self._store.has_much_to_give_back):
                await asyncio.to_thread(self._store.give_back)
        for indexes in self._indexes:
            if indexes.states is not None:
                await asyncio.to_thread(indexes.states.give_back)
        await asyncio.to_thread(self._serving.ballast.take_room)

    async def _index_a_step(self) -> bool:
        """Advance the indexes of the served checkpoint by one step; False if nothing is left to do.

        A model that made room for another is loaded again only if there is something to index.
        """
        resident = self._serving.models.named(self.info.model)
        if resident is None:
            return False
        if not resident.checkpoint.is_loaded:
            await self._refresh()
            if self._has_indexed(self._changes.last_row):
                return False
        async with self._serving.models.hold(resident, RequestContext(time.monotonic() + LOADING_S)) as served:
            indexes = await self._indexes.of(served)
            is_unfinished = await self._advance(served, indexes)
        if not is_unfinished or time.monotonic() - self._settled_at >= self._settings.index_save_every_s:
            await self._settle(indexes)
        return is_unfinished

    async def _advance(self, served: ServedEmbed, indexes: AnyIndexes) -> bool:
        """Take one step; False if there is nothing to do. Raises what the batcher raises."""
        step = await asyncio.to_thread(indexes.next_step)
        if step is None:
            return False
        try:
            await self._take(served, indexes, step)
        except BaseException:
            await asyncio.to_thread(indexes.give_up, step)
            raise
        return True

    async def _take(self, served: ServedEmbed, indexes: AnyIndexes, step: Step[Any]) -> None:
        wanted = Wanted(step.rows, step.conditions, indexes.sources)
        in_pieces = self._serving.reader.in_pieces(served.engine, wanted, keeps_states=indexes.keeps_states)
        began = time.perf_counter()
        async with aclosing(in_pieces) as some:
            async for prepared in some:
                await self._take_in(served, indexes, step, prepared)
                ended = time.perf_counter()
                if (from_states := prepared.from_states) is not None:
                    indexes.pace.note(len(prepared.items), ended - began, from_states=from_states)
                began = ended
        await asyncio.to_thread(indexes.finish, step)

    async def _take_in(self, served: ServedEmbed, indexes: AnyIndexes, step: Step[Any], prepared: Prepared) -> None:
        reads: Sequence[Read]
        try:
            reads = await self._run(served, prepared)
        except InternalError:  # caused by one image: the others are still indexed
            reads = [read for one in prepared.one_by_one() for read in await self._run_or_leave_out(served, one)]
        await asyncio.to_thread(indexes.append, step, reads, through=prepared.through)

    async def _run(self, served: ServedEmbed, prepared: Prepared) -> list[Read]:
        """Run with lower priority than requests: if these fill the queue, indexing waits."""
        while True:
            try:
                return await self._serving.reader.run(served, prepared)
            except Overloaded as error:
                if error.code != "queue_full":
                    raise
                await asyncio.sleep(error.retry_after_s or RETRY_S)

    async def _run_or_leave_out(self, served: ServedEmbed, prepared: Prepared) -> list[Read]:
        try:
            return await self._run(served, prepared)
        except InternalError:
            rows = [row for row, _ in prepared.items]
            structlog.get_logger(__name__).error("stored image left out of the indexes", rows=rows, exc_info=True)
            return []

    async def _settle(self, indexes: AnyIndexes) -> None:
        await asyncio.to_thread(indexes.tidy)
        if time.monotonic() - self._settled_at >= self._settings.index_save_every_s:
            await asyncio.to_thread(indexes.save)
            self._settled_at = time.monotonic()
        through = min((index.vectors.through for index in indexes), default=0)
        self._changes.forget_deleted(through)
        await self._indexes.retire_others(indexes)

    async def _refresh(self) -> None:
        """Learn what other processes have done to the newest checkpoint's indexes."""
        if (indexes := self._indexes.newest) is not None:
            await indexes.refresh()

    async def _wait_for_progress(self) -> None:
        """Return when this process has indexed something, or when another one may have."""
        follow_s = None if self._settings.collections_url is None else FOLLOW_S
        with suppress(TimeoutError):
            async with asyncio.timeout(follow_s), self._progress:
                await self._progress.wait()

    async def _notify(self) -> None:
        async with self._progress:
            self._progress.notify_all()

    @property
    def lag(self) -> int:
        """Rows between the newest image and the index furthest behind: an upper bound of the images that wait."""
        indexes = self._indexes.newest
        return self._changes.last_row - min((index.vectors.through for index in indexes or ()), default=0)

    def _has_indexed(self, row: int) -> bool:
        indexes = self._indexes.newest
        return indexes is not None and all(index.vectors.through >= row for index in indexes)


class OpenCollections(ABC):
    """Methods that use collections raise Overloaded until these are open or while they can't be reached."""

    def __init__(self, serving: Serving) -> None:
        self._serving = serving
        self._max_collections = serving.settings.max_collections
        self._collections: dict[CollectionKey, OpenCollection] = {}
        self._damaged: dict[CollectionKey, str] = {}
        self._changing = asyncio.Lock()
        self._problem = "they are being opened"
        self._reported = ""

    @asynccontextmanager
    async def opened(self) -> AsyncIterator[None]:
        """Open the collections, retrying if necessary; close them at the end."""
        task = asyncio.create_task(self._keep_open())
        try:
            yield
        finally:
            task.cancel()
            with suppress(asyncio.CancelledError):
                await task
            await asyncio.gather(*[collection.close() for collection in self._collections.values()])
            await self._close_all()

    @property
    def lag(self) -> int:
        """Number of images that an index still lacks, as far as this process knows."""
        return sum(max(0, collection.lag) for collection in self._collections.values())

    @abstractmethod
    def check(self) -> CheckResult:
        """Report to `/readyz`; what can't be used does not make it fail, but the detail names it and the reason."""

    @abstractmethod
    async def get(self, key: CollectionKey) -> OpenCollection:
        """Raises NotFound if it does not exist, Overloaded if it can't be opened."""

    @abstractmethod
    async def of(self, tenant: str) -> tuple[Sequence[OpenCollection], Sequence[str]]:
        """List a tenant's collections, and the names of those that can't be opened, both sorted by name."""

    @abstractmethod
    async def get_or_make(self, tenant: str, info: CollectionInfo) -> tuple[OpenCollection, bool]:
        """Return a collection and whether it is new. Raises TooLarge for too many, and what Catalog.create raises."""

    @abstractmethod
    async def delete(self, key: CollectionKey) -> None:
        """Remove a collection. Raises NotFound."""

    @abstractmethod
    async def _keep_open(self) -> None:
        """Open the collections, and then follow them for as long as they are open."""

    @abstractmethod
    async def _close_all(self) -> None:
        """Close what is left once the open collections are closed."""

    def _check_number(self, number: int) -> None:
        if number > self._max_collections:
            raise TooLarge(f"There would be {number} collections; the limit is {self._max_collections}.", param="name")

    def _not_open(self) -> Overloaded:
        return Overloaded(f"The collections can't be used yet: {self._problem}.", code="collections_not_open")

    def _note_damage(self, key: CollectionKey, error: DatabaseFailed) -> None:
        """Name a collection of which a part is damaged; the rest of it stays in use."""
        if key not in self._damaged:
            log = structlog.get_logger(__name__)
            log.error("collection damaged", tenant=key.tenant, collection=key.name, reason=error.reason)
        self._damaged[key] = error.reason


def describe_problems(problems: dict[CollectionKey, str]) -> list[str]:
    """Describe the problems of collections for `/readyz`."""
    found = [f"{key.tenant}/{key.name}: {problems[key]}" for key in sorted(problems)[:MAX_DESCRIBED]]
    return found if len(problems) <= MAX_DESCRIBED else [*found, f"and {len(problems) - MAX_DESCRIBED} more"]
