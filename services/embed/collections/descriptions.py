"""Descriptions of a collection's indexes for clients."""

from services.embed.collections.answers import IndexStatus
from services.embed.collections.indexes import ConditionIndex
from services.embed.collections.search import Nearest
from services.embed.collections.storage.image_store import StoredCondition
from services.nn.clip_texts import Text


def described(index: ConditionIndex, num_images: int, last_row: int) -> IndexStatus:
    """Describe an index of a collection of so many images, of which `last_row` is the newest."""
    vectors = index.vectors
    is_ready = vectors.through >= last_row
    return IndexStatus(
        condition=index.condition,
        kind=vectors.kind,
        size=vectors.num_vectors,
        exact=vectors.is_exact,
        state="ready" if is_ready else "building",
        num_waiting=0 if is_ready else max(0, num_images - vectors.num_vectors),
        num_bytes=vectors.num_bytes,
        recall_at_10=vectors.recall_at_10,
        is_pinned=index.is_pinned,
    )


def not_open(stored: StoredCondition | None, num_images: int) -> IndexStatus:
    """Describe the index of a condition before its checkpoint is served: its content is not known."""
    return IndexStatus(
        stored.text if stored is not None else None,
        "flat",
        0,
        exact=True,
        state="building",
        num_waiting=num_images,
        is_pinned=stored is None or stored.is_pinned,
    )


def answered_by(nearest: Nearest, text: Text | None, last_row: int) -> IndexStatus:
    """Describe the index that has answered a search, as far as there is one."""
    index = nearest.index
    if index is None:
        condition = text.text if text is not None else None
        return IndexStatus(condition, "flat", 0, exact=nearest.is_exact, state="building")
    vectors = index.vectors
    return IndexStatus(
        condition=index.condition,
        kind=vectors.kind,
        size=vectors.num_vectors,
        exact=nearest.is_exact,
        state="ready" if vectors.through >= last_row else "building",
        recall_at_10=vectors.recall_at_10,
    )


def kind_of(nearest: Nearest) -> str:
    """Name the way in which a search was answered, for the metrics."""
    if nearest.is_exact:
        return "exact"
    return "shortlist" if nearest.index is None or nearest.index.vectors.is_exact else "approximate"
