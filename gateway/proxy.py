"""The hot path in plain ASGI: a request for a service is admitted, read, sent on and answered without parsing.

Its body is read whole before it is sent on. A client that sends slowly then costs the gateway memory for what it has
sent, and no permit at a service; and the request that is sent on has a known length, and can be sent again.
"""

import asyncio
import math
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from io import BytesIO

import aiohttp
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from gateway.access import Access, Visitor
from gateway.cascade import cascade
from gateway.directory import Directory
from gateway.headers import request_headers, response_headers
from gateway.keys.own_key import STATE, Admitted, RequestCounts, UsageCounts
from gateway.routes import COUNTED_PATHS, OWN_SCOPES, Route, check_method
from gateway.routing.prompt_prefix import prefix_of
from gateway.routing.upstream_choice import UpstreamChoice, find_in_body, find_in_json, model_in_body, model_in_head
from gateway.settings import GatewaySettings
from gateway.token_counts import TokenCount
from gateway.upstream import Upstream, UpstreamRequest
from services.core.errors import InvalidField, InvalidRequest, Misdirected, Overloaded, Unauthenticated
from services.core.exchange import TOKENS_HEADER, RequestContext, announces_body, context_of, exchange_of
from services.core.fair_gate import FairGate, Permit
from services.core.metrics import Metrics

# Bodies up to this size are not counted: nearly all are smaller, and the limit on connections bounds them.
UNCOUNTED_BYTES = 256 * 1024
# The share of the memory for long bodies that one client may take.
CLIENT_SHARE = 0.5


class BodyMemory:
    """The gate of the bytes of long bodies held at a time, in all and per client; always enough for one body."""

    def __init__(self, settings: GatewaySettings, metrics: Metrics) -> None:
        self.max_bytes = max(settings.max_held_body_bytes, settings.max_body_bytes)
        self.max_client_bytes = max(int(CLIENT_SHARE * self.max_bytes), settings.max_body_bytes)
        self._refused = metrics.rejected.labels("body_memory_full")
        self.gate = FairGate(self.max_bytes, max_waiting_of_client=0, refusal=self._refusal)
        metrics.gateway_held_body_bytes.set_function(lambda: self.gate.taken)

    async def take(self, client: str, num_bytes: int) -> Permit:
        """Hold bytes for a client. Raises Overloaded where there is no room."""
        return await self.gate.take(num_bytes, {("body", client): self.max_client_bytes})

    def _refusal(self) -> Overloaded:
        self._refused.inc()
        return Overloaded(
            f"The gateway has reached its limit of memory for long bodies: {self.max_bytes} bytes of all clients "
            f"(FOVEA_GATEWAY_MAX_HELD_BODY_BYTES), {self.max_client_bytes} of one.",
            code="body_memory_full",
        )


class ClientBody:
    """One body as it comes in, and the memory that it takes until it is released."""

    def __init__(self, memory: BodyMemory, client: str, content: bytes | None = None) -> None:
        """`content` is a body that was read and is counted already."""
        self._memory = memory
        self._client = client
        self._held: list[Permit] = []
        self._num_counted = 0
        self._content = content

    async def read(self, scope: Scope, receive: Receive) -> bytes | None:
        """Read the whole body, once; None where none is announced. Raises InvalidRequest where the client leaves before
        its end, Overloaded where there is no room for it."""
        if self._content is None and announces_body(scope):
            self._content = await self._read_whole(receive)
        return self._content

    async def _read_whole(self, receive: Receive) -> bytes:
        chunk, has_more = await _read_chunk(receive)
        if not has_more:
            await self._count(len(chunk))
            return chunk
        buffer = BytesIO(chunk)
        buffer.seek(len(chunk))
        while has_more:
            chunk, has_more = await _read_chunk(receive)
            buffer.write(chunk)
            await self._count(buffer.tell())
        return buffer.getvalue()

    def release(self) -> None:
        """Give back the memory."""
        self._content = None
        while self._held:
            self._memory.gate.give_back(self._held.pop())

    async def _count(self, num_bytes: int) -> None:
        if num_bytes > max(UNCOUNTED_BYTES, self._num_counted):
            self._held.append(await self._memory.take(self._client, num_bytes - self._num_counted))
            self._num_counted = num_bytes


