"""One destination as the gateway sees it: the choice of an address, retries, and errors for the client."""

import asyncio
import math
import re
import time
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from io import BytesIO
from typing import TYPE_CHECKING

import aiohttp
import structlog
from aiohttp.client_reqrep import ConnectionKey
from aiohttp.connector import Connection
from aiohttp.tracing import Trace
from multidict import CIMultiDict
from opentelemetry import propagate
from yarl import URL

from gateway.addresses import Address, Addresses, Lease
from gateway.admission import Gate, RecentRequests, RetryBudget, TrackRecord
from gateway.routing.destinations import Destination
from gateway.settings import GatewaySettings
from services.core.admission.admission import PERMITS_HEADER
from services.core.descriptors import ExhaustionLog, is_exhaustion, out_of_descriptors
from services.core.errors import Overloaded
from services.core.exchange import Caller
from services.core.followed_file import ModelT, parse_file
from services.core.http.signatures import SIGNATURE_HEADER, SigningSecrets
from services.core.metrics import Metrics

if TYPE_CHECKING:
    from prometheus_client import Counter

# Shorter than the services keep idle connections, so that they seldom close one just as it is used again.
KEEP_ALIVE_S = 30.0
# Seconds for connecting to an address.
CONNECT_TIMEOUT_S = 2.0
# The first attempt and at most two retries.
MAX_ATTEMPTS = 3
# Seconds within which a request fails on an idle connection that was being closed; a later failure is its own fault.
IDLE_CLOSE_S = 1.0
# Seconds between attempts of a request that waits for a service to come up.
WAIT_POLL_S = 0.1
NOT_RUNNING_RETRY_S = 5.0
PERMITS = str(PERMITS_HEADER, "ascii")
MAX_ONE_WRITE_BYTES = 2**20

log = structlog.get_logger(__name__)
# For the gateway's own requests: readiness, models, documentation.
GATEWAY = Caller("gateway")
PROBE_TIMEOUT = aiohttp.ClientTimeout(total=1.0)
# A service makes its documentation at the first request for it, and reads versions from a store that may be far.
SLOW_TIMEOUT = aiohttp.ClientTimeout(total=10.0)


@dataclass(eq=False)
class Attempt:
    """One attempt, on which the session notes whether it reused an idle connection instead of opening one."""

    started_s: float = field(default_factory=time.monotonic)
    is_on_reused_connection: bool = False


def open_session(
    *, connect_timeout_s: float, telemetry: bool = False, secrets: SigningSecrets | None = None
) -> aiohttp.ClientSession:
    """Open a session that passes bodies unchanged, takes nothing from the environment and signs all that it sends.

    With `telemetry` its requests belong to the trace of the request that they are sent for. Without, a trace that the
    client began is passed on unchanged.
    """
    tracing = aiohttp.TraceConfig()
    tracing.on_connection_reuseconn.append(_note_reuse)
    if telemetry:
        tracing.on_request_start.append(_carry_trace_on)
    if secrets is not None:
        tracing.on_request_start.append(partial(_sign, secrets))
    return aiohttp.ClientSession(
        connector=_CleanConnector(limit=0, keepalive_timeout=KEEP_ALIVE_S),
        cookie_jar=aiohttp.DummyCookieJar(),
        skip_auto_headers=("Accept", "Accept-Encoding", "User-Agent", "Content-Type"),
        auto_decompress=False,
        trust_env=False,
        timeout=aiohttp.ClientTimeout(total=None, sock_connect=connect_timeout_s),
        trace_configs=[tracing],
    )


class _CleanConnector(aiohttp.TCPConnector):
    """Reuses no idle connection on which anything is in transit.

    Unexpected bytes would be read as the answer to the next request; and where an answer came before its request was
    written completely, the next request would be taken for the rest of it.
    """

    async def _get(self, key: ConnectionKey, traces: list[Trace]) -> Connection | None:
        while (connection := await super()._get(key, traces)) is not None:
            protocol, transport = connection.protocol, connection.transport
            assert protocol is not None
            if transport is not None and not protocol.should_close and not transport.get_write_buffer_size():
                return connection
            connection.close()
        return None


