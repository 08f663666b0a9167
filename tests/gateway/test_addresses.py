"""The choice of an address for the next request, and the ejection of others."""

import math

import pytest

from gateway.addresses import EXCESS, Address, Addresses, EjectionPolicy, resolve_host
from tests.gateway.servers import Service, gateway, respond, serving, until

POLICY = EjectionPolicy(failures=3, first_s=10.0, longest_s=35.0)


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


class Names:
    """A name server that a test rewrites; a name it does not have is unknown."""

    def __init__(self, **ips: list[str]) -> None:
        self.ips = ips

    async def __call__(self, host: str, port: int) -> list[str]:
        if host not in self.ips:
            raise OSError(f"no such name: {host}")
        return self.ips[host]


async def addresses_of(num_addresses: int, clock: Clock) -> tuple[Addresses, list[Address]]:
    names = Names(embed=[f"10.0.0.{i}" for i in range(num_addresses)])
    addresses = Addresses(["http://embed:8103"], resolve=names, policy=POLICY, clock=clock)
    await addresses.refresh()
    return addresses, list(addresses)


def fail(addresses: Addresses, address: Address, times: int = POLICY.failures) -> None:
    for _ in range(times):
        addresses.failed(address)


def chosen(addresses: Addresses, times: int = 100) -> set[str]:
    """Return the addresses chosen for this number of requests, each ending before the next begins."""
    urls = set()
    for _ in range(times):
        lease = addresses.choose()
        assert lease is not None
        urls.add(lease.address.url)
        addresses.release(lease)
    return urls


async def test_the_address_with_the_fewest_outstanding_requests_is_chosen() -> None:
    addresses, known = await addresses_of(3, Clock())
    leases = [addresses.choose() for _ in range(6)]
    assert [address.outstanding for address in known] == [2, 2, 2]
    (freed,) = [lease for lease in leases[:1] if lease is not None]
    addresses.release(freed)
    following = addresses.choose()
    assert following is not None
    assert following.address is freed.address


async def test_equally_busy_addresses_all_get_requests() -> None:
    addresses, known = await addresses_of(3, Clock())
    assert chosen(addresses) == {address.url for address in known}


async def test_an_address_to_be_avoided_is_taken_only_where_there_is_no_other() -> None:
    addresses, (first, second) = await addresses_of(2, Clock())
    for _ in range(10):
        lease = addresses.choose(avoid=first)
        assert lease is not None
        assert lease.address is second
    addresses, (only,) = await addresses_of(1, Clock())
    lease = addresses.choose(avoid=only)
    assert lease is not None
    assert lease.address is only


def of_prefix(addresses: Addresses, number: int, *, avoid: Address | None = None) -> str:
    """Return the address of a prefix's request, which ends at once."""
    lease = addresses.choose(avoid, prefix=b"%d" % number)
    assert lease is not None
    addresses.release(lease)
    return lease.address.url


async def test_a_prefix_has_the_same_address_for_every_gateway_and_prefixes_are_spread_evenly() -> None:
    addresses, known = await addresses_of(4, Clock())
    others, _ = await addresses_of(4, Clock())
    homes = [of_prefix(addresses, number) for number in range(400)]
    assert homes == [of_prefix(others, number) for number in range(400)]
    assert all(60 < homes.count(address.url) < 140 for address in known)


async def test_an_address_that_goes_or_comes_moves_only_its_own_share_of_the_prefixes() -> None:
    names = Names(embed=[f"10.0.0.{i}" for i in range(4)])
    addresses = Addresses(["http://embed:8103"], resolve=names)
    await addresses.refresh()
    before = [of_prefix(addresses, number) for number in range(400)]
    gone = f"http://{names.ips['embed'].pop()}:8103"
    await addresses.refresh()
    without = [of_prefix(addresses, number) for number in range(400)]
    assert all(now == then for now, then in zip(without, before, strict=True) if then != gone)
    # What it had is spread over all that are left.
    assert len({now for now, then in zip(without, before, strict=True) if then == gone}) == 3
    names.ips["embed"].append("10.0.0.3")
    await addresses.refresh()
    assert [of_prefix(addresses, number) for number in range(400)] == before


