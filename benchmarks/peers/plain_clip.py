"""open_clip as its own documentation uses it: the model of the plain servers, and the reference for all."""

import base64
from collections.abc import Sequence
from io import BytesIO
from pathlib import Path
from typing import Any

import torch
from PIL import Image
from torch import Tensor

from services.nn.clip_model import open_clip


class PlainClip:
    """The model of an open_clip directory. Shapes: B images, E embedding width."""

    def __init__(self, directory: Path) -> None:
        self._model, _, self._transform = open_clip().create_model_and_transforms(f"local-dir:{directory}")
        self._model.eval()

    def pixels(self, files: Sequence[bytes]) -> Tensor:
        """Decode and transform images to (B, 3, height, width)."""
        return torch.stack([self._transform(Image.open(BytesIO(file))) for file in files])

    def embed(self, pixels: Tensor) -> Tensor:
        """Embed (B, 3, height, width) → (B, E), L2-normalised."""
        with torch.inference_mode():
            rows: Tensor = self._model.encode_image(pixels, normalize=True)
        return rows


def files_of(request: dict[str, Any]) -> list[bytes]:
    """Return the images of a request `{"input": [{"image": "data:…;base64,…"}, …]}`."""
    return [base64.b64decode(one["image"].partition(",")[2]) for one in request["input"]]


def answer_of(rows: Tensor) -> dict[str, Any]:
    """Return OpenAI's answer for (B, E) float32, with base64 of the little-endian numbers."""
    encoded = [base64.b64encode(row.astype("<f4").tobytes()).decode() for row in rows.numpy()]
    return {"data": [{"index": index, "embedding": embedding} for index, embedding in enumerate(encoded)]}
