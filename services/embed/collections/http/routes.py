"""The routes of collections: images stored with metadata, and searched under a condition."""

import asyncio
from collections.abc import Callable
from typing import Annotated, Any

from fastapi import APIRouter, Depends, Path, Query, Request, Response
from fastapi.routing import APIRoute
from pydantic import BaseModel
from starlette.routing import Match
from starlette.types import Scope

from services.core.cache.result_cache import content_digest
from services.core.exchange import context_of
from services.core.http.bodies import MAX_INLINE_BYTES, check_query, request_schema
from services.core.images.headers import media_type_of
from services.embed.call import CallLimits
from services.embed.collections.answers import Collection, CollectionList, CreateRequest, SearchResults
from services.embed.collections.http.calls import PATCH_FORMS, read_changes, read_creation, read_images, read_search
from services.embed.collections.http.schemas import (
    AddedImages,
    AddRequest,
    ImageEntry,
    ImageList,
    SearchRequest,
    image_entry,
)
from services.embed.collections.service import CollectionService
from services.embed.collections.storage.catalog import check_name

MAX_PAGE = 1000
# Larger responses are rendered in a thread, so that they do not block the event loop.
MAX_INLINE_ENTRIES = 128
METHODS = ["GET", "PUT", "POST", "PATCH", "DELETE"]
IMAGE_TYPES = ("image/jpeg", "image/png", "image/webp", "image/gif", "image/bmp")

FILE: dict[str, Any] = {"type": "string", "format": "binary"}

IMAGES_BODY: dict[str, Any] = {
    "required": True,
    "content": {
        "image/*": {"schema": FILE},
        "multipart/form-data": {
            "schema": {
                "type": "object",
                "required": ["file"],
                "properties": {
                    "file": {
                        "type": "array",
                        "minItems": 1,
                        "items": FILE,
                        "description": "One or more images, each in a part with this name; the file name is the "
                        "image's id.",
                    },
                    "metadata": {
                        "type": "string",
                        "contentMediaType": "application/json",
                        "description": "A JSON object with the metadata of each file, by file name.",
                    },
                },
            }
        },
        "application/json": {"schema": request_schema(AddRequest)},
    },
}

Name = Annotated[str, Path(description="Name of the collection.")]
ImageId = Annotated[str, Path(description="The image's id. Slashes need no encoding.")]
Fill = Annotated[
    bool,
    Query(description="Whether this fills a `copy`, which takes no other changes (503); other collections refuse it."),
]


def collections_router(collections: CollectionService, limits: CallLimits) -> APIRouter:
    """Create the routes of collections."""
    router = APIRouter(tags=["collections"], dependencies=[Depends(check_query)])
    # before the routes that such a path would be taken for
    router.routes.append(
        _SlashInName("/collections/{name:path}", _refuse_slash, methods=METHODS, include_in_schema=False)
    )
    _add_collection_routes(router, collections, limits)
    _add_image_routes(router, collections, limits)
    _add_routes_of_one_image(router, collections)
    _add_search_route(router, collections, limits)
    return router


class _SlashInName(APIRoute):
    """A route of the paths in which a collection's name has an encoded slash."""

    def matches(self, scope: Scope) -> tuple[Match, Scope]:
        name = scope.get("raw_path", b"").partition(b"/collections/")[2].partition(b"/")[0]
        return super().matches(scope) if b"%2f" in name.lower() else (Match.NONE, {})


async def _refuse_slash(name: Name) -> None:
    check_name(name)


def _add_collection_routes(router: APIRouter, collections: CollectionService, limits: CallLimits) -> None:
    @router.put(
        "/collections/{name}",
        responses={
            200: {"model": Collection, "description": "The collection existed; what the body names was changed"},
            201: {"model": Collection, "description": "The collection was created"},
        },
        openapi_extra={"requestBody": {"content": {"application/json": {"schema": request_schema(CreateRequest)}}}},
    )
    async def create(request: Request, name: Name) -> Response:
        """Create a collection, or confirm that it exists, index more conditions and change what it takes."""
        creation = await read_creation(request, limits)
        status, is_new = await collections.create(name, creation, context_of(request.scope))
        return Response(status.model_dump_json(), status_code=201 if is_new else 200, media_type="application/json")

    @router.get("/collections")
    async def list_collections() -> CollectionList:
        """List all collections of the key's tenant, by name."""
        return await collections.list()

    @router.get("/collections/{name}")
    async def describe(name: Name) -> Collection:
        """Return the collection's size and the progress of its indexes."""
        return await collections.describe(name)

    @router.delete("/collections/{name}", status_code=204)
    async def delete(name: Name) -> None:
        """Remove a collection with all its images."""
        await collections.delete(name)


