"""open_clip behind FastAPI, in the simplest way.

python -m benchmarks.peers.fastapi_server MODEL_DIR PORT
"""

import sys
from pathlib import Path
from typing import Any

import uvicorn
from fastapi import FastAPI

from benchmarks.peers.plain_clip import PlainClip, answer_of, files_of


def create_app(clip: PlainClip) -> FastAPI:
    """Compute a request by itself, on one of FastAPI's threads for blocking functions."""
    app = FastAPI()

    @app.get("/health")
    def health() -> None:
        return None

    @app.post("/v1/embeddings")
    def embeddings(request: dict[str, Any]) -> dict[str, Any]:
        return answer_of(clip.embed(clip.pixels(files_of(request))))

    return app


def main() -> None:
    directory, port = sys.argv[1:]
    uvicorn.run(create_app(PlainClip(Path(directory))), host="127.0.0.1", port=int(port), log_level="warning")


if __name__ == "__main__":
    main()
