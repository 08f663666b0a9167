from collections.abc import AsyncIterator

import pytest

from services.core.errors import InvalidRequest
from services.core.images.fetch import FetchLimits, ImageFetcher
from tests.core.hostile_server import HostileServer, NameServer, hostile_server, redirect, response
from tests.core.image_fetching import (
    IMAGE,
    PRIVATE,
    PUBLIC,
    address_of,
    failure,
    fetching,
    is_allowed,
    names,
    private_server,
    public_server,
)


@pytest.fixture
async def server() -> AsyncIterator[HostileServer]:
    async with public_server() as server:
        yield server


@pytest.fixture
async def secret(server: HostileServer) -> AsyncIterator[HostileServer]:
    async with private_server(server.port) as secret:
        yield secret


@pytest.mark.parametrize(
    "location",
    [
        "http://private.example:{port}/image",
        "http://127.0.0.1:{port}/image",
        "//127.0.0.1:{port}/image",
        "http://[::ffff:127.0.0.1]:{port}/image",
        "http://2130706433:{port}/image",
        "http://images.example@127.0.0.1:{port}/image",
        "http://images.example:22/",
        "file:///etc/passwd",
        "gopher://images.example:{port}/",
        "http://images.example:{port}\\@127.0.0.1:{port}/image",
        "http://[::1",
    ],
)
async def test_a_redirect_is_judged_like_the_url_itself(
    server: HostileServer, secret: HostileServer, location: str
) -> None:
    server.answers["/redirect"] = redirect(location.format(port=server.port))
    async with fetching(server) as fetcher:
        assert isinstance(await failure(fetcher, address_of(server, "/redirect")), InvalidRequest)


async def test_a_redirect_to_another_port_is_not_dialled(server: HostileServer) -> None:
    async with hostile_server(PUBLIC) as other, fetching(server) as fetcher:
        other.answers["/image"] = response(IMAGE)
        server.answers["/redirect"] = redirect(f"http://images.example:{other.port}/image")
        error = await failure(fetcher, address_of(server, "/redirect"))
        assert error.code == "image_url_not_allowed"
        assert other.num_connections == 0


@pytest.mark.parametrize(
    "url",
    [
        "http://user@images.example:{port}/image",
        "http://user:password@images.example:{port}/image",
        "http://images.example:{port}\\@images.example:{port}/image",
        "http://images.example:{port}/image file",
        "http://images.example:{port}/image\r\nHost: private.example",
        "http://2130706434:{port}/image",
        "http://0x7f.0.0.2:{port}/image",
        "http://0177.0.0.2:{port}/image",
        "http://127.2:{port}/image",
        "http://localhost:{port}/image",
        "http://images.localhost:{port}/image",
        "http://[::1%25lo]:{port}/image",
        "http://images.example:1/image",
        "http://images.example:{port}0000/image",
        "ftp://images.example:{port}/image",
        "file:///etc/passwd",
        "http://",
        "images.example",
        "",
    ],
)
async def test_some_urls_are_refused_wherever_they_lead(server: HostileServer, url: str) -> None:
    """Here every name leads to the public server, and every address would be allowed."""

    async def resolve(host: str) -> list[str]:
        return [PUBLIC]

    limits = FetchLimits(allowed_ports=frozenset({server.port}))
    fetcher = ImageFetcher(limits, resolve=resolve, is_allowed=lambda _: True)
    assert (await failure(fetcher, url.format(port=server.port))).code == "image_url_not_allowed"
    assert server.num_connections == 0
    await fetcher.close()


