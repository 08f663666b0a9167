"""Pages of static files that come from this process, so that they need no other host and no build."""

import base64
import gzip
import hashlib
import re
from collections.abc import Callable, Mapping
from functools import cache, lru_cache, partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import orjson
from fastapi import APIRouter, Request, Response
from fastapi.openapi.docs import get_swagger_ui_html
from fastapi.responses import FileResponse, HTMLResponse

from services.core.errors import NotFound

MEDIA_TYPES = {
    ".html": "text/html",
    ".css": "text/css",
    ".js": "text/javascript",
    ".json": "application/json",
    ".mjs": "text/javascript",
    ".svg": "image/svg+xml",
    ".jpg": "image/jpeg",
}
PAGE_HEADERS = {
    # Nothing from elsewhere, no script or style within the page, and no page of another site around it.
    "content-security-policy": (
        "default-src 'self'; object-src 'none'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),
    "referrer-policy": "no-referrer",
    # Browsers ask each time whether a file has changed, so that an update is complete at once.
    "cache-control": "no-cache",
    "vary": "accept-encoding",
}


def page_files(folder: Path) -> dict[str, Path]:
    """Return the files of a page by their names within its folder; others, such as licences, are left out."""
    found = (path for path in sorted(folder.rglob("*")) if path.suffix in MEDIA_TYPES)
    return {path.relative_to(folder).as_posix(): path for path in found}


def page_router(folder: Path, *, address: str, files: str, headers: Mapping[str, str] = PAGE_HEADERS) -> APIRouter:
    """Return the routes of a page: `index.html` at `address`, its other files below `files`.

    All of these are one route, so that metrics, which are kept by route, stay few.
    """
    router = APIRouter(include_in_schema=False)
    known = page_files(folder)

    def send(request: Request, name: str) -> Response:
        path = known.get(name)
        if path is None:
            raise NotFound(f"The page has no file {name[:100]!r}.")
        is_packed = path.suffix != ".jpg" and "gzip" in request.headers.get("accept-encoding", "")
        body, tag = _read(path, path.stat().st_mtime_ns, is_packed=is_packed)
        about = {**headers, "etag": tag} | ({"content-encoding": "gzip"} if is_packed else {})
        if tag in request.headers.get("if-none-match", ""):
            return Response(status_code=304, headers=about)
        return Response(body, media_type=MEDIA_TYPES[path.suffix], headers=about)

    @router.get(address)
    def send_index(request: Request) -> Response:
        return send(request, "index.html")

    router.add_api_route(f"{files}/{{name:path}}", send, response_class=Response)
    return router


@lru_cache(maxsize=256)
def _read(path: Path, modified_ns: int, *, is_packed: bool) -> tuple[bytes, str]:
    """Return the bytes of a file as they are sent, and their entity tag; `modified_ns` tells versions apart."""
    body = gzip.compress(path.read_bytes(), mtime=0) if is_packed else path.read_bytes()
    return body, f'"{hashlib.sha256(body).hexdigest()[:32]}"'


# Each path, and the file of the package fastapi-offline that it returns.
_FILES = {
    "/docs/swagger-ui.js": "swagger-ui-bundle.js",
    "/docs/swagger-ui.css": "swagger-ui.css",
    "/docs/favicon.png": "favicon.png",
}
DOCS_PATHS = frozenset({"/docs", *_FILES})


def docs_router(title: str, describe: Callable[[], dict[str, Any]]) -> APIRouter:
    """Return the routes of `/openapi.json`, which `describe` returns, and of Swagger UI over it.

    Its addresses are relative, so that they hold behind a proxy that serves the process under a prefix.
    """
    router = APIRouter(include_in_schema=False)
    folder = _static_folder()
    page = bytes(
        get_swagger_ui_html(
            openapi_url="./openapi.json",
            title=title,
            swagger_js_url="./docs/swagger-ui.js",
            swagger_css_url="./docs/swagger-ui.css",
            swagger_favicon_url="./docs/favicon.png",
            swagger_ui_parameters={"validatorUrl": None},  # which is another host
        ).body
    )
    headers = {**PAGE_HEADERS, "content-security-policy": _policy_of(page)}

    document = cache(lambda: orjson.dumps(describe()))

    @router.get("/openapi.json")
    async def openapi() -> Response:
        return Response(document(), media_type="application/json")

    @router.get("/docs")
    async def docs() -> HTMLResponse:
        return HTMLResponse(page, headers=headers)

    for path, name in _FILES.items():
        router.add_api_route(path, partial(_file, folder / name), response_class=FileResponse)
    return router


def _policy_of(page: bytes) -> str:
    """Return the policy of pages, and what Swagger UI needs besides: its one script in the page, styles, and icons."""
    (script,) = re.findall(rb"<script>(.*?)</script>", page, re.DOTALL)
    digest = base64.b64encode(hashlib.sha256(script).digest()).decode()
    allowed = f"script-src 'self' 'sha256-{digest}'; style-src 'self' 'unsafe-inline'; img-src 'self' data:"
    return f"{PAGE_HEADERS['content-security-policy']}; {allowed}"


async def _file(path: Path) -> FileResponse:
    return FileResponse(path)


def _static_folder() -> Path:
    # Found but not imported: only its files are used.
    package = find_spec("fastapi_offline")
    assert package is not None and package.origin is not None
    return Path(package.origin).parent / "static"