async def test_a_prefix_that_many_ask_for_spreads_over_the_addresses_and_none_gets_more_than_its_bound() -> None:
    addresses, known = await addresses_of(4, Clock())
    for num_outstanding in range(1, 101):
        assert addresses.choose(prefix=b"popular") is not None
        bound = math.ceil((1 + EXCESS) * num_outstanding / 4)
        assert max(address.outstanding for address in known) <= bound
    assert sum(address.outstanding > 20 for address in known) == 3


async def test_a_prefix_waits_at_no_address_that_has_no_permit_left_while_another_has() -> None:
    addresses, known = await addresses_of(2, Clock())
    home = next(address for address in known if address.url == of_prefix(addresses, 0))
    home.permits = 2
    leases = [addresses.choose(prefix=b"0") for _ in range(10)]
    assert home.outstanding == 2
    assert all(lease is not None for lease in leases)


async def test_a_prefix_whose_address_is_avoided_not_ready_or_ejected_has_a_second_one() -> None:
    addresses, known = await addresses_of(4, Clock())
    for number in range(20):
        home = next(address for address in known if address.url == of_prefix(addresses, number))
        second = of_prefix(addresses, number, avoid=home)
        assert second != home.url
        home.is_ready = False
        assert of_prefix(addresses, number) == second
        home.is_ready = True
        fail(addresses, home)
        assert of_prefix(addresses, number) == second
        addresses.succeeded(home)
        assert of_prefix(addresses, number) == home.url


async def test_no_address_is_no_choice() -> None:
    addresses = Addresses(["http://unknown:1"], resolve=Names())
    await addresses.refresh()
    assert addresses.choose() is None


async def test_failures_in_a_row_eject_and_a_success_between_them_forgives() -> None:
    addresses, (first, second) = await addresses_of(2, Clock())
    fail(addresses, first, POLICY.failures - 1)
    addresses.succeeded(first)
    fail(addresses, first, POLICY.failures - 1)
    assert chosen(addresses) == {first.url, second.url}
    addresses.failed(first)
    assert chosen(addresses) == {second.url}


async def test_the_last_address_in_service_is_never_ejected() -> None:
    addresses, (first, second) = await addresses_of(2, Clock())
    fail(addresses, first)
    fail(addresses, second, 50)
    assert chosen(addresses) == {second.url}
    addresses, (only,) = await addresses_of(1, Clock())
    fail(addresses, only, 50)
    assert only.ejected_until is None


async def test_an_ejected_address_is_probed_by_one_request_and_comes_back_with_its_success() -> None:
    clock = Clock()
    addresses, (first, second) = await addresses_of(2, clock)
    fail(addresses, first)
    clock.now += POLICY.first_s
    held = [addresses.choose() for _ in range(6)]
    assert first.outstanding == 1
    assert second.outstanding == 5
    addresses.succeeded(first)
    for lease in held:
        if lease is not None and lease.address is first:
            addresses.release(lease)
    assert first.ejected_until is None
    assert chosen(addresses) == {first.url}


async def test_an_ejected_address_is_probed_soon_also_where_all_requests_have_the_prefix_of_another() -> None:
    clock = Clock()
    addresses, known = await addresses_of(2, clock)
    home = next(address for address in known if address.url == of_prefix(addresses, 0))
    (other,) = [address for address in known if address is not home]
    fail(addresses, other)
    assert of_prefix(addresses, 0) == home.url
    clock.now += POLICY.first_s
    held = [addresses.choose(prefix=b"0") for _ in range(2)]
    assert other.outstanding == 1
    addresses.succeeded(other)
    for lease in held:
        assert lease is not None
        addresses.release(lease)
    assert of_prefix(addresses, 0) == home.url


async def test_a_request_from_before_the_ejection_does_not_end_the_probe() -> None:
    clock = Clock()
    addresses, (first, second) = await addresses_of(2, clock)
    old = addresses.choose(avoid=second)
    assert old is not None
    fail(addresses, first)
    clock.now += POLICY.first_s
    second.outstanding = 10
    probe = addresses.choose()
    assert probe is not None
    assert probe.is_probe
    addresses.release(old)
    following = addresses.choose()
    assert following is not None
    assert following.address is second


async def test_each_failed_probe_ejects_for_longer_up_to_a_limit() -> None:
    clock = Clock()
    addresses, (first, _) = await addresses_of(2, clock)
    fail(addresses, first)
    times = []
    for _ in range(4):
        assert first.ejected_until is not None
        times.append(first.ejected_until - clock.now)
        clock.now = first.ejected_until
        addresses.failed(first)
    assert times == [10.0, 20.0, 35.0, 35.0]