async def _note_reuse(session: aiohttp.ClientSession, context: object, params: object) -> None:
    attempt = getattr(context, "trace_request_ctx", None)
    if isinstance(attempt, Attempt):
        attempt.is_on_reused_connection = True


async def _carry_trace_on(
    session: aiohttp.ClientSession, context: object, params: aiohttp.TraceRequestStartParams
) -> None:
    # In place of the client's own `traceparent`, which the gateway's span has as its parent.
    propagate.inject(params.headers)


async def _sign(
    secrets: SigningSecrets, session: aiohttp.ClientSession, context: object, params: aiohttp.TraceRequestStartParams
) -> None:
    params.headers[SIGNATURE_HEADER] = secrets.sign(params.method, params.url.raw_path_qs, params.headers)


@dataclass(eq=False)
class UpstreamRequest:
    """A request to send: `target` is the path and query as the client wrote them, `deadline` a `time.monotonic()`.

    It counts for the share of `client`. `headers` hold no length, which is that of `body`. Requests with the same
    `prefix` are best sent to the same instance.
    """

    method: str
    target: str
    headers: CIMultiDict[str]
    body: bytes | None
    deadline: float
    client: str
    prefix: bytes | None = None
    # Seconds that an instance has for it at most, such as what is left once one has been waited for.
    answer_s: float = math.inf


class _Unsent(Exception):
    """The connection was not accepted, so nothing was sent."""


class _Hung(Exception):
    """The address hangs: this was found before it answered."""


class _ClosedWhileIdle(Exception):
    """An idle connection was closed as it was used again: the request was not read."""


