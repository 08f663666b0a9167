"""Images from URLs in requests, fetched without giving clients access to our network (SSRF).

Import this module only where image URLs are enabled: nothing else in a service needs an HTTP client.
"""

import asyncio
import ipaddress
import re
import socket
import ssl
from collections.abc import Awaitable, Callable, Hashable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network
from typing import Any

import aiohttp
from aiohttp.abc import AbstractResolver, ResolveResult
from yarl import URL

from services.core.errors import FoveaError, InvalidRequest, TooLarge
from services.core.exchange import current_caller
from services.core.fair_gate import FairGate

Address = IPv4Address | IPv6Address

# Written out, since the standard library's definition of global addresses changed between releases.
_NOT_PUBLIC_V4 = tuple(
    IPv4Network(network)
    for network in (
        "0.0.0.0/8",  # this network
        "10.0.0.0/8",  # private
        "100.64.0.0/10",  # carrier-grade NAT, and one cloud's metadata
        "127.0.0.0/8",  # loopback
        "168.63.129.16/32",  # one cloud's host service, reachable from each of its machines
        "169.254.0.0/16",  # link-local, and most clouds' metadata
        "172.16.0.0/12",  # private
        "192.0.0.0/24",  # protocol assignments
        "192.0.2.0/24",  # documentation
        "192.88.99.0/24",  # 6to4 relays
        "192.168.0.0/16",  # private
        "198.18.0.0/15",  # benchmarks
        "198.51.100.0/24",  # documentation
        "203.0.113.0/24",  # documentation
        "224.0.0.0/4",  # multicast
        "240.0.0.0/4",  # reserved, broadcast
    )
)
# The range of all allocated addresses; loopback, unique local, link-local and multicast are outside.
_GLOBAL_UNICAST_V6 = IPv6Network("2000::/3")
_NOT_PUBLIC_V6 = tuple(
    IPv6Network(network)
    for network in (
        "2001::/23",  # protocol assignments, Teredo
        "2001:db8::/32",  # documentation
        "2002::/16",  # 6to4, which may lead to any IPv4 address
        "3fff::/20",  # documentation
    )
)
_NAT64 = IPv6Network("64:ff9b::/96")


def is_public(address: Address) -> bool:
    """Whether the address is a public unicast one. An IPv4 address within IPv6 (mapped, NAT64) is checked as IPv4."""
    if isinstance(address, IPv4Address):
        return not any(address in network for network in _NOT_PUBLIC_V4)
    if address.scope_id is not None:
        return False
    if address.ipv4_mapped is not None:
        return is_public(address.ipv4_mapped)
    if address in _NAT64:
        return is_public(IPv4Address(int(address) & 0xFFFFFFFF))
    return address in _GLOBAL_UNICAST_V6 and not any(address in network for network in _NOT_PUBLIC_V6)


USER_AGENT = "fovea-image-fetcher"
NUM_RESOLVER_THREADS = 8

_REDIRECTS = frozenset({301, 302, 303, 307, 308})
# Numbers that the C library would read as an address although they do not look like one: 127.1, 0x7f.1, 2130706433.
_NUMBER = re.compile(r"0x[0-9a-f]*|[0-9]+")
_NEVER_IN_A_URL = re.compile(r"[\x00-\x20\x7f\\]")

# One sentence for all cases, so that an answer does not reveal which names and ports exist in our network.
_UNREACHABLE = "The image URL could not be fetched: its host is not public or not reachable."

# The addresses of a host; an OSError where there are none.
Resolve = Callable[[str], Awaitable[Sequence[str]]]


@dataclass(frozen=True)
class FetchLimits:
    """Limits of fetching. `timeout_s` bounds a whole fetch, name look-ups and redirects included, `stall_timeout_s` the
    time in which nothing arrives; waiting at the gate counts for neither. `allowed_hosts` may hold names and
    `.suffixes`; where it is empty, every host with public addresses is allowed."""

    max_image_bytes: int = 20 * 1024 * 1024
    timeout_s: float = 10.0
    stall_timeout_s: float = 5.0
    max_redirects: int = 3
    max_fetches: int = 64
    max_fetches_of_client: int = 32
    max_fetches_of_request: int = 16
    max_fetches_from_host: int = 8
    allowed_ports: frozenset[int] = frozenset({80, 443})
    allowed_hosts: frozenset[str] = frozenset()