async def test_failures_of_requests_sent_before_the_ejection_do_not_lengthen_it() -> None:
    clock = Clock()
    addresses, (first, _) = await addresses_of(2, clock)
    fail(addresses, first, 20)
    assert first.ejected_until == clock.now + POLICY.first_s


async def test_where_all_are_ejected_the_one_that_is_due_soonest_is_tried() -> None:
    clock = Clock()
    names = Names(embed=["10.0.0.1", "10.0.0.2", "10.0.0.3"])
    addresses = Addresses(["http://embed"], resolve=names, policy=POLICY, clock=clock)
    await addresses.refresh()
    first, second, _ = addresses
    fail(addresses, first)
    clock.now += 1
    fail(addresses, second)
    names.ips["embed"] = ["10.0.0.1", "10.0.0.2"]
    await addresses.refresh()
    assert chosen(addresses) == {first.url}


async def test_an_address_that_is_not_ready_is_chosen_only_where_none_is() -> None:
    addresses, (first, second) = await addresses_of(2, Clock())
    first.is_ready = False
    assert chosen(addresses) == {second.url}
    second.is_ready = False
    assert chosen(addresses) == {first.url, second.url}


async def test_new_addresses_join_old_ones_leave_and_those_that_stay_keep_their_record() -> None:
    names = Names(embed=["10.0.0.1", "10.0.0.2"])
    addresses = Addresses(["http://embed:8103"], resolve=names)
    await addresses.refresh()
    first, _ = addresses
    first.outstanding = 5
    names.ips["embed"] = ["10.0.0.1", "10.0.0.3"]
    await addresses.refresh()
    assert {address.url: address.outstanding for address in addresses} == {
        "http://10.0.0.1:8103": 5,
        "http://10.0.0.3:8103": 0,
    }


async def test_a_name_that_is_unknown_for_a_moment_keeps_its_addresses() -> None:
    names = Names(embed=["10.0.0.1"], spare=["10.0.0.2"])
    addresses = Addresses(["http://embed:8103", "http://spare:8103"], resolve=names)
    await addresses.refresh()
    del names.ips["embed"]
    names.ips["spare"] = ["10.0.0.3"]
    await addresses.refresh()
    assert [address.url for address in addresses] == ["http://10.0.0.1:8103", "http://10.0.0.3:8103"]


async def test_https_addresses_are_dialled_by_number_and_checked_by_name() -> None:
    addresses = Addresses(["https://embed.example"], resolve=Names(**{"embed.example": ["10.0.0.1", "fd00::1"]}))
    await addresses.refresh()
    assert [address.url for address in addresses] == ["https://10.0.0.1:443", "https://[fd00::1]:443"]
    assert {address.tls_name for address in addresses} == {"embed.example"}


async def test_localhost_is_its_ipv4_address() -> None:
    assert await resolve_host("localhost", 80) == ["127.0.0.1"]


@pytest.mark.parametrize("host", ["name.invalid", "x" * 64])
async def test_a_name_without_an_address_leaves_the_service_without_one(host: str) -> None:
    addresses = Addresses([f"http://{host}:1"])
    await addresses.refresh()
    assert list(addresses) == []


async def test_an_instance_that_appears_behind_the_name_gets_requests_and_one_that_goes_gets_no_more() -> None:
    """Two addresses of the loopback network play two pods behind a headless service."""
    old, new = Service(respond(b"old")), Service(respond(b"new"))
    names = Names(embed=["127.0.0.1"])
    async with serving(old) as url:
        port = int(url.rpartition(":")[2])
        async with (
            serving(new, host="127.0.0.2", port=port),
            gateway(resolve=names, embed_urls=f"http://embed:{port}", dns_refresh_s=0.01) as client,
        ):

            async def answer() -> bytes:
                async with client.post("/embed") as response:
                    return await response.read()

            async def is_new() -> bool:
                return await answer() == b"new"

            assert await answer() == b"old"
            names.ips["embed"] = ["127.0.0.1", "127.0.0.2"]
            await until(is_new)
            names.ips["embed"] = ["127.0.0.2"]

            async def old_is_left_alone() -> bool:
                num_before = len(old.requests)
                for _ in range(10):
                    await answer()
                return len(old.requests) == num_before

            await until(old_is_left_alone)
