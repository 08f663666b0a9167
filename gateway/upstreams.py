"""All upstreams, by service: looked up and probed in the background, while pools come and go."""

import asyncio
from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import get_args

import aiohttp
import structlog

from gateway.addresses import Addresses, EjectionPolicy, Resolve
from gateway.routing.destinations import COLLECTIONS, Destination, Pool, PoolFile, destinations
from gateway.settings import Backend, GatewaySettings
from gateway.upstream import Upstream
from services.core.followed_file import FollowedFile, changes
from services.core.metrics import Metrics

# Seconds that a changed file of pools waits for the addresses of new pools before it applies.
FIRST_LOOK_S = 5.0

log = structlog.get_logger(__name__)


@dataclass(frozen=True)
class Branch:
    """The upstreams of one backend: its own processes, its pools in order, and its canary.

    There are no own ones where pools take their place.
    """

    service: Backend
    own: Upstream | None
    pools: tuple[Upstream, ...] = ()
    canary: Upstream | None = None
    # The pools by the models and the tasks that they claim.
    by_model: dict[str, Upstream] = field(default_factory=dict)
    by_task: dict[str, Upstream] = field(default_factory=dict)

    def __iter__(self) -> Iterator[Upstream]:
        """Yield all but the canary."""
        return iter((*((self.own,) if self.own else ()), *self.pools))

    @property
    def default(self) -> Upstream:
        """The upstream of what names no model."""
        return self.own or self.pools[0]

    def of_model(self, model: str) -> Upstream | None:
        """Return the upstream of a `name`, `name@alias` or `name@version`; None where nobody has it."""
        return self.by_model.get(model.partition("@")[0], self.own)


class Upstreams:
    """The upstreams of all destinations, from `connect` on; `update` replaces the pools."""

    def __init__(self, settings: GatewaySettings, metrics: Metrics, resolve: Resolve) -> None:
        self._settings = settings
        self._metrics = metrics
        self._resolve = resolve
        self._session: aiohttp.ClientSession | None = None
        self._by_name: dict[str, Upstream] = {}
        self._branches: dict[Backend, Branch] = {}
        self._upkeep: asyncio.TaskGroup | None = None
        self._tasks: dict[str, list[asyncio.Task[None]]] = {}

    def __iter__(self) -> Iterator[Upstream]:
        return iter(self._by_name.values())

    @property
    def branches(self) -> Sequence[Branch]:
        return list(self._branches.values())

    @property
    def collections(self) -> Upstream | None:
        """The process that has the collections, where it is apart."""
        return self._by_name.get(COLLECTIONS)

    def of(self, service: Backend) -> Branch:
        return self._branches[service]

    def connect(self, session: aiohttp.ClientSession, pools: Sequence[Pool]) -> None:
        """Create the upstreams, which ask through the session; none is looked up yet."""
        self._session = session
        self._publish([self._new(destination) for destination in destinations(self._settings, pools)])

    async def look_up_and_probe(self) -> None:
        await asyncio.gather(*(upstream.addresses.refresh() for upstream in self))
        await asyncio.gather(*(upstream.probe() for upstream in self))

    async def keep_up(self) -> None:
        """Look up every upstream's name and probe its addresses, each at its own interval, until cancelled."""
        async with asyncio.TaskGroup() as self._upkeep:
            for upstream in self:
                self._keep_up(upstream)
            await asyncio.Event().wait()

    async def follow(self, pools: FollowedFile[PoolFile]) -> None:
        """Take over the pools of the file whenever it changes, until cancelled."""
        async for _ in changes(pools.reload, self._settings.pools_poll_s, "pools"):
            await self.update(pools.content.pools)
            log.info("pools_reloaded", pools=len(pools.content.pools))

    async def update(self, pools: Sequence[Pool]) -> None:
        """Take over the pools of a changed file.

        A pool that stays keeps its addresses that stay. The requests of one that goes are answered. A new one is looked
        up before it gets any.
        """
        wanted = destinations(self._settings, pools)
        staying = {one.name for one in wanted} & self._by_name.keys()
        for name in self._by_name.keys() - staying:
            self._let_go(self._by_name[name])
        upstreams = [self._by_name.get(one.name) or self._new(one) for one in wanted]
        changed = [
            upstream
            for upstream, one in zip(upstreams, wanted, strict=True)
            if upstream.name not in staying or upstream.destination.urls != one.urls
        ]
        for upstream, one in zip(upstreams, wanted, strict=True):
            upstream.become(one)
        try:
            async with asyncio.timeout(FIRST_LOOK_S):
                await asyncio.gather(*(upstream.look_up_and_probe() for upstream in changed))
        except TimeoutError:
            log.warning("pools_not_looked_up", pools=[upstream.name for upstream in changed], seconds=FIRST_LOOK_S)
        self._publish(upstreams)
        for upstream in upstreams:
            if upstream.name not in staying:
                self._keep_up(upstream)

    def _new(self, destination: Destination) -> Upstream:
        assert self._session is not None, "the gateway has started"
        policy = EjectionPolicy(unanswered_probes=self._settings.unanswered_probes)
        addresses = Addresses(destination.urls, resolve=self._resolve, policy=policy)
        return Upstream(destination, addresses, self._session, self._settings, self._metrics)

    def _publish(self, upstreams: Sequence[Upstream]) -> None:
        """Let requests be sent to these upstreams and no others from now on."""
        self._by_name = {upstream.name: upstream for upstream in upstreams}
        self._branches = {service: _branch(service, upstreams) for service in get_args(Backend)}

    def _keep_up(self, upstream: Upstream) -> None:
        """Begin an upstream's upkeep, each part in its own task, so that nobody waits for an upstream that hangs."""
        assert self._upkeep is not None, "the gateway has started"
        self._tasks[upstream.name] = [
            self._upkeep.create_task(_repeat(upstream.addresses.refresh, self._settings.dns_refresh_s)),
            self._upkeep.create_task(_repeat(upstream.probe, self._settings.probe_interval_s)),
        ]

    def _let_go(self, upstream: Upstream) -> None:
        for task in self._tasks.pop(upstream.name):
            task.cancel()
        upstream.leave_metrics()


def _branch(service: Backend, upstreams: Sequence[Upstream]) -> Branch:
    of_service = [upstream for upstream in upstreams if upstream.destination.service == service]
    by_kind = {upstream.destination.kind: upstream for upstream in of_service}
    pools = tuple(upstream for upstream in of_service if upstream.destination.kind == "pool")
    return Branch(
        service,
        by_kind.get("service") or by_kind.get("review"),
        pools,
        by_kind.get("canary"),
        by_model={model: pool for pool in pools for model in pool.destination.models},
        by_task={task: pool for pool in pools for task in pool.destination.tasks},
    )


async def _repeat(work: Callable[[], Awaitable[None]], interval_s: float) -> None:
    while True:
        await asyncio.sleep(interval_s)
        await work()