async def _read_chunk(receive: Receive) -> tuple[bytes, bool]:
    """Return the next piece, and whether more follow."""
    message = await receive()
    if message["type"] == "http.disconnect":
        raise InvalidRequest("The client closed the connection before the end of the request body.")
    return message.get("body", b""), message.get("more_body", False)


class Proxy:
    """Innermost middleware: sends requests in the route table to their service, others to the gateway's own routes.

    Every request passes `access`, except those to public paths, most of which are not even counted, and public routes.
    """

    def __init__(
        self,
        app: ASGIApp,
        access: Access,
        directory: Directory,
        body_memory: BodyMemory,
        usage: UsageCounts,
    ) -> None:
        self.app = app
        self.access = access
        self.usage = usage
        self.directory = directory
        self.choice = UpstreamChoice(directory.upstreams)
        self.body_memory = body_memory
        self.routes = directory.routes

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["path"] in self.routes.public_paths:
            if scope["type"] == "http" and scope["path"] in COUNTED_PATHS:
                await self.access.count_public(scope)
            await self.app(scope, receive, send)
            return
        route = self.routes.find(scope["path"])
        if route is not None:
            scope["route"] = route  # which shapes every refusal
        if route is not None and route.is_public:
            check_method(route, scope["path"], scope["method"])
            stranger = Admitted(self.access.stranger(scope), RequestCounts())
            await self._forward(stranger, scope, receive, send)
            return
        try:
            visitor = self.access.authenticate(scope)
        except Unauthenticated:
            await self.access.count_failure(scope)
            raise
        is_of_one = route is not None and not route.shared_by
        admitted = Admitted(visitor, self.usage.begin(visitor, route.service if route and is_of_one else "gateway"))
        try:
            await self._answer(route, admitted, scope, receive, send)
        except (Exception, asyncio.CancelledError) as failure:
            status = exchange_of(scope).status
            is_counted = status is not None and status >= 400
            # Cancelled before its deadline, the client has gone, and gets no answer.
            is_answered = isinstance(failure, Exception) or time.monotonic() >= context_of(scope).deadline
            admitted.counts.errors += is_answered and not is_counted
            raise

    async def _answer(
        self, route: Route | None, admitted: Admitted, scope: Scope, receive: Receive, send: Send
    ) -> None:
        path: str = scope["path"]
        visitor = admitted.visitor
        # Before everything that may refuse the request: a refusal also costs something.
        admitted.note(await self.access.count(visitor))
        scope[STATE] = admitted
        send = _telling_limits(admitted, send)
        if route is None:
            if path in OWN_SCOPES:
                self.access.authorize(visitor, OWN_SCOPES[path])
            await self.app(scope, receive, send)
            return
        permissions = [f"{service}:{route.level(scope['method'], path)}" for service in route.services]
        self.access.authorize(visitor, next(filter(visitor.may, permissions), permissions[0]))
        check_method(route, path, scope["method"])
        if self.choice.is_merged(route, scope):
            await self.app(scope, receive, send)
            return
        await self._forward(admitted, scope, receive, send)

    async def _forward(self, admitted: Admitted, scope: Scope, receive: Receive, send: Send) -> None:
        body = ClientBody(self.body_memory, admitted.visitor.identity)
        try:
            if scope["route"].shared_by:
                await self._decide(body, admitted, scope, receive, send)
            else:
                await self._send_on(body, admitted, scope, receive, send)
        finally:
            body.release()

    async def _count(self, body: ClientBody, admitted: Admitted, scope: Scope, receive: Receive) -> TokenCount | None:
        """Count a request against the limits in tokens and of its model; None where there are none.

        Raises LimitReached.
        """
        route, visitor = scope["route"], admitted.visitor
        if not (visitor.counts_tokens or visitor.model_limits) or not route.uses_tokens(scope["path"]):
            return None
        count = TokenCount(self.access, admitted)
        admitted.note(await self.access.check_tokens(visitor))
        if visitor.model_limits:
            model = model_in_head(route, scope)
            if model is None and route.model_in:
                model = await model_in_body(route, scope, await body.read(scope, receive) or b"")
            if model is not None:
                await count.of_model(model)
        return count

    async def _send_on(self, body: ClientBody, admitted: Admitted, scope: Scope, receive: Receive, send: Send) -> None:
        count = await self._count(body, admitted, scope, receive)
        try:
            await self._relay(count, body, admitted, scope, receive, send)
        finally:
            if count is not None:
                await count.end()

    async def _relay(
        self,
        count: TokenCount | None,
        body: ClientBody,
        admitted: Admitted,
        scope: Scope,
        receive: Receive,
        send: Send,
    ) -> None:
        visitor = admitted.visitor
        context = context_of(scope)
        upstream = await self._choose(body, visitor, scope, receive)
        # From here on the request is demand for the upstream, whatever becomes of it.
        with upstream.recent.counted():
            answer_s = _waking(upstream, context)
            # Refuse here if possible: once the body is read, a refusal costs as much as an answer. A choice by
            # model has read it already.
            upstream.gate.check(visitor.identity, context.deadline)
            request = UpstreamRequest(
                method=scope["method"],
                target=_target(scope),
                headers=request_headers(scope, visitor.caller),
                body=await body.read(scope, receive),
                deadline=context.deadline,
                client=visitor.identity,
                answer_s=answer_s,
            )
            if count is not None:
                request.headers[str(TOKENS_HEADER, "ascii")] = "count"
            request.prefix = await _prefix(upstream, scope["route"], request.body, visitor.tenant)
            sent_at = time.perf_counter()
            async with self._send(upstream, request) as response:
                # The body is not sent again, and need not be kept while the answer, perhaps a long stream, is
                # relayed.
                request.body = None
                body.release()
                # Sent again by the middleware, which counts and logs it, too.
                context.model = response.headers.get("X-Fovea-Model")
                if count is not None:
                    await count.begin(response.headers, context.model)
                headers = _client_headers(response, admitted, scope)
                admitted.counts.errors += response.status >= 400
                context.timing.add("upstream", time.perf_counter() - sent_at)
                await send({"type": "http.response.start", "status": response.status, "headers": headers})
                await _relay_body(upstream, response, send if count is None else count.reading(send))

    async def _decide(self, body: ClientBody, admitted: Admitted, scope: Scope, receive: Receive, send: Send) -> None:
        """Send a request of a shared route to the service that has its model, and what that hands over to its teacher.

        Raises what `_route_of` and `_send_on` raise, InvalidField where no model is named.
        """
        visitor, context = admitted.visitor, context_of(scope)
        model, teacher = [
            await find_in_body(find_in_json, await body.read(scope, receive) or b"", field)
            for field in ("model", "teacher")
        ]
        if model is None:
            raise InvalidField("model: The request must name its model, which decides who answers.", param="model")
        shared = scope["route"]
        scope["route"] = route = await self._route_of(shared, "model", model, visitor, scope)
        larger = teacher and await self._route_of(shared, "teacher", teacher, visitor, scope)
        admitted.counts.requests -= 1
        admitted.counts = self.usage.begin(visitor, route.service)
        if not (teacher and larger):
            await self._send_on(body, admitted, scope, receive, send)
            return

        async def ask(content: bytes, send: Send, scope: Scope = scope) -> None:
            read = ClientBody(self.body_memory, visitor.identity, content)
            await self._send_on(read, admitted, scope, receive, send)

        async def ask_teacher(content: bytes, send: Send) -> None:
            decided_first = context.model
            admitted.counts = self.usage.begin(visitor, larger.service)
            await ask(content, send, {**scope, "route": larger})
            context.model = decided_first

        await cascade(await body.read(scope, receive) or b"", teacher, ask, ask_teacher, send)

    async def _route_of(self, shared: Route, field: str, model: str, visitor: Visitor, scope: Scope) -> Route:
        """Return a shared route as that of the service that has a model. Raises InvalidField, NotFound, Overloaded,
        PermissionDenied."""
        deadline = context_of(scope).deadline
        service = await self.directory.service_of(model, shared.services, visitor.identity, deadline, field)
        self.access.authorize(visitor, f"{service}:{shared.level(scope['method'], scope['path'])}")
        return shared.of(service)

    async def _choose(self, body: ClientBody, visitor: Visitor, scope: Scope, receive: Receive) -> Upstream:
        """Return the upstream, having read the body only where that names it."""
        route: Route = scope["route"]
        upstream = self.choice.by_head(route, scope)
        if upstream is None:
            upstream = await self.choice.by_body(route, scope, await body.read(scope, receive) or b"")
        return self.choice.preferring_canary(upstream, route, scope) if visitor.prefers_canary else upstream

    @asynccontextmanager
    async def _send(self, upstream: Upstream, request: UpstreamRequest) -> AsyncIterator[aiohttp.ClientResponse]:
        """Yield the response: of the process that has the collections, where another one says that it has none.

        Only a service parses the body, so only it knows that an image in it is named by its collection.
        """
        collections = self.directory.upstreams.collections
        async with upstream.send(request) as response:
            is_elsewhere = response.status == Misdirected.status and upstream.destination.service == "embed"
            if not is_elsewhere or collections is None:
                yield response
                return
        with collections.recent.counted():
            async with collections.send(request) as response:
                yield response


