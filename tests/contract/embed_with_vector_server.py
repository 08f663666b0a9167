"""`python -m`: the embed service as it is, with the tests' own vector database in place of Milvus."""

import sys

from services.core.serving.server import run
from services.core.settings import read_settings
from services.embed.app import create_embed
from services.embed.collections import composition
from services.embed.collections.cluster.vectors import VectorDatabase
from services.embed.collections.index.vector_index import IndexOptions
from services.embed.settings import EmbedSettings
from tests.embed.collections.vector_server import RemoteVectors


def connect(url: str, options: IndexOptions, identity: str) -> VectorDatabase:
    return RemoteVectors(url)


if __name__ == "__main__":
    composition.connect_vectors = connect
    sys.exit(run(create_embed, read_settings(EmbedSettings)))
