"""How the parts of collections are put together."""

from concurrent.futures import ThreadPoolExecutor

from services.core.checkpoints import ServedCheckpoint
from services.embed.collections.collection import CollectionOptions, Serving
from services.embed.collections.image_store import CollectionLimits
from services.embed.collections.index import IndexOptions
from services.embed.collections.library import Library
from services.embed.collections.reader import ImageReader
from services.embed.collections.search import SearchOptions
from services.embed.embedder import Embedder
from services.embed.engine import EmbedEngine
from services.embed.image_inputs import ImageInputs
from services.embed.settings import EmbedSettings


def create_library(
    settings: EmbedSettings, checkpoint: ServedCheckpoint[EmbedEngine], inputs: ImageInputs, embedder: Embedder
) -> Library:
    """The library over the folder that the settings name, which is opened later."""
    options = CollectionOptions(
        limits=CollectionLimits(
            settings.collection_max_images,
            settings.collection_max_bytes,
            settings.collection_max_conditions,
            settings.collection_max_metadata_bytes,
        ),
        index=IndexOptions(
            max_exact=settings.index_max_exact, min_recall=settings.index_min_recall, device=settings.index_device
        ),
        search=SearchOptions(settings.shortlist_size, settings.share_index_cosine),
        max_state_bytes=settings.collection_state_bytes,
        poll_s=settings.store_poll_s,
        save_every_s=settings.index_save_every_s,
    )
    serving = Serving(
        checkpoint,
        inputs,
        embedder,
        ImageReader(inputs.limits, ThreadPoolExecutor(settings.num_decode_threads, "decode-stored")),
        ThreadPoolExecutor(settings.search_threads, "search"),
    )
    return Library(settings.collections_dir, serving, options, max_collections=settings.max_collections)
