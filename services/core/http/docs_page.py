"""The page at `/docs`. Its script and style come from this process, so that it needs no other host."""

from functools import partial
from importlib.util import find_spec
from pathlib import Path

from fastapi import APIRouter
from fastapi.openapi.docs import get_swagger_ui_html
from fastapi.responses import FileResponse, HTMLResponse

# Each path, and the file of the package fastapi-offline that it returns.
_FILES = {
    "/docs/swagger-ui.js": "swagger-ui-bundle.js",
    "/docs/swagger-ui.css": "swagger-ui.css",
    "/docs/favicon.png": "favicon.png",
}
DOCS_PATHS = frozenset({"/docs", *_FILES})


def docs_router(title: str) -> APIRouter:
    """Return the routes of Swagger UI over `/openapi.json`.

    Its addresses are relative, so that they hold behind a proxy that serves the process under a prefix.
    """
    router = APIRouter(include_in_schema=False)
    folder = _static_folder()

    @router.get("/docs")
    async def docs() -> HTMLResponse:
        return get_swagger_ui_html(
            openapi_url="./openapi.json",
            title=title,
            swagger_js_url="./docs/swagger-ui.js",
            swagger_css_url="./docs/swagger-ui.css",
            swagger_favicon_url="./docs/favicon.png",
            swagger_ui_parameters={"validatorUrl": None},  # which is another host
        )

    for path, name in _FILES.items():
        router.add_api_route(path, partial(_file, folder / name), response_class=FileResponse)
    return router


async def _file(path: Path) -> FileResponse:
    return FileResponse(path)


def _static_folder() -> Path:
    # Found but not imported: only its files are used.
    package = find_spec("fastapi_offline")
    assert package is not None and package.origin is not None
    return Path(package.origin).parent / "static"
