"""The settings and the parts of the service that collections use."""

from concurrent.futures import Executor
from dataclasses import dataclass

from services.core.images.inputs import ImageInputs
from services.core.metrics import Metrics
from services.embed.collections.index.vector_index import IndexOptions
from services.embed.collections.reader import FreshPixels, ImageReader
from services.embed.collections.storage.database import Ballast
from services.embed.collections.storage.image_store import CollectionLimits
from services.embed.service import Embedder, EmbedModels
from services.embed.settings import EmbedSettings


@dataclass(frozen=True, eq=False)
class Serving:
    """The settings and the parts of the service that collections use."""

    settings: EmbedSettings
    models: EmbedModels
    inputs: ImageInputs
    embedder: Embedder
    reader: ImageReader
    fresh: FreshPixels
    search_threads: Executor
    metrics: Metrics
    ballast: Ballast

    @property
    def limits(self) -> CollectionLimits:
        own = self.settings
        return CollectionLimits(
            own.collection_max_images,
            own.collection_max_bytes,
            own.collection_max_conditions,
            own.collection_max_metadata_bytes,
        )

    @property
    def index_options(self) -> IndexOptions:
        own = self.settings
        return IndexOptions(own.index_max_exact, own.index_min_recall, own.index_device, own.index_device_bytes)

    def close(self) -> None:
        """End the threads owned by the collections."""
        self.reader.close()
        self.search_threads.shutdown(wait=False)
