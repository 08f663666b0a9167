"""The embed service in this process, over a store with one model, asked as clients ask it."""

import base64
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from PIL import Image
from starlette.testclient import TestClient
from typer.testing import CliRunner

from services.cli.main import app
from services.embed.app import create_embed
from services.embed.settings import EmbedSettings
from tests.core.image_files import encode
from tests.embed.tiny import wait_until_ready


@contextmanager
def embed_client(folder: Path, store_url: str, model: str) -> Iterator[TestClient]:
    """Serve a model of a store until the block ends, with the service's own files in `folder`."""
    settings = EmbedSettings(
        store_url=store_url,
        checkpoint_cache_dir=folder / "checkpoints",
        collections_dir=folder / "collections",
        models=(model,),
        device="cpu",
        num_threads=1,
    )
    with TestClient(create_embed(settings), raise_server_exceptions=False, base_url="http://localhost") as client:
        wait_until_ready(lambda: client.get("/readyz").status_code == 200)
        yield client


@contextmanager
def imported_client(served: Path, source: Path, name: str, *options: str) -> Iterator[TestClient]:
    """Import a published folder as a user does, and serve it until the block ends; `served` takes all files."""
    store_url = (served / "store").as_uri()
    environment = {"FOVEA_STORE_URL": store_url, "HOME": str(served)}
    imported = CliRunner(env=environment).invoke(app, ["store", "import", str(source), "--name", name, *options])
    assert imported.exit_code == 0, imported.output
    with embed_client(served, store_url, name) as client:
        yield client


def as_base64(image: Image.Image) -> str:
    return base64.b64encode(encode(image, "PNG")).decode()