class ImageFetcher:
    """Fetches from public addresses only; it connects to the very address that was checked.

    No proxy, cookie or credential is ever used. Made and closed inside one event loop. `resolve`, `is_allowed` and
    `ssl_context` are for networks (and tests) with names, ranges and certificates of their own.
    """

    def __init__(
        self,
        limits: FetchLimits,
        *,
        resolve: Resolve | None = None,
        is_allowed: Callable[[Address], bool] = is_public,
        ssl_context: ssl.SSLContext | None = None,
    ) -> None:
        self._limits = limits
        self._is_allowed = is_allowed
        self._gate = FairGate(limits.max_fetches)
        self._system = _SystemResolver()
        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(
                resolver=_GuardedResolver(resolve or self._system, is_allowed),
                use_dns_cache=False,
                socket_factory=self._create_socket,
                force_close=True,
                limit=0,
                ssl=ssl_context or True,
            ),
            cookie_jar=aiohttp.DummyCookieJar(),
            trust_env=False,
            auto_decompress=False,
            timeout=aiohttp.ClientTimeout(
                total=None, sock_connect=limits.stall_timeout_s, sock_read=limits.stall_timeout_s
            ),
            headers={"User-Agent": USER_AGENT, "Accept": "image/*", "Accept-Encoding": "identity"},
        )

    async def close(self) -> None:
        await self._session.close()
        self._system.close()

    async def fetch(self, url: str, *, param: str | None = None) -> bytes:
        """Fetch the body of a 200 answer, whatever its content type.

        Raises InvalidRequest with code `image_url_not_allowed` for a URL that is refused without fetching and
        `image_fetch_failed` for one that did not deliver, TooLarge for a body over `max_image_bytes`; `param` is
        the request field that they blame.
        """
        limits = self._limits
        try:
            parsed = _parse(url)
            async with self._gate.holding(within=self._counters(parsed)), asyncio.timeout(limits.timeout_s):
                return await self._follow(parsed)
        except TimeoutError:
            raise _failed(
                f"The image URL took longer than {limits.timeout_s:g} s, or sent nothing for "
                f"{limits.stall_timeout_s:g} s.",
                param,
            ) from None
        except (aiohttp.ClientError, OSError, ValueError):
            raise _failed(_UNREACHABLE, param) from None
        except FoveaError as error:
            error.param = param
            raise

    def _counters(self, url: URL) -> dict[Hashable, int]:
        """Return what else a fetch counts for, with the limit of each: slow hosts delay only the fetches from them."""
        caller = current_caller()
        return {
            ("client", caller.client): self._limits.max_fetches_of_client,
            ("request", id(caller)): self._limits.max_fetches_of_request,
            ("host", url.raw_host): self._limits.max_fetches_from_host,
        }

    async def _follow(self, url: URL) -> bytes:
        for _ in range(self._limits.max_redirects + 1):
            self._check(url)
            async with self._session.get(url, allow_redirects=False) as response:
                location = response.headers.get("Location")
                if response.status not in _REDIRECTS or location is None:
                    return await self._read(response)
            url = url.join(_parse(location))
        raise _failed(f"The image URL redirects more than {self._limits.max_redirects} times.")

    def _check(self, url: URL) -> None:
        """Refuse what can be judged by the URL alone; addresses are checked on connecting."""
        if url.scheme not in ("http", "https"):
            raise _refused("Only http and https image URLs are accepted.")
        if "@" in url.raw_authority:
            raise _refused("An image URL must not contain a user name or password.")
        host = (url.raw_host or "").rstrip(".").lower()
        if not host or "%" in host or host == "localhost" or host.endswith(".localhost"):
            raise _refused("The image URL has no public host.")
        if url.port not in self._limits.allowed_ports:
            raise _refused(f"The image URL's port {url.port} is not allowed.")
        if _NUMBER.fullmatch(host.rpartition(".")[2]) and not _is_dotted_address(host):
            raise _refused("The image URL's host is a number but not a valid address.")
        if not self._is_listed(host):
            raise _refused("The image URL's host is not among those allowed.")

    def _is_listed(self, host: str) -> bool:
        allowed = self._limits.allowed_hosts
        return not allowed or any(host.endswith(name) if name.startswith(".") else host == name for name in allowed)

    def _create_socket(self, address_info: Any) -> socket.socket:
        """The last check: every address, whether resolved or written in the URL, passes here before connecting."""
        family, kind, protocol, _, destination = address_info
        if not self._is_allowed(ipaddress.ip_address(destination[0])):
            raise PermissionError("not a public address")
        return socket.socket(family, kind, protocol)

    async def _read(self, response: aiohttp.ClientResponse) -> bytes:
        max_bytes = self._limits.max_image_bytes
        if response.status != 200:
            raise _failed(f"The image URL responded with status {response.status}.")
        if response.headers.get("Content-Encoding", "identity").lower() != "identity":
            raise _failed("The image URL responded with a compressed body, which was not requested.")
        if response.content_length is not None and response.content_length > max_bytes:
            raise TooLarge(f"The image has {response.content_length} bytes; the limit is {max_bytes} bytes.")
        body = bytearray()
        async for chunk in response.content.iter_any():
            body += chunk
            if len(body) > max_bytes:
                raise TooLarge(f"The image has more than {max_bytes} bytes, the limit.")
        return bytes(body)