@pytest.mark.parametrize(
    "url",
    [
        "http://127.0.0.1:{port}/image",
        "http://127.0.0.1.:{port}/image",
        "http://127.1:{port}/image",
        "http://127.0.1:{port}/image",
        "http://0177.0.0.1:{port}/image",
        "http://0x7f.0.0.1:{port}/image",
        "http://0x7f.1:{port}/image",
        "http://0x7f000001:{port}/image",
        "http://017700000001:{port}/image",
        "http://2130706433:{port}/image",
        "http://00000127.0.0.1:{port}/image",
        "http://0:{port}/image",
        "http://0.0.0.0:{port}/image",
        "http://[::1]:{port}/image",
        "http://[::]:{port}/image",
        "http://[0:0:0:0:0:0:0:1]:{port}/image",
        "http://[::ffff:127.0.0.1]:{port}/image",
        "http://[::ffff:7f00:1]:{port}/image",
        "http://[::127.0.0.1]:{port}/image",
        "http://[::1%25lo]:{port}/image",
        "http://[fe80::1%25eth0]:{port}/image",
        "http://[64:ff9b::7f00:1]:{port}/image",
        "http://[2002:7f00:1::]:{port}/image",
        "http://[fd00:ec2::254]:{port}/image",
        "http://①②⑦.⓪.⓪.①:{port}/image",
        "http://127。0。0。1:{port}/image",
        "http://１２７.0.0.1:{port}/image",
        "http://%31%32%37.0.0.1:{port}/image",
        "http://localhost:{port}/image",
        "http://LOCALHOST.:{port}/image",
        "http://ｌｏｃａｌｈｏｓｔ:{port}/image",
        "http://any.localhost:{port}/image",
        "http://private.example:{port}/image",
        "http://unknown.example:{port}/image",
        "http://169.254.169.254:{port}/latest/meta-data/",
        "http://100.100.100.200:{port}/",
        "http://images.example@127.0.0.1:{port}/image",
        "http://images.example:{port}@127.0.0.1:{port}/image",
        "http://images.example%40127.0.0.1:{port}/image",
        "http://images.example\\@127.0.0.1:{port}/image",
        "http:\\\\127.0.0.1:{port}/image",
        "http://127.0.0.1:{port}#@images.example:{port}/image",
        "http://127.0.0.1:{port}?@images.example:{port}/image",
        "http:///127.0.0.1:{port}/image",
        "http:127.0.0.1:{port}/image",
        "http://127.0.0.1\t:{port}/image",
        "http://images.example\n.private.example:{port}/image",
        "https://127.0.0.1:{port}/image",
    ],
)
async def test_no_spelling_of_a_private_address_is_dialled(
    server: HostileServer, secret: HostileServer, url: str
) -> None:
    async with fetching(server) as fetcher:
        assert isinstance(await failure(fetcher, url.format(port=server.port)), InvalidRequest)


@pytest.mark.parametrize(
    "url",
    [
        "http://localhost:{port}/image",
        "http://2130706433:{port}/image",
        "http://0x7f.1:{port}/image",
        "http://127.1:{port}/image",
        "http://①②⑦.⓪.⓪.①:{port}/image",
        "http://[::1]:{port}/image",
    ],
)
async def test_the_systems_own_resolver_is_judged_too(server: HostileServer, secret: HostileServer, url: str) -> None:
    fetcher = ImageFetcher(FetchLimits(allowed_ports=frozenset({server.port})), is_allowed=is_allowed)
    await failure(fetcher, url.format(port=server.port))
    await fetcher.close()


async def test_by_default_no_address_of_this_machine_is_public(server: HostileServer) -> None:
    fetcher = ImageFetcher(FetchLimits(allowed_ports=frozenset({server.port})), resolve=names())
    for host in (PUBLIC, "images.example"):
        await failure(fetcher, f"http://{host}:{server.port}/image")
    assert server.requests == []
    await fetcher.close()


async def test_only_web_ports_are_dialled_by_default() -> None:
    assert FetchLimits().allowed_ports == {80, 443}
    fetcher = ImageFetcher(FetchLimits(), resolve=names(), is_allowed=is_allowed)
    assert "port 6379 is not allowed" in (await failure(fetcher, "http://images.example:6379/")).message
    await fetcher.close()


@pytest.mark.parametrize("addresses", [[PUBLIC, PRIVATE], [PRIVATE, PUBLIC], [PUBLIC, "::1"], []])
async def test_one_private_address_among_the_answers_spoils_them_all(
    server: HostileServer, secret: HostileServer, addresses: list[str]
) -> None:
    async with fetching(server, NameServer(images_example=[addresses])) as fetcher:
        await failure(fetcher, address_of(server))
    assert server.requests == []


async def test_the_address_that_was_judged_is_the_one_that_is_dialled(
    server: HostileServer, secret: HostileServer
) -> None:
    resolve = NameServer(images_example=[[PUBLIC], [PRIVATE]])
    async with fetching(server, resolve) as fetcher:
        assert await fetcher.fetch(address_of(server)) == IMAGE
        assert resolve.asked == ["images.example"]
        await failure(fetcher, address_of(server))


async def test_a_name_is_judged_anew_after_a_redirect_to_itself(server: HostileServer, secret: HostileServer) -> None:
    server.answers["/redirect"] = redirect("/image")
    async with fetching(server, NameServer(images_example=[[PUBLIC], [PRIVATE]])) as fetcher:
        await failure(fetcher, address_of(server, "/redirect"))
    assert len(server.requests) == 1


async def test_a_dead_and_an_unknown_and_a_private_host_are_answered_alike(server: HostileServer) -> None:
    async with fetching(server) as fetcher, hostile_server(PUBLIC) as gone:
        messages = {
            (await failure(fetcher, f"http://{host}:{server.port}/image")).message
            for host in ("unknown.example", "private.example")
        }
    gone_fetcher = ImageFetcher(
        FetchLimits(allowed_ports=frozenset({gone.port})), resolve=names(), is_allowed=is_allowed
    )
    messages.add((await failure(gone_fetcher, address_of(gone))).message)
    await gone_fetcher.close()
    assert len(messages) == 1
