import threading
from collections.abc import Iterator

from services.cli.doctor.findings import Finding, examine


def test_findings_come_in_the_order_of_the_checks() -> None:
    is_second_done = threading.Event()

    def first() -> Iterator[Finding]:
        is_second_done.wait()
        yield Finding("first", "ok", "found")

    def second() -> Iterator[Finding]:
        is_second_done.set()
        yield Finding("second", "ok", "found")

    assert [finding.topic for finding in examine({"first": first, "second": second})] == ["first", "second"]


def test_a_check_that_finds_nothing_adds_nothing() -> None:
    assert examine({"quiet": list}) == []


def test_a_check_that_breaks_is_a_failure_beside_what_the_others_find() -> None:
    def broken() -> Iterator[Finding]:
        yield Finding("broken", "ok", "found before")
        raise RuntimeError("no such luck")

    broke, other = examine({"broken": broken, "other": lambda: [Finding("other", "ok", "found")]})
    assert (broke.topic, broke.status) == ("broken", "failure")
    assert "no such luck" in broke.found
    assert other.status == "ok"


def test_a_check_that_takes_too_long_is_a_failure() -> None:
    never = threading.Event()

    def hangs() -> Iterator[Finding]:
        never.wait()
        yield Finding("hangs", "ok", "found")

    [late] = examine({"hangs": hangs}, limit_s=0.05)
    [remote] = examine({"hangs": hangs}, limit_s=0.05, addresses={"hangs": "FOVEA_REDIS_URL"})
    never.set()
    assert (late.status, late.found) == ("failure", "no answer within 0.05 s")
    assert remote.cure == "check the network and the address in FOVEA_REDIS_URL"
