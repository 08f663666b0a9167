"""The addresses of one service: looked up periodically; the least busy one is chosen, failing ones are ejected.

Requests with the same prefix of a prompt go to the same address as long as its load is within a bound of the others',
then to the next in an order that the prefix has (rendezvous hashing, whose order no address that comes or goes changes,
with the bounded loads of Mirrokni, Thorup and Zadimoghaddam, Consistent Hashing with Bounded Loads, SODA 2018). All
gateways find the same order.

A host name may stand for several addresses (a headless Kubernetes service); each is an instance of its own. One that
fails several times in a row is ejected; after a while one request at a time probes it, and success brings it back
while failure ejects it for longer. The last address in service is never ejected.

The system still accepts connections for a process that hangs, so requests would wait there until their deadlines. An
address whose readiness probes time out several times in a row counts as hung: it gets no requests, even where it is
the only one, and requests that wait for it are ended. The next probe that is answered brings it back.
"""

import asyncio
import math
import random
import socket
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from hashlib import blake2b
from urllib.parse import SplitResult, urlsplit

import structlog

from services.core.backoff import backoff_s

# A host name and a port in, IP addresses out.
Resolve = Callable[[str, int], Awaitable[list[str]]]

# Requests that an instance is sent at a time before it has announced its permits.
FIRST_PERMITS = 32
DEFAULT_PORTS = {"http": 80, "https": 443}
# ε of the bounded loads: the share over the mean of requests that an address may have before the next one of a prefix
# is sent elsewhere. More keeps prefixes together and less spreads a popular one; with 1, a service of two addresses has
# no bound at all, while with a half at most three in four requests are at one of them.
EXCESS = 0.5

log = structlog.get_logger(__name__)


@dataclass(frozen=True)
class EjectionPolicy:
    """`failures` in a row eject for `first_s` seconds, doubled by each failed probe up to `longest_s`.

    `unanswered_probes` readiness probes in a row that time out make an address count as hung.
    """

    failures: int = 3
    first_s: float = 1.0
    longest_s: float = 60.0
    unanswered_probes: int = 5


@dataclass(eq=False)
class Address:
    """One instance of a service and how it has fared.

    `url` is what is connected to (an IP address), `authority` the configured host and port, for the Host header;
    `tls_name` is the name that its certificate must carry, None for plain HTTP. `ejected_until` is a reading of the
    clock, None for an address in service. `is_ready` is the last answer of its `/readyz`, `unanswered_probes` the
    number of probes that have timed out since the last answer of any kind, `permits` the number of concurrent requests
    that it last announced.
    """

    url: str
    authority: str
    tls_name: str | None
    outstanding: int = 0
    failures: int = 0
    ejections: int = 0
    ejected_until: float | None = None
    is_probed: bool = False
    is_ready: bool = True
    permits: int = FIRST_PERMITS
    unanswered_probes: int = 0
    is_hung: bool = False
    leases: set["Lease"] = field(default_factory=set)

    def is_usable(self, now: float) -> bool:
        return self.ejected_until is None or (now >= self.ejected_until and not self.is_probed)

    def give_up(self) -> None:
        """Tell everything that waits for this address that it hangs."""
        for lease in list(self.leases):
            if lease.on_hung is not None:
                lease.on_hung()


@dataclass(eq=False, slots=True)
class Lease:
    """One attempt's hold on an address; `is_probe` for the attempt that may bring an ejected address back.

    `on_hung` is called where the address is found to hang meanwhile.
    """

    address: Address
    is_probe: bool
    on_hung: Callable[[], object] | None = None


async def resolve_host(host: str, port: int) -> list[str]:
    """Return the IP addresses of a name. Raises OSError where it has none.

    Only IPv4 where there is any: an instance with both must not count twice, and `localhost` often names an IPv6
    address on which nothing listens.
    """
    found = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)
    has_ipv4 = any(family == socket.AF_INET for family, *_ in found)
    return sorted({str(ip) for family, _, _, _, (ip, *_) in found if family == socket.AF_INET or not has_ipv4})


