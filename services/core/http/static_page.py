"""A page of static files in a package, which needs no build and no other host."""

from collections.abc import Mapping
from pathlib import Path

from fastapi import APIRouter
from fastapi.responses import FileResponse

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

    def send(name: str) -> FileResponse:
        path = known.get(name)
        if path is None:
            raise NotFound(f"The page has no file {name[:100]!r}.")
        return FileResponse(path, media_type=MEDIA_TYPES[path.suffix], headers=dict(headers))

    router.add_api_route(address, lambda: send("index.html"), response_class=FileResponse)
    router.add_api_route(f"{files}/{{name:path}}", send, response_class=FileResponse)
    return router
