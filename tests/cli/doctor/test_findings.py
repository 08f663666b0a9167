import threading
from collections.abc import Iterator, Mapping

import pytest
from typer.testing import CliRunner

from services.cli.doctor import command
from services.cli.doctor.findings import Finding, examine
from services.cli.doctor.installation import ASK_LIMIT_S


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


def test_a_check_with_a_limit_of_its_own_is_given_that_time() -> None:
    def slow() -> Iterator[Finding]:
        threading.Event().wait(0.5)
        yield Finding("slow", "ok", "found")

    assert examine({"slow": slow}, limit_s=0.05, own_limits_s={"slow": 600}) == [Finding("slow", "ok", "found")]


def test_devices_may_take_as_long_as_torch_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    given: list[float] = []

    def examined(checks: object, *, addresses: object, own_limits_s: Mapping[str, float]) -> list[Finding]:
        given.append(own_limits_s["devices"])
        return []

    monkeypatch.setattr(command, "examine", examined)
    CliRunner().invoke(command.app, ["--json"])
    assert given[0] > ASK_LIMIT_S