def _waking(upstream: Upstream, context: RequestContext) -> float:
    """Give a request that finds its upstream asleep the time to wake it; return the seconds that are for an answer."""
    own_s = context.deadline - time.monotonic()
    return own_s if upstream.waking_s and context.prolong(upstream.waking_s) else math.inf


async def _prefix(upstream: Upstream, route: Route, body: bytes | None, tenant: str) -> bytes | None:
    """Return the digest of what a prompt begins with, where there is a choice of processes that may know it."""
    if not route.prefix_in or not body or not upstream.addresses.are_several:
        return None
    return await find_in_body(prefix_of, body, route.prefix_in, tenant)


def _target(scope: Scope) -> str:
    target = str(scope["raw_path"], "ascii")
    return f"{target}?{str(scope['query_string'], 'ascii')}" if scope["query_string"] else target


def _client_headers(response: aiohttp.ClientResponse, admitted: Admitted, scope: Scope) -> list[tuple[bytes, bytes]]:
    timing = context_of(scope).timing
    headers = response_headers(response.raw_headers, response.status, timing)
    if not admitted.visitor.may(f"{scope['route'].service}:admin"):
        # The durations of stages reveal whether another client has asked the same before.
        timing.is_private = True
        headers = [(name, value) for name, value in headers if name != b"server-timing"]
    return headers


def _telling_limits(admitted: Admitted, send: Send) -> Send:
    """Return a `send` that adds to an answer's headers what is left of the limits by then."""

    async def tell_and_send(message: Message) -> None:
        if message["type"] == "http.response.start":
            told = [item for one in admitted.allowances.values() for item in one.headers().items()]
            headers = [*message["headers"], *((name.encode(), value.encode()) for name, value in told)]
            message = {**message, "headers": headers}
        await send(message)

    return tell_and_send


async def _relay_body(upstream: Upstream, response: aiohttp.ClientResponse, send: Send) -> None:
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
        raise Overloaded(f"{upstream.destination.title} aborted its response.", code="upstream_failed") from broken
