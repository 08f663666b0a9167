"""`python -m services.embed`: serve embeddings with settings from the environment."""

import sys

from services.core.serving.server import run
from services.core.settings import read_settings
from services.embed.app import create_embed
from services.embed.settings import EmbedSettings

if __name__ == "__main__":
    sys.exit(run(create_embed, read_settings(EmbedSettings)))
