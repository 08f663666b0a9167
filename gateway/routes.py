"""The routes of every service and of a review: the whole public surface in one table.

A path answers with and without the prefix `/v1`; only those of Cohere's version 2 have no other form. The gateway
routes by path and method, and by model where a service has pools. It does not parse bodies, so the service tells
dialects apart that differ only in their bodies (TEI's `/embed` and `/rerank`).
"""

import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Literal

from gateway.settings import Backend, Level, Scope, Service
from services.core.errors import FoveaError, MethodNotAllowed
from services.core.http.error_responses import anthropic_error_body, rerank_error_body
from services.core.http.health import PROBE_PATHS
from services.core.http.pages import DOCS_PATHS

# Answered by the gateway itself without a key; everything else needs one once keys are configured.
PUBLIC_PATHS = PROBE_PATHS | DOCS_PATHS | {"/openapi.json"}
# Not probes, whose refusal would have the gateway restarted, nor the console, whose page loads dozens of files.
COUNTED_PATHS = PUBLIC_PATHS - PROBE_PATHS
# The gateway's own paths that need a particular permission.
OWN_SCOPES: dict[str, Scope] = {"/metrics": "metrics"}
# A search is a POST, since its query may be an image, but only reads.
_SEARCH = re.compile(r"(/v1)?/collections/[^/]+/search")

# A JSON body's outermost object, a part of a multipart form, a parameter of the URL.
ModelPlace = Literal["json", "form", "query"]
IN_JSON: tuple[ModelPlace, ...] = ("json",)
ANYWHERE: tuple[ModelPlace, ...] = ("json", "form", "query")


@dataclass(frozen=True)
class Route:
    """A route: requests of `methods` on `path` go to `service`; `/**` at the end stands for all paths below.

    `error_body` shapes the gateway's own errors on this route; None is OpenAI's envelope. `changes` says that requests
    other than GETs and searches change stored data of the service. `has_canary` is False where the answer is about data
    that the service keeps, which a version on trial does not have. `model_in` lists where a request may name a model.
    `prefix_in` lists the members of a JSON body that may hold what a prompt begins with; the first that does counts.
    `is_merged` says that a list of what is served is that of all pools together, where there are any. `is_public` says
    that no key is needed: browsers send none for the files of a page. `shared_by` are services that answer the route as
    well; the model decides which does.
    """

    service: Backend
    path: str
    methods: tuple[str, ...]
    error_body: Callable[[FoveaError], dict[str, Any]] | None = None
    changes: bool = False
    has_canary: bool = True
    model_in: tuple[ModelPlace, ...] = ()
    prefix_in: tuple[str, ...] = ()
    is_merged: bool = False
    is_public: bool = False
    shared_by: tuple[Service, ...] = ()

    @property
    def services(self) -> tuple[Backend, ...]:
        """All services that answer the route."""
        return (self.service, *self.shared_by)

    def of(self, service: Backend) -> "Route":
        """Return a shared route as the route of one of its services."""
        return replace(self, service=service, shared_by=())

    def uses_tokens(self, path: str) -> bool:
        """Whether a model reads texts for a request, and so its tokens count."""
        return bool(self.model_in) or _SEARCH.fullmatch(path) is not None

    def level(self, method: str, path: str) -> Level:
        """Return the level that a key needs for this. A method that the route does not take needs only `read`, so that
        its refusal is the same for every key of the service."""
        if not self.changes or method == "GET" or method not in self.methods:
            return "read"
        return "read" if method == "POST" and _SEARCH.fullmatch(path) else "write"


ROUTES = (
    Route("predict", "/tasks", ("GET",), is_merged=True),
    Route("predict", "/predict", ("POST",), model_in=IN_JSON),
    Route("predict", "/decisions", ("POST",), model_in=IN_JSON, prefix_in=("input",), shared_by=("generate", "score")),
    Route("generate", "/generate", ("POST",), model_in=IN_JSON, prefix_in=("documents",)),
    Route("generate", "/chat/completions", ("POST",), model_in=IN_JSON, prefix_in=("documents", "messages")),
    Route("generate", "/completions", ("POST",), model_in=IN_JSON, prefix_in=("prompt",)),
    Route("generate", "/tokenize", ("POST",), model_in=IN_JSON),
    Route("generate", "/responses", ("POST",), model_in=IN_JSON, prefix_in=("input",)),
    Route("generate", "/messages", ("POST",), anthropic_error_body, model_in=IN_JSON, prefix_in=("messages",)),
    Route("generate", "/messages/count_tokens", ("POST",), anthropic_error_body, model_in=IN_JSON),
    Route("generate", "/v2/chat", ("POST",), model_in=IN_JSON, prefix_in=("documents", "messages")),
    Route("generate", "/rerank", ("POST",), rerank_error_body, model_in=IN_JSON, prefix_in=("documents", "texts")),
    Route("generate", "/v2/rerank", ("POST",), rerank_error_body, model_in=IN_JSON, prefix_in=("documents",)),
    Route("embed", "/embed", ("GET", "POST"), model_in=ANYWHERE),
    Route("embed", "/v2/embed", ("POST",), model_in=IN_JSON),
    Route("embed", "/info", ("GET",)),
    Route("embed", "/embeddings", ("POST",), model_in=IN_JSON),
    Route("embed", "/collections", ("GET",), has_canary=False),
    # Only the service knows a collection's own paths and methods.
    Route("embed", "/collections/**", ("GET", "PUT", "POST", "PATCH", "DELETE"), changes=True, has_canary=False),
    Route("score", "/score", ("POST",), model_in=ANYWHERE),
    Route("score", "/hard-negatives", ("POST",)),
)
# Only where the gateway has a review. Its page's files tell nothing of the pairs.
REVIEW_ROUTES = (
    Route("review", "/review/page/**", ("GET",), has_canary=False, is_public=True),
    # Whoever may look needs it, where the review has a token.
    Route("review", "/review/session", ("POST",), has_canary=False),
    Route("review", "/review/**", ("GET", "POST"), changes=True, has_canary=False),
)


class WrongMethod(MethodNotAllowed):
    """A 405 with the `Allow` header that RFC 9110 asks for."""

    def __init__(self, path: str, method: str, allowed: tuple[str, ...]) -> None:
        super().__init__(f"{path} does not allow {method}, only {' and '.join(allowed)}.")
        self.allowed = allowed

    def headers(self) -> dict[str, str]:
        return {**super().headers(), "allow": ", ".join(self.allowed)}


class RouteTable:
    """Looks up routes by path: a dictionary for whole paths, then the few prefixes.

    `public_paths` are the gateway's own that need no key.
    """

    def __init__(self, routes: tuple[Route, ...] = ROUTES, public_paths: frozenset[str] = PUBLIC_PATHS) -> None:
        self.public_paths = public_paths
        self._exact = {route.path: route for route in routes if not route.path.endswith("/**")}
        self._below = [(route.path.removesuffix("**"), route) for route in routes if route.path.endswith("/**")]

    def find(self, path: str) -> Route | None:
        """Return the route of a decoded path, whatever the method; None where no service has one."""
        bare = path[3:] if path.startswith("/v1/") else path
        route = self._exact.get(bare)
        if route is None:
            route = next((route for prefix, route in self._below if bare.startswith(prefix)), None)
        return route


def check_method(route: Route, path: str, method: str) -> None:
    """Raises WrongMethod where the route does not take this method."""
    if method not in route.methods:
        raise WrongMethod(path, method, route.methods)