class Addresses:
    """A service's addresses: `choose` begins an attempt, `release` ends it, `succeeded` or `failed` is its outcome."""

    def __init__(
        self,
        base_urls: Sequence[str],
        *,
        resolve: Resolve = resolve_host,
        policy: EjectionPolicy | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.set_base_urls(base_urls)
        self._resolve = resolve
        self._policy = policy or EjectionPolicy()
        self._clock = clock
        # Called with each address as it is ejected.
        self.on_ejection: Callable[[Address], None] = lambda address: None
        self._addresses: list[Address] = []

    def __iter__(self) -> Iterator[Address]:
        return iter(self._addresses)

    def set_base_urls(self, base_urls: Sequence[str]) -> None:
        """Set the URLs that `refresh` looks up from then on."""
        self._bases = [urlsplit(base_url) for base_url in base_urls]

    @property
    def is_configured(self) -> bool:
        """Whether there is a name to look up."""
        return bool(self._bases)

    @property
    def are_several(self) -> bool:
        return len(self._addresses) > 1

    @property
    def has_ready(self) -> bool:
        """Whether any address, ejected or not, last reported ready."""
        return any(address.is_ready for address in self._addresses)

    @property
    def num_ready(self) -> int:
        """The number of addresses that last reported ready and are not ejected; those that hang did not report."""
        return sum(address.is_ready and address.ejected_until is None for address in self._addresses)

    @property
    def num_permits(self) -> int:
        """The sum of the ready addresses' permits; one address's where none is ready."""
        return sum(address.permits for address in self._addresses if address.is_ready) or FIRST_PERMITS

    async def refresh(self) -> None:
        """Look up every name; an address that stays keeps its record, one that is gone gets no new requests."""
        looked_up = await asyncio.gather(*(self._look_up(base) for base in self._bases))
        known = {(address.url, address.authority): address for address in self._addresses}
        found = {address.url: address for addresses in looked_up for address in addresses}
        self._addresses = [known.get((address.url, address.authority), address) for address in found.values()]

    async def _look_up(self, base: SplitResult) -> list[Address]:
        host, port = base.hostname or "", base.port or DEFAULT_PORTS[base.scheme]
        try:
            ips = await self._resolve(host, port)
        except (OSError, UnicodeError) as error:
            # A brief outage of the name server must not take the service down.
            log.warning("service_name_unknown", host=host, error=str(error))
            return [address for address in self._addresses if address.authority == base.netloc]
        return [
            Address(
                url=f"{base.scheme}://{f'[{ip}]' if ':' in ip else ip}:{port}",
                authority=base.netloc,
                tls_name=host if base.scheme == "https" else None,
            )
            for ip in ips
        ]

    def choose(self, avoid: Address | None = None, prefix: bytes | None = None) -> Lease | None:
        """Lease the usable address with the fewest outstanding requests, any of several; None where none answers.

        A prefix of a prompt has an address of its own, which is preferred to that while its load is within the bound.
        One that is not ready (loading, draining), and `avoid`, are taken only where there is no other. Where all are
        ejected, the one whose time is over soonest is tried: an attempt that may fail is better than none.
        """
        answering = [address for address in self._addresses if not address.is_hung]
        addresses = [address for address in answering if address is not avoid] or answering
        if not addresses:
            return None
        now = self._clock()
        if usable := [address for address in addresses if address.is_usable(now)]:
            ready = [address for address in usable if address.is_ready] or usable
            # One whose time is over is probed soon, also where no prefix is its own.
            is_one_due = any(address.ejected_until is not None for address in ready)
            chosen = _least_busy(ready) if prefix is None or is_one_due else _of_prefix(prefix, ready)
        else:
            chosen = min(addresses, key=lambda address: address.ejected_until or now)
        chosen.outstanding += 1
        is_probe = chosen.ejected_until is not None
        chosen.is_probed = chosen.is_probed or is_probe
        lease = Lease(chosen, is_probe)
        chosen.leases.add(lease)
        return lease

    def has_other(self, address: Address) -> bool:
        """Whether there is another address that does not hang."""
        return any(other is not address and not other.is_hung for other in self._addresses)

    def release(self, lease: Lease) -> None:
        """End an attempt, whatever its outcome."""
        lease.address.outstanding -= 1
        lease.address.leases.discard(lease)
        if lease.is_probe:
            lease.address.is_probed = False

    def succeeded(self, address: Address) -> None:
        address.failures = 0
        address.ejections = 0
        address.ejected_until = None

    def failed(self, address: Address) -> None:
        """Note a refused connection or a server error; enough in a row, or one in a probe, eject the address."""
        now = self._clock()
        address.failures += 1
        if address.ejected_until is not None and now < address.ejected_until:
            # Sent before the ejection, so this failure is no news.
            return
        is_due = address.ejected_until is not None or address.failures >= self._policy.failures
        has_others = any(
            other.ejected_until is None and not other.is_hung for other in self._addresses if other is not address
        )
        if not is_due or not has_others:
            return
        address.ejections += 1
        away_s = backoff_s(address.ejections, self._policy.first_s, self._policy.longest_s)
        address.ejected_until = now + away_s
        log.warning("address_ejected", address=address.url, seconds=away_s)
        self.on_ejection(address)

    def answered(self, address: Address) -> None:
        """Note an answer of any kind, or a refused connection, which the next request would also meet at once."""
        address.unanswered_probes = 0
        if address.is_hung:
            address.is_hung = False
            log.info("address_answers_again", address=address.url)

    def left_unanswered(self, address: Address) -> None:
        """Note a readiness probe that timed out; after enough in a row no request waits for this address."""
        address.unanswered_probes += 1
        if address.is_hung or address.unanswered_probes < self._policy.unanswered_probes:
            return
        address.is_hung = True
        log.warning("address_hangs", address=address.url, unanswered_probes=address.unanswered_probes)
        self.on_ejection(address)
        address.give_up()


def _least_busy(addresses: Sequence[Address]) -> Address:
    fewest = min(address.outstanding for address in addresses)
    return random.choice([address for address in addresses if address.outstanding == fewest])


def _of_prefix(prefix: bytes, addresses: Sequence[Address]) -> Address:
    """Return the first address in the prefix's order whose load is within the bound."""
    num_outstanding = 1 + sum(address.outstanding for address in addresses)
    bound = math.ceil((1 + EXCESS) * num_outstanding / len(addresses))
    bounded = [address for address in addresses if address.outstanding < min(bound, address.permits)]
    return max(bounded, key=partial(_rank, prefix), default=None) or _least_busy(addresses)


def _rank(prefix: bytes, address: Address) -> bytes:
    return blake2b(address.url.encode(), key=prefix, digest_size=8).digest()
