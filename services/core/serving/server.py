"""Serve an application until a signal, and leave without losing a request."""

import asyncio
import gc
import math
import os
import socket
import sys
import threading
import traceback
from collections.abc import Callable
from functools import partial
from types import FrameType
from typing import TypeVar

import structlog
import uvicorn
from starlette.applications import Starlette

from services.core.descriptors import ExhaustionLog, check_descriptors, raise_limit
from services.core.http.health import Health
from services.core.http.protocol import ConnectionLimits, LimitedProtocol, most_connections
from services.core.logs import configure_logging
from services.core.serving.served_checkpoint import is_loading
from services.core.settings import ProcessSettings, own_prefix_of

# Longer than clients keep idle connections, so that the server does not close one just as it is used again.
KEEP_ALIVE_S = 75
# Seconds that an idle connection stays open while draining, so that a request already in transit is answered.
IDLE_GRACE_S = 1.0
ACCEPT_GRACE_S = 0.1
# Seconds for closing once all connections are gone; then the process is ended by force.
EXIT_GRACE_S = 10.0
BACKLOG = 2048
TICKS_PER_S = 10  # uvicorn's
# Iterations of the event loop: one may end before sockets are polled, the next reads what has arrived, one more acts.
TURNS_TO_READ = 3
# uvloop accepts one connection per iteration, and a whole backlog may wait.
TURNS_TO_ACCEPT = BACKLOG + TURNS_TO_READ
# Python's own are 700, 10, 10. Requests in progress hold that many objects at any time, so that collections would find
# next to nothing, and a full one stops all requests for up to tenths of a second: it runs five times less often.
GC_THRESHOLDS = (3_000, 10, 12)

SettingsT = TypeVar("SettingsT", bound=ProcessSettings)


def run(create: Callable[[SettingsT], Starlette], settings: SettingsT, *, client_share: float = 1.0) -> int:
    """Serve until SIGTERM or SIGINT and return the exit status: 0 after a drain, 1 where starting up failed.

    A process that is stuck is ended with status 1, EXIT_GRACE_S after its drain should be over.

    `create` makes the application, with its `Health` and `Metrics` in `app.state`. One client may have `client_share`
    of the connections. The address is bound first, so that a port in use is reported before a checkpoint is loaded:
    SystemExit with one sentence.
    """
    configure_logging(settings)
    descriptors = raise_limit()
    listener = _bind(settings)
    app = create(settings)
    most = most_connections(settings.max_connections, descriptors)
    limits = ConnectionLimits(most, client_share, app.state.metrics)
    server = DrainingServer(
        uvicorn.Config(
            app,
            http=partial(LimitedProtocol, limits=limits),  # type: ignore[arg-type] # which uvicorn only calls
            lifespan="on",
            ws="none",
            log_config=None,
            access_log=False,
            server_header=False,
            proxy_headers=False,  # clients on this machine could choose the address that limits count by
            backlog=BACKLOG,
            timeout_keep_alive=KEEP_ALIVE_S,
            timeout_graceful_shutdown=math.ceil(settings.drain_timeout_s),
        ),
        health=app.state.health,
        drain_delay_s=settings.drain_delay_s,
        drain_timeout_s=settings.drain_timeout_s,
    )
    gc.set_threshold(*GC_THRESHOLDS)
    # What has been imported stays: no collection looks at it again.
    gc.freeze()
    gc.enable()
    host, port = listener.getsockname()[:2]
    structlog.get_logger("fovea.server").info("listening", host=host, port=port)
    server.run(sockets=[listener])
    structlog.get_logger("fovea.server").info("stopped")
    status = 1 if app.state.health.has_failed else 0
    if is_loading():
        # Its thread would go on computing while the interpreter is torn down.
        _exit_now(status)
    return status


