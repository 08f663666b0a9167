"""The collections put together from the settings: those of one process in a folder, or those that replicas share."""

from concurrent.futures import ThreadPoolExecutor
from importlib.util import find_spec

import structlog

from services.core.audit import AuditLog
from services.core.images.inputs import ImageInputs
from services.core.metrics import Metrics
from services.core.settings import MEBIBYTE
from services.core.thread_priority import step_back
from services.embed.collections.collection import OpenCollections
from services.embed.collections.index.gpu import first_gpu
from services.embed.collections.local_collections import LocalCollections
from services.embed.collections.reader import FreshPixels, ImageReader
from services.embed.collections.service import CollectionService
from services.embed.collections.serving import Serving
from services.embed.collections.storage.database import Ballast
from services.embed.service import Embedder, EmbedModels
from services.embed.settings import EmbedSettings

# Pixels of images that are not indexed yet, over all collections.
MAX_FRESH_BYTES = 256 * MEBIBYTE
# Each runs one query at a time.
SEARCH_THREADS = 4
# No collection's name begins with a dot.
BALLAST_NAME = ".ballast"


def create_collections(
    settings: EmbedSettings, models: EmbedModels, inputs: ImageInputs, embedder: Embedder, metrics: Metrics
) -> CollectionService:
    """Create the collections for the folder or the database in the settings, which is opened later.

    Raises ValueError if a library that is needed is missing.
    """
    if settings.index_device == "cuda" and first_gpu() is None:
        structlog.get_logger(__name__).warning(
            "collections are searched on the processor: FAISS finds no GPU, or is the build for processors, which the "
            "extra search-gpu replaces"
        )
    serving = Serving(
        settings,
        models,
        inputs,
        embedder,
        ImageReader(
            inputs.limits, ThreadPoolExecutor(settings.num_decode_threads, "decode-stored", initializer=step_back)
        ),
        FreshPixels(MAX_FRESH_BYTES),
        ThreadPoolExecutor(SEARCH_THREADS, "search"),
        metrics,
        Ballast(settings.collections_dir / BALLAST_NAME),
    )
    collections = LocalCollections(serving) if settings.collections_url is None else _shared(serving)
    return CollectionService(collections, serving, AuditLog(settings.audit_log))


def _shared(serving: Serving) -> OpenCollections:
    if find_spec("psycopg_pool") is None:
        raise ValueError("FOVEA_EMBED_COLLECTIONS_URL needs fovea-serving[cluster]")
    from services.embed.collections.cluster.collections import SharedCollections

    return SharedCollections(serving)
