"""The conditions that a collection indexes: those requested in advance, and those of searches while there is room."""

import asyncio
from collections.abc import Sequence

from services.core.errors import TooLarge, blaming
from services.embed.call import EmbedModel
from services.embed.collections.checkpoint_indexes import CheckpointIndexes
from services.embed.collections.storage.image_store import ImageStore
from services.nn.clip_texts import Text


class Conditions:
    """Keeps the indexes consistent with the list in the store; the unconditional embedding is always indexed."""

    def __init__(self, store: ImageStore, *, max_conditions: int) -> None:
        self._store = store
        self._max_conditions = max_conditions

    async def index_ahead(self, indexes: CheckpointIndexes, texts: Sequence[Text]) -> None:
        """Index these conditions and never drop them. Raises TooLarge, and changes nothing, if they are too many."""
        pinned = {index.text.digest for index in indexes if index.text is not None and index.is_pinned}
        num_conditions = len(pinned | {text.digest for text in texts})
        if num_conditions > self._max_conditions:
            raise TooLarge(
                f"The collection would index {num_conditions} conditions in advance; the limit is "
                f"{self._max_conditions}.",
                param="conditions",
            )
        for text in texts:
            if text.digest in pinned:
                continue
            if indexes.get(text) is None:
                await self._make_room(indexes)
            indexes.start(text).is_pinned = True
            await asyncio.to_thread(self._store.put_condition, text.text, is_pinned=True)

    async def index(self, indexes: CheckpointIndexes, text: Text) -> None:
        """Index the condition of a search, if another one can be dropped for it."""
        if await self._make_room(indexes):
            indexes.start(text)
            await asyncio.to_thread(self._store.put_condition, text.text, is_pinned=False)

    async def _make_room(self, indexes: CheckpointIndexes) -> bool:
        """Drop the least recently used index if the maximum is reached; False if all were requested in advance."""
        conditional = [index for index in indexes if index.text is not None]
        if len(conditional) < self._max_conditions:
            return True
        oldest = min((i for i in conditional if not i.is_pinned), key=lambda index: index.used, default=None)
        if oldest is None or oldest.condition is None:
            return False
        indexes.drop(oldest)
        await asyncio.to_thread(self._store.drop_condition, oldest.condition)
        return True


def prepare_conditions(engine: EmbedModel, conditions: Sequence[str]) -> list[Text]:
    """Tokenise conditions. Raises what `prepare_condition` raises, naming the condition."""
    texts = []
    for index, condition in enumerate(conditions):
        with blaming(f"conditions.{index}"):
            texts.append(engine.prepare_condition(condition))
    return texts
