"""Calls under a limit of memory: `python -m tests.core.starved_calls CALL` prints what came of one, in one word."""

import io
import resource
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path

from PIL import Image

from services.core.errors import FoveaError
from services.core.http.bodies import parse_json
from services.core.images.decoding import decode_image
from services.core.images.references import ImageLimits

MORE_BYTES = 10 * 1024 * 1024
FORMATS = ("PNG", "JPEG", "WEBP", "GIF")


def _image(file_format: str) -> Callable[[], object]:
    file = io.BytesIO()
    Image.new("RGB", (4000, 4000), "red").save(file, file_format)
    return lambda: decode_image(file.getvalue(), ImageLimits())


def _strings() -> Callable[[], object]:
    body = b"[" + b",".join([b'"abc"'] * 1_000_000) + b"]"
    return lambda: parse_json(body)


def _objects() -> Callable[[], object]:
    body = b"[" + b",".join([b'{"a":1}'] * 500_000) + b"]"
    return lambda: parse_json(body)


CALLS: dict[str, Callable[[], Callable[[], object]]] = {
    **{file_format: partial(_image, file_format) for file_format in FORMATS},
    "strings": _strings,
    "objects": _objects,
}

if __name__ == "__main__":
    call = CALLS[sys.argv[1]]()
    in_use = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (in_use + MORE_BYTES, resource.RLIM_INFINITY))
    try:
        call()
    except (FoveaError, MemoryError) as error:
        outcome = type(error).__name__
    else:
        outcome = "done"
    resource.setrlimit(resource.RLIMIT_AS, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    print(outcome)
