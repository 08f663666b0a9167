"""The hot path in plain ASGI: a request for a service is admitted, read, sent on and answered without parsing."""

import time
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager

import aiohttp
from starlette.types import ASGIApp, Receive, Scope, Send

from gateway.access import Access, Visitor
from gateway.client_body import BodyMemory, ClientBody
from gateway.headers import request_headers, response_headers
from gateway.rate_limits import Allowance
from gateway.routes import OWN_SCOPES, PUBLIC_PATHS, Route, RouteTable, check_method
from gateway.settings import Destination, Service
from gateway.upstream import Upstream, UpstreamRequest
from services.core.errors import InvalidRequest, Misdirected, Overloaded, Unauthenticated
from services.core.exchange import context_of, header_of

CANARY_HEADER = b"x-fovea-canary"


class Proxy:
    """Innermost middleware: sends requests in the route table to their service, others to the gateway's own routes.

    Only the public paths are reached without passing `access`.
    """

    def __init__(
        self,
        app: ASGIApp,
        access: Access,
        upstreams: Mapping[Destination, Upstream],
        canaries: Mapping[Service, Upstream],
        body_memory: BodyMemory,
    ) -> None:
        self.app = app
        self.access = access
        self.upstreams = upstreams
        self.canaries = canaries
        self.body_memory = body_memory
        self.routes = RouteTable()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["path"] in PUBLIC_PATHS:
            await self.app(scope, receive, send)
            return
        path: str = scope["path"]
        try:
            visitor = self.access.authenticate(scope)
        except Unauthenticated:
            await self.access.count_failure(scope)
            raise
        route = self.routes.find(path)
        if route is not None:
            scope["route"] = route
        # Before everything that may refuse the request: a refusal also costs something.
        allowance = await self.access.count(visitor)
        if route is None:
            if path in OWN_SCOPES:
                self.access.authorize(visitor, OWN_SCOPES[path])
            await self.app(scope, receive, send)
            return
        self.access.authorize(visitor, f"{route.service}:{route.level(scope['method'], path)}")
        check_method(route, path, scope["method"])
        upstream = self._upstream(route, scope)
        # From here on the request is demand for the service, whatever becomes of it.
        with upstream.recent.counted():
            await self._forward(upstream, visitor, allowance, scope, receive, send)

    def _upstream(self, route: Route, scope: Scope) -> Upstream:
        """Return the upstream of the service, or its canary if the request asks for it. Raises InvalidRequest.

        Neither replaces the other, so that no client gets results of two models without having asked for them.
        """
        asked = (header_of(scope, CANARY_HEADER) or "false").strip().lower()
        if asked not in ("true", "false"):
            raise InvalidRequest("X-Fovea-Canary must be `true` or `false`.", param="X-Fovea-Canary")
        if asked == "false":
            is_of_collections = route.path.startswith("/collections") and "collections" in self.upstreams
            return self.upstreams["collections" if is_of_collections else route.service]
        if not route.has_canary or route.service not in self.canaries:
            what = f"The {route.service} service has" if route.has_canary else "Collections have"
            raise InvalidRequest(f"{what} no canary.", code="no_canary", param="X-Fovea-Canary")
        return self.canaries[route.service]

    async def _forward(
        self,
        upstream: Upstream,
        visitor: Visitor,
        allowance: Allowance | None,
        scope: Scope,
        receive: Receive,
        send: Send,
    ) -> None:
        service: Service = scope["route"].service
        # Before the body is read: to refuse it then would cost as much as to serve it.
        context = context_of(scope)
        upstream.gate.check(visitor.identity, context.deadline)
        body = ClientBody(self.body_memory, visitor.identity)
        try:
            request = UpstreamRequest(
                method=scope["method"],
                target=_target(scope),
                headers=request_headers(scope, visitor.caller),
                body=await body.read(scope, receive),
                deadline=context.deadline,
                client=visitor.identity,
            )
            sent_at = time.perf_counter()
            async with self._send(service, upstream, request) as response:
                # The body is not sent again, and need not be kept while the answer, perhaps a long stream, is relayed.
                request.body = None
                body.release()
                # Sent again by the middleware, which counts and logs it, too.
                context.model = response.headers.get("X-Fovea-Model")
                headers = response_headers(response.raw_headers, response.status, context.timing)
                if not visitor.may(f"{service}:admin"):
                    # The durations of stages reveal whether another client has asked the same before.
                    context.timing.is_private = True
                    headers = [(name, value) for name, value in headers if name != b"server-timing"]
                context.timing.add("upstream", time.perf_counter() - sent_at)
                if allowance is not None:
                    headers += [(name.encode(), value.encode()) for name, value in allowance.headers().items()]
                await send({"type": "http.response.start", "status": response.status, "headers": headers})
                await _relay_body(service, response, send)
        finally:
            body.release()

    @asynccontextmanager
    async def _send(
        self, service: Service, upstream: Upstream, request: UpstreamRequest
    ) -> AsyncIterator[aiohttp.ClientResponse]:
        """Yield the response: of the process that has the collections, where another one says that it has none.

        Only a service parses the body, so only it knows that an image in it is named by its collection.
        """
        async with upstream.send(request) as response:
            if response.status != Misdirected.status or service != "embed" or "collections" not in self.upstreams:
                yield response
                return
        collections = self.upstreams["collections"]
        with collections.recent.counted():
            async with collections.send(request) as response:
                yield response


def _target(scope: Scope) -> str:
    target = str(scope["raw_path"], "ascii")
    return f"{target}?{str(scope['query_string'], 'ascii')}" if scope["query_string"] else target


async def _relay_body(service: Service, response: aiohttp.ClientResponse, send: Send) -> None:
    """Relay each piece as it arrives, reading no more until the client has taken it.

    Raises Overloaded where the service breaks off: the outermost handler then ends a stream of events with the
    error, and leaves any other response visibly incomplete.
    """
    content = response.content
    chunk = b"\n\n"
    has_more = True
    try:
        while has_more:
            chunk = await content.readany()
            has_more = not content.at_eof()
            await send({"type": "http.response.body", "body": chunk, "more_body": has_more})
    except (aiohttp.ClientError, OSError) as broken:
        if response.content_type == "text/event-stream" and not chunk.endswith((b"\n\n", b"\r\n\r\n")):
            # The error must not be read as the rest of a truncated event.
            await send({"type": "http.response.body", "body": b"\n\n", "more_body": True})
        raise Overloaded(f"The {service} service aborted its response.", code="upstream_failed") from broken