class _GuardedResolver(AbstractResolver):
    """Gives the connector the very addresses that were checked; a single one that is not allowed fails the look-up."""

    def __init__(self, resolve: Resolve, is_allowed: Callable[[Address], bool]) -> None:
        self._resolve = resolve
        self._is_allowed = is_allowed

    async def resolve(
        self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_UNSPEC
    ) -> list[ResolveResult]:
        addresses = [ipaddress.ip_address(address) for address in await self._resolve(host)]
        if not addresses or not all(self._is_allowed(address) for address in addresses):
            raise PermissionError("not a public host")
        return [
            ResolveResult(
                hostname=host,
                host=str(address),
                port=port,
                family=socket.AF_INET if address.version == 4 else socket.AF_INET6,
                proto=socket.IPPROTO_TCP,
                flags=socket.AI_NUMERICHOST,
            )
            for address in addresses
        ]

    async def close(self) -> None:
        """Do nothing: the resolve function's owner closes it."""


class _SystemResolver:
    """Calls getaddrinfo on threads of its own: a slow name server must not hold up other work of the process."""

    def __init__(self) -> None:
        self._threads = ThreadPoolExecutor(NUM_RESOLVER_THREADS, thread_name_prefix="resolve")

    async def __call__(self, host: str) -> list[str]:
        return await asyncio.get_running_loop().run_in_executor(self._threads, _addresses_of, host)

    def close(self) -> None:
        self._threads.shutdown(wait=False, cancel_futures=True)


def _addresses_of(host: str) -> list[str]:
    answers = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
    return list(dict.fromkeys(str(destination[0]) for *_, destination in answers))


def _parse(url: str) -> URL:
    if _NEVER_IN_A_URL.search(url):
        raise _refused("The image URL contains a space, a control character or a backslash.")
    try:
        return URL(url)
    except ValueError:
        raise _refused("The image URL is malformed.") from None


def _is_dotted_address(host: str) -> bool:
    try:
        ipaddress.IPv4Address(host)
    except ValueError:
        return False
    return True


def _refused(message: str) -> InvalidRequest:
    return InvalidRequest(message, code="image_url_not_allowed")


def _failed(message: str, param: str | None = None) -> InvalidRequest:
    return InvalidRequest(message, param=param, code="image_fetch_failed")
