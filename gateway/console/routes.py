"""Routes of the console, a page that uses the gateway's public API alone and so needs no key to be read."""

from pathlib import Path

from fastapi import APIRouter
from fastapi.responses import RedirectResponse

from services.core.http.pages import PAGE_HEADERS, page_files, page_router

PAGE = Path(__file__).with_name("page")
ADDRESS = "/console"
# Images that a visitor chose, and those of collections that were fetched with a key, are shown from memory.
POLICY = f"{PAGE_HEADERS['content-security-policy']}; img-src 'self' blob:; require-trusted-types-for 'script'"


def console_paths() -> frozenset[str]:
    """Return the paths of the console and of each of its files."""
    return frozenset({ADDRESS, f"{ADDRESS}/", *(f"{ADDRESS}/{name}" for name in page_files(PAGE))})


def console_router() -> APIRouter:
    """Return the routes of the console. Its addresses are relative, as those of `/docs` are."""
    router = APIRouter()

    @router.get(f"{ADDRESS}/", include_in_schema=False)
    async def without_slash() -> RedirectResponse:
        return RedirectResponse("../console", status_code=308)

    headers = {**PAGE_HEADERS, "content-security-policy": POLICY}
    router.include_router(page_router(PAGE, address=ADDRESS, files=ADDRESS, headers=headers))
    return router
