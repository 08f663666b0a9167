"""How the parts of collections are put together."""

from concurrent.futures import ThreadPoolExecutor

from services.core.audit import AuditLog
from services.core.images.inputs import ImageInputs
from services.core.metrics import Metrics
from services.core.serving.served_checkpoint import ServedCheckpoint
from services.core.settings import MEBIBYTE
from services.core.thread_priority import step_back
from services.embed.collections.collection import CollectionOptions, Serving
from services.embed.collections.index.vector_index import IndexOptions, VectorIndex
from services.embed.collections.library import Library
from services.embed.collections.open_collections import OpenCollections
from services.embed.collections.reader import FreshPixels, ImageReader
from services.embed.collections.search import SearchOptions
from services.embed.collections.storage.ballast import Ballast
from services.embed.collections.storage.image_store import CollectionLimits
from services.embed.engine import EmbedEngine
from services.embed.service import Embedder
from services.embed.settings import EmbedSettings

# Pixels that wait for the index, over all collections.
MAX_FRESH_BYTES = 256 * MEBIBYTE
# No collection's name begins with a dot.
BALLAST_NAME = ".ballast"


def create_library(
    settings: EmbedSettings,
    checkpoint: ServedCheckpoint[EmbedEngine],
    inputs: ImageInputs,
    embedder: Embedder,
    metrics: Metrics,
) -> Library:
    """The library over the folder that the settings name, which is opened later.

    Raises ValueError where indexes shall be on a GPU and can't.
    """
    index = IndexOptions(
        max_exact=settings.index_max_exact, min_recall=settings.index_min_recall, device=settings.index_device
    )
    VectorIndex(1, index)  # refuses a GPU that is not there, before anything is served
    options = CollectionOptions(
        limits=CollectionLimits(
            settings.collection_max_images,
            settings.collection_max_bytes,
            settings.collection_max_conditions,
            settings.collection_max_metadata_bytes,
        ),
        index=index,
        search=SearchOptions(settings.shortlist_size, settings.share_index_cosine),
        max_state_bytes=settings.collection_state_bytes,
        poll_s=settings.store_poll_s,
        save_every_s=settings.index_save_every_s,
    )
    serving = Serving(
        checkpoint,
        inputs,
        embedder,
        ImageReader(
            inputs.limits, ThreadPoolExecutor(settings.num_decode_threads, "decode-stored", initializer=step_back)
        ),
        FreshPixels(MAX_FRESH_BYTES),
        ThreadPoolExecutor(settings.search_threads, "search"),
        metrics,
        Ballast(settings.collections_dir / BALLAST_NAME),
    )
    collections = OpenCollections(settings.collections_dir, serving, options, max_collections=settings.max_collections)
    return Library(collections, serving, AuditLog(settings.audit_log))