def _bind(settings: ProcessSettings) -> socket.socket:
    family = socket.AF_INET6 if ":" in settings.host else socket.AF_INET
    try:
        return socket.create_server((settings.host, settings.port), family=family, backlog=BACKLOG)
    except OSError as refused:
        raise SystemExit(
            f"Cannot listen on {settings.host}:{settings.port}: {refused.strerror}. "
            f"Choose another port with {settings.set_by.get('port', f'{own_prefix_of(type(settings))}PORT')}."
        ) from None


class DrainingServer(uvicorn.Server):
    """A uvicorn server that shuts down in this order: not ready, no new connections, open ones finish, lifespan, exit.

    Meanwhile responses carry `Connection: close`, so that clients reconnect elsewhere. A second signal ends the
    process at once.
    """

    def __init__(self, config: uvicorn.Config, *, health: Health, drain_delay_s: float, drain_timeout_s: float) -> None:
        super().__init__(config)
        self._health = health
        self._exhaustion = ExhaustionLog("accept")
        self._drain_delay_s = drain_delay_s
        self._drain_timeout_s = drain_timeout_s
        self._last_resort: threading.Timer | None = None

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        if self.should_exit:
            os._exit(128 + sig)
        # uvicorn's own handler would raise the signal again at the end, and the exit status would not be 0.
        self._health.begin_drain()
        self.should_exit = True
        self._must_end()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        # Objects that exist by now stay; visiting them in every full collection would stop all requests meanwhile.
        gc.collect()
        gc.freeze()

    async def on_tick(self, counter: int) -> bool:
        if self._health.has_failed:
            self._health.begin_drain()
            self._must_end()
            return True
        if counter % TICKS_PER_S == 0:
            check_descriptors(self._exhaustion)
        return await super().on_tick(counter)

    def _must_end(self) -> None:
        """Make sure that the process ends, even if a batch or the loading of a version never returns."""
        if self._last_resort is None:
            most_s = self._drain_delay_s + ACCEPT_GRACE_S + IDLE_GRACE_S + self._drain_timeout_s + EXIT_GRACE_S
            self._last_resort = threading.Timer(most_s, _end_by_force)
            self._last_resort.daemon = True
            self._last_resort.start()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        structlog.get_logger("fovea.server").info("draining", connections=len(self.server_state.connections))
        if not self._health.has_failed:
            await asyncio.sleep(self._drain_delay_s)
        # Closing a listener resets the connections that wait to be accepted, and after a reset, unlike a refusal, a
        # client can't know whether to retry: those that wait are accepted first. With no place in its queue, a listener
        # takes no further ones meanwhile; on Linux their clients try again about a second later.
        for listener in sockets or []:
            listener.listen(0)
        await asyncio.sleep(ACCEPT_GRACE_S)
        await _take_turns(TURNS_TO_ACCEPT)
        for server in self.servers:
            server.close()
        # Connections that were accepted but have not sent their request yet count as idle for uvicorn, which would
        # close them.
        loop = asyncio.get_running_loop()
        idle_until = loop.time() + IDLE_GRACE_S
        while self.server_state.connections and loop.time() < idle_until:  # noqa: ASYNC110 uvicorn has no event for it
            await asyncio.sleep(0.02)
        await _take_turns(TURNS_TO_READ)
        await super().shutdown(sockets)


def _end_by_force() -> None:
    names = {thread.ident: thread.name for thread in threading.enumerate()}
    stuck = {
        names.get(ident, "unknown"): traceback.format_stack(frame)[-1].strip()
        for ident, frame in sys._current_frames().items()
        if ident != threading.get_ident()
    }
    structlog.get_logger("fovea.server").critical("ended by force", threads=stuck)
    _exit_now(1)


def _exit_now(status: int) -> None:
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)


async def _take_turns(number: int) -> None:
    """Run the loop so that everything that has reached a socket is accepted or read. A loop that was starved of CPU for
    longer than a grace period handles the timer first, and would close connections it never polled."""
    for _ in range(number):
        await asyncio.sleep(0)
