"""A short load of every kind, as clients send it through the gateway."""

import io
from collections.abc import Callable, Mapping
from typing import Any

import requests
from PIL import Image

QUESTION: dict[str, Any] = {
    "query": "What is the pet of Belan Ashford?",
    "documents": ["Corin Blackwood owns the golden parrot.", "Belan Ashford owns the quiet otter."],
    "max_tokens": 4,
}
PAIR = {"premise": "A child in a green shirt is sleeping.", "hypothesis": "The child is wearing something white."}


def picture(shade: int = 0) -> bytes:
    """A PNG of one color; other shades, up to 2^24, are other pictures."""
    buffer = io.BytesIO()
    Image.new("RGB", (64, 64), (shade & 255, shade >> 8 & 255, shade >> 16 & 255)).save(buffer, "PNG")
    return buffer.getvalue()


class Client:
    """Sends a key along where one is given."""

    def __init__(self, url: str, key: str | None = None) -> None:
        self._url = url
        self._session = requests.Session()
        if key:
            self._session.headers["Authorization"] = f"Bearer {key}"

    def post(self, path: str, timeout_s: float | None = None, **body: Any) -> requests.Response:
        headers = {} if timeout_s is None else {"X-Request-Timeout": str(timeout_s)}
        return self._session.post(f"{self._url}{path}", headers=headers, timeout=120, **body)

    def put(self, path: str, **body: Any) -> requests.Response:
        return self._session.put(f"{self._url}{path}", timeout=120, **body)

    def close(self) -> None:
        self._session.close()


def ask_predict(client: Client) -> None:
    client.post("/predict", json={"task": "inferences", "inputs": [PAIR]}).raise_for_status()


def ask_generate(client: Client) -> None:
    for stream in (False, True):
        client.post("/generate", json={**QUESTION, "stream": stream}).raise_for_status()


def ask_embed(client: Client) -> None:
    client.post("/v1/embeddings", json={"input": ["a red circle", "a blue star"]}).raise_for_status()
    client.put("/collections/load", json={"conditions": ["color"]}).raise_for_status()
    client.post("/collections/load/images?wait=true", files=[("file", ("one.png", picture()))]).raise_for_status()
    client.post("/collections/load/search", json={"text": "a red circle", "condition": "color"}).raise_for_status()


def ask_score(client: Client) -> None:
    body = {"captions": ["a red circle", "a blue star"]}
    client.post("/score", files=[("file", ("one.png", picture()))], data=body).raise_for_status()


ASK: Mapping[str, Callable[[Client], None]] = {
    "predict": ask_predict,
    "generate": ask_generate,
    "embed": ask_embed,
    "score": ask_score,
}