class Upstream:
    """The addresses of one destination behind one gate.

    A request is sent to another address where the connection was refused, the address hangs, or an instance said 503
    with `Retry-After`; and it is sent again, once, where an idle connection broke as soon as it was used again: most
    likely it was being closed, but an instance that dies of a request within IDLE_CLOSE_S looks the same. Retries never
    exceed the retry budget. All requests are idempotent: services store everything under a name.
    """

    def __init__(
        self,
        destination: Destination,
        addresses: Addresses,
        session: aiohttp.ClientSession,
        settings: GatewaySettings,
        metrics: Metrics,
    ) -> None:
        self.destination = destination
        # The label in metrics: canary and pools have their own, so scaling and alerts of a service do not count them.
        self.name = destination.name
        self.addresses = addresses
        self.gate = Gate(
            destination,
            max_inflight=settings.max_inflight_requests,
            max_queued=settings.max_queued_requests,
            burst_s=settings.burst_s,
            metrics=metrics,
        )
        self.recent = RecentRequests()
        self.record = TrackRecord()
        has_canary = destination.kind == "service" and destination.service in settings.canary_urls
        self._is_compared = has_canary or destination.kind == "canary"
        if destination.kind == "canary":
            metrics.canary_withdrawn.labels(self.name).set_function(lambda: self.record.is_withdrawn)
        metrics.gateway_recent_requests.labels(self.name).set_function(self.recent.count)
        self._unserved = metrics.gateway_unserved_requests.labels(self.name)
        self._session = session
        self._exhaustion = ExhaustionLog(f"upstream {self.name}")
        self._budget = RetryBudget()
        self._wake_s = settings.wake_s.get(self.name, 0.0)
        self.wait_s = self._wake_s or settings.wait_for_service_s
        self._retries = metrics.retries.labels(self.name)
        self._metrics = metrics
        self._is_counted = True
        # Looking up a label set costs more than counting; there are few codes.
        self._counters: dict[str, Counter] = {}
        ejections = metrics.upstream_ejections.labels(self.name)
        addresses.on_ejection = lambda _: ejections.inc()
        # A canary may have none for as long as nothing is published for it, and a review runs while people judge:
        # nobody is to be woken.
        if addresses.is_configured and destination.kind not in ("canary", "review"):
            metrics.upstream_ready_addresses.labels(self.name).set_function(lambda: addresses.num_ready)

    def become(self, destination: Destination) -> None:
        """Take over all but the name of a destination; `addresses.refresh` looks up its URLs."""
        self.destination = destination
        self.addresses.set_base_urls(destination.urls)

    def leave_metrics(self) -> None:
        """Remove this upstream's label sets for good, while its last requests may still be running."""
        self._is_counted = False
        for code in self._counters:
            self._metrics.upstream_requests.remove(self.name, code)
        for metric in (
            self._metrics.gateway_inflight_requests,
            self._metrics.gateway_queued_requests,
            self._metrics.gateway_concurrency_limit,
            self._metrics.gateway_refused_requests,
            self._metrics.gateway_recent_requests,
            self._metrics.gateway_unserved_requests,
            self._metrics.upstream_ready_addresses,
            self._metrics.upstream_ejections,
            self._metrics.retries,
        ):
            metric.remove(self.name)

    @asynccontextmanager
    async def send(self, request: UpstreamRequest) -> AsyncIterator[aiohttp.ClientResponse]:
        """Yield the service's response with its body unread; leaving the context before its end cancels the request.

        Raises Overloaded where no instance answers.
        """
        permit = await self.gate.enter(request.client, request.deadline)
        try:
            lease, response = await self._send_until_up(request)
            lease.on_hung = response.close
            try:
                yield response
            finally:
                response.close()
                self.addresses.release(lease)
        finally:
            self.gate.leave(permit)

    async def _send_until_up(self, request: UpstreamRequest) -> tuple[Lease, aiohttp.ClientResponse]:
        """Send a request, waiting for a service to come up where that is configured, also while every instance is
        loading or draining. When the time is over, an instance is asked nevertheless, and says what is wrong."""
        if not self.addresses.is_configured:
            raise self._not_running()
        self._budget.deposit()
        give_up_at = time.monotonic() + self.wait_s
        while True:
            is_over = time.monotonic() + WAIT_POLL_S > give_up_at
            try:
                if is_over or self.addresses.has_ready:
                    return await self._send_with_retries(request)
            except _Unsent:
                if is_over:
                    raise self._not_running() from None
            with self.gate.held_back():
                await asyncio.sleep(WAIT_POLL_S)

    async def hold_back(self, client: str, deadline: float) -> None:
        """Keep a request in line until it is worth another look whether this service is up. Raises Overloaded."""
        permit = await self.gate.enter(client, deadline)
        try:
            with self.gate.held_back():
                await asyncio.sleep(WAIT_POLL_S)
        finally:
            self.gate.leave(permit)

    async def _send_with_retries(self, request: UpstreamRequest) -> tuple[Lease, aiohttp.ClientResponse]:
        """Send a request with retries. Raises _Unsent where every address that was tried refused the connection."""
        failed: Address | None = None
        was_closed = False
        for attempts_left in reversed(range(MAX_ATTEMPTS)):
            lease = self.addresses.choose(avoid=failed, prefix=request.prefix)
            if lease is None and any(address.is_hung for address in self.addresses):
                raise self._hangs()
            if lease is None:
                raise _Unsent
            failed = lease.address
            has_other = self.addresses.has_other(failed)
            try:
                response = await self._send_unless_hung(lease, request)
            except _Unsent:
                self.addresses.release(lease)
                if not (attempts_left and has_other and self._may_retry()):
                    raise
            except _Hung:
                self.addresses.release(lease)
                has_other = self.addresses.has_other(failed)
                if not (attempts_left and has_other and self._may_retry()):
                    raise self._hangs() from None
            except _ClosedWhileIdle:
                self.addresses.release(lease)
                # Only once: a request that crashes an instance must not crash all of them.
                if was_closed or not (attempts_left and self._may_retry()):
                    raise self._broke_off() from None
                was_closed = True
            except BaseException:
                self.addresses.release(lease)
                raise
            else:
                is_refusal = response.status == Overloaded.status and "Retry-After" in response.headers
                if not (is_refusal and attempts_left and has_other and self._may_retry()):
                    if is_refusal:
                        # Several gateways fill a service's queue before any fills its own.
                        self.gate.refused.inc()
                    return lease, response
                response.close()
                self.addresses.release(lease)
        raise AssertionError("the last attempt returns or raises")

    async def _send_unless_hung(self, lease: Lease, request: UpstreamRequest) -> aiohttp.ClientResponse:
        """Call `_send_to`, but raise _Hung once the address is found to hang."""
        task = asyncio.current_task()
        assert task is not None, "requests are sent in tasks"
        is_given_up = False

        def give_up() -> None:
            nonlocal is_given_up
            is_given_up = True
            task.cancel()

        lease.on_hung = give_up
        try:
            return await self._send_to(lease.address, request)
        except asyncio.CancelledError:
            if not is_given_up or task.uncancel() > 0:
                raise
            self._count("hung")
            raise _Hung from None
        finally:
            lease.on_hung = None

    async def _send_to(self, address: Address, request: UpstreamRequest) -> aiohttp.ClientResponse:
        """Make one attempt. Raises _Unsent, _ClosedWhileIdle, and Overloaded where the service broke off."""
        attempt = Attempt()
        request.headers["Host"] = address.authority
        left_s = min(request.deadline - time.monotonic(), request.answer_s)
        request.headers["X-Request-Timeout"] = f"{max(0.001, left_s):.3f}"
        try:
            response = await self._session.request(
                request.method,
                URL(address.url + request.target, encoded=True),
                headers=request.headers,
                data=_payload(request.body),
                allow_redirects=False,
                server_hostname=address.tls_name,
                trace_request_ctx=attempt,
            )
        except (aiohttp.ClientConnectorError, aiohttp.ConnectionTimeoutError) as refused:
            if is_exhaustion(refused):
                # No fault of the service.
                self._exhaustion.report()
                raise out_of_descriptors() from None
            # The client is told that nothing answers; a mismatched certificate, say, is for the operator to know.
            log.warning("connection_refused", address=address.url, reason=type(refused).__name__)
            self.addresses.failed(address)
            self._count("unreachable")
            raise _Unsent from None
        except (aiohttp.ClientError, OSError) as broken:
            self._count("broken")
            if attempt.is_on_reused_connection and time.monotonic() - attempt.started_s < IDLE_CLOSE_S:
                raise _ClosedWhileIdle from None
            self.addresses.failed(address)
            raise self._broke_off() from broken
        self._count(str(response.status), response.headers.get("X-Fovea-Model", ""))
        self._note_permits(address, response)
        self.addresses.answered(address)
        if response.headers.get("WWW-Authenticate") == SIGNATURE_HEADER:
            # Not for the client, whose key is valid.
            response.close()
            log.error("signature_refused", address=address.url)
            self.addresses.failed(address)
            title = self.destination.title
            raise self._unavailable(f"{title} refuses this gateway's signature; see FOVEA_SIGNING_SECRET_FILE.")
        if response.status < 500:
            self.addresses.succeeded(address)
        elif response.status not in (503, 504):
            # Those two mean too much work or too little time, not that the instance is broken.
            self.addresses.failed(address)
        return response

    def _note_permits(self, address: Address, response: aiohttp.ClientResponse) -> None:
        announced = re.fullmatch(r"[1-9][0-9]{0,8}", response.headers.get(PERMITS, ""))
        if announced and int(announced[0]) != address.permits:
            address.permits = int(announced[0])
            self._resize()

    def _resize(self) -> None:
        is_waited_for = self.wait_s > 0 and not self.addresses.has_ready
        self.gate.follow(self.addresses.num_permits, is_patient=is_waited_for)

    @property
    def waking_s(self) -> float:
        """Seconds that a request has to wait, beside its own, where this scales to zero and is asleep."""
        return 0.0 if self.addresses.has_ready else self._wake_s

    def _may_retry(self) -> bool:
        if not self._budget.withdraw():
            return False
        self._retries.inc()
        return True

    def _count(self, code: str, model: str = "") -> None:
        if self._is_compared:
            self.record.add(code, model)
        counter = self._counters.get(code)
        if counter is None:
            if not self._is_counted:
                return
            counter = self._counters[code] = self._metrics.upstream_requests.labels(self.name, code)
        counter.inc()

    def _not_running(self) -> Overloaded:
        if not self.addresses.is_configured:
            return self._unavailable(f"This gateway has no {self.name} service; set {self.destination.variable}.")
        where = ", ".join(sorted({address.authority for address in self.addresses})) or "any known address"
        return self._unavailable(self.destination.not_running(where))

    def _hangs(self) -> Overloaded:
        return self._unavailable(self.destination.hangs())

    def _unavailable(self, problem: str) -> Overloaded:
        self._unserved.inc()
        return Overloaded(problem, code="service_unavailable", retry_after_s=NOT_RUNNING_RETRY_S)

    def _broke_off(self) -> Overloaded:
        title = self.destination.title
        return Overloaded(f"{title} closed the connection before it responded.", code="upstream_failed")

    def is_on_trial_beside(self, stable: "Upstream") -> bool:
        """Whether this canary is ready and has not been withdrawn, as it is once it fails more often than `stable`."""
        if not self.record.is_withdrawn and self.record.is_worse_than(stable.record):
            log.error("canary_withdrawn", canary=self.name)
            self.record.is_withdrawn = True
        return self.addresses.has_ready and not self.record.is_withdrawn

    async def fetch(self, path: str, shape: type[ModelT], limit: aiohttp.ClientTimeout | None = None) -> ModelT | None:
        """Return one instance's answer to a GET; None where it does not answer 200 with JSON of this shape in time."""
        lease = self.addresses.choose()
        if lease is None:
            return None
        try:
            async with self._get(lease.address, path, limit) as response:
                if response.status == 200:
                    return parse_file(shape, shape.__name__, await response.read(), lease.address.url + path)
        except (aiohttp.ClientError, OSError):
            pass
        except ValueError as not_understood:
            log.warning("answer_not_understood", reason=str(not_understood))
        finally:
            self.addresses.release(lease)
        return None

    async def look_up_and_probe(self) -> None:
        """Find the addresses and their readiness, as before the first request."""
        await self.addresses.refresh()
        await self.probe()

    async def probe(self) -> None:
        """Probe every address's readiness; one that leaves several probes unanswered counts as hung."""
        await asyncio.gather(*(self._probe(address) for address in self.addresses))
        self._resize()

    async def _probe(self, address: Address) -> None:
        try:
            async with self._get(address, "/readyz") as response:
                address.is_ready = response.status == 200
                self._note_permits(address, response)
                self.addresses.answered(address)
        except TimeoutError:
            address.is_ready = False
            self.addresses.left_unanswered(address)
        except (aiohttp.ClientError, OSError) as error:
            if isinstance(error, OSError) and is_exhaustion(error):
                self._exhaustion.report()
                return
            address.is_ready = False
            self.addresses.answered(address)

    def _get(
        self, address: Address, path: str, limit: aiohttp.ClientTimeout | None = None
    ) -> AbstractAsyncContextManager[aiohttp.ClientResponse]:
        return self._session.get(
            address.url + path,
            headers={"Host": address.authority, **GATEWAY.headers()},
            server_hostname=address.tls_name,
            timeout=limit or PROBE_TIMEOUT,
        )


def _payload(body: bytes | None) -> bytes | BytesIO | None:
    """Return the body in a form that aiohttp writes in pieces where it is long, so that other requests have a turn."""
    return body if body is None or len(body) <= MAX_ONE_WRITE_BYTES else BytesIO(body)