def _add_image_routes(router: APIRouter, collections: CollectionService, limits: CallLimits) -> None:
    @router.post(
        "/collections/{name}/images",
        status_code=201,
        responses={201: {"model": AddedImages, "description": "All of the images are stored durably"}},
        openapi_extra={"requestBody": IMAGES_BODY},
    )
    async def add(
        request: Request,
        name: Name,
        id: Annotated[str | None, Query(description="Id of an image sent as the body.")] = None,
        *,
        wait: Annotated[
            bool, Query(description="Respond once the images are indexed, or shortly before the deadline.")
        ] = False,
        fill: Fill = False,
    ) -> AddedImages:
        """Add all of the images or none. Images that already exist with the same content are left unchanged."""
        images = await read_images(request, id, limits)
        added = await collections.add(name, images, context_of(request.scope), wait=wait, fill=fill)
        return AddedImages(added=added.added, unchanged=added.unchanged, ids=added.ids)

    @router.get("/collections/{name}/images", responses={200: {"model": ImageList}})
    async def list_images(
        name: Name,
        after: Annotated[str | None, Query(description="List the images after this id.")] = None,
        limit: Annotated[int, Query(ge=1, le=MAX_PAGE)] = 100,
    ) -> Response:
        """List the images with their metadata, one page at a time."""
        found = await collections.images(name, after=after, limit=limit + 1)
        images, has_more = found[:limit], len(found) > limit
        return await _json(
            len(images),
            lambda: ImageList.model_construct(data=[image_entry(image) for image in images], has_more=has_more),
        )


def _add_routes_of_one_image(router: APIRouter, collections: CollectionService) -> None:
    @router.get(
        "/collections/{name}/images/{id:path}",
        response_class=Response,
        responses={
            200: {
                "content": {kind: {"schema": {"type": "string", "format": "binary"}} for kind in IMAGE_TYPES},
                "description": "The image as it was uploaded",
                "headers": {"ETag": {"schema": {"type": "string"}, "description": "Their sha256."}},
            },
            304: {"description": "The image matches `If-None-Match`"},
        },
    )
    async def image(request: Request, name: Name, id: ImageId) -> Response:
        """Return the image as it was uploaded."""
        data = await collections.image(name, id)
        is_large = len(data) > MAX_INLINE_BYTES
        etag = f'"{await asyncio.to_thread(content_digest, data) if is_large else content_digest(data)}"'
        headers = {"ETag": etag, "X-Content-Type-Options": "nosniff"}
        if _names(request.headers.get("if-none-match", ""), etag):
            return Response(status_code=304, headers=headers)
        return Response(data, headers=headers, media_type=media_type_of(data))

    @router.patch(
        "/collections/{name}/images/{id:path}",
        responses={200: {"model": ImageEntry, "description": "The image as it is now, stored durably"}},
        openapi_extra={"requestBody": {"required": True, "content": PATCH_FORMS}},
    )
    async def patch_image(request: Request, name: Name, id: ImageId) -> Response:
        """Change an image's metadata. Every search that begins after the response finds the image by it."""
        changed = await collections.patch_image(name, id, await read_changes(request))
        return await _json(1, lambda: image_entry(changed))

    @router.delete("/collections/{name}/images/{id:path}", status_code=204)
    async def delete_image(name: Name, id: ImageId, *, fill: Fill = False) -> None:
        """Remove an image. No search that begins after the response finds it."""
        await collections.delete_image(name, id, fill=fill)


def _add_search_route(router: APIRouter, collections: CollectionService, limits: CallLimits) -> None:
    @router.post(
        "/collections/{name}/search",
        responses={200: {"model": SearchResults}},
        openapi_extra={"requestBody": _search_body(limits)},
    )
    async def search(
        request: Request,
        name: Name,
        condition: Annotated[list[str] | None, Query(description="Condition of the search; at most one.")] = None,
        k: Annotated[
            int | None,
            Query(
                ge=1,
                json_schema_extra={"maximum": limits.max_k},
                description="Maximum number of results; 10 by default.",
            ),
        ] = None,
        filter: Annotated[str | None, Query(description="Filter on metadata, as a JSON object.")] = None,
        model: Annotated[str | None, Query(description="Refused if it is not the collection's.")] = None,
    ) -> Response:
        """Find the images nearest to an image or a text under a condition.

        A search under a new condition is answered at once; the condition is then indexed.
        """
        in_url = {"condition": condition or [], "k": k, "filter": filter, "model": model}
        query = await read_search(request, name, in_url, limits)
        context = context_of(request.scope)
        answer = await collections.search(name, query, context)
        context.model = answer.model
        return await _json(len(answer.results), lambda: answer)


async def _json(num_entries: int, make: Callable[[], BaseModel]) -> Response:
    def render() -> str:
        return make().model_dump_json()

    body = render() if num_entries <= MAX_INLINE_ENTRIES else await asyncio.to_thread(render)
    return Response(body, media_type="application/json")


def _names(if_none_match: str, etag: str) -> bool:
    """RFC 9110, 13.1.2: whether the header lists this tag, weak or strong, or all."""
    listed = {tag.strip().removeprefix("W/") for tag in if_none_match.split(",")}
    return "*" in listed or etag in listed


def _search_body(limits: CallLimits) -> dict[str, Any]:
    options = request_schema(SearchRequest)
    options["properties"]["k"]["anyOf"][0]["maximum"] = limits.max_k
    properties = {name: options["properties"][name] for name in ("condition", "k", "model")}
    return {
        "required": True,
        "content": {
            "image/*": {"schema": FILE},
            "multipart/form-data": {
                "schema": {
                    "type": "object",
                    "required": ["file"],
                    "properties": {
                        "file": {**FILE, "description": "Query image."},
                        **properties,
                        "filter": {
                            "type": "string",
                            "contentMediaType": "application/json",
                            "description": "Filter on metadata, as a JSON object.",
                        },
                    },
                }
            },
            "application/json": {"schema": options},
        },
    }
