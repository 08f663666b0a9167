"""Findings of `fovea doctor`, and the checks that make them, each on a thread of its own and within a limit."""

import threading
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

# Longer than any check waits for its own answers, but for a remote store, whose client repeats requests.
LIMIT_S = 12.0

Status = Literal["ok", "warning", "failure"]


@dataclass(frozen=True)
class Finding:
    """One thing that is there or would not work; `cure` is a command to type or a setting to change."""

    topic: str
    status: Status
    found: str
    cure: str | None = None
    figures: Mapping[str, Any] = field(default_factory=dict)


Check = Callable[[], Iterable[Finding]]


def examine(
    checks: Mapping[str, Check], limit_s: float = LIMIT_S, addresses: Mapping[str, str] | None = None
) -> list[Finding]:
    """Run all checks at once and return their findings in the order of the checks.

    One that breaks, or that is not done in time, is a finding itself; `addresses` are the settings, by topic, that say
    whom a check asks.
    """
    results: dict[str, list[Finding]] = {}

    def run(topic: str, check: Check) -> None:
        try:
            results[topic] = list(check())
        except Exception as error:  # noqa: BLE001 - whatever breaks must not hide what the other checks find
            reason = f"this check broke: {error!r}"
            results[topic] = [Finding(topic, "failure", reason, "report it with the output of: fovea doctor --json")]

    threads = {topic: threading.Thread(target=run, args=(topic, check), daemon=True) for topic, check in checks.items()}
    for thread in threads.values():
        thread.start()
    end_s = time.monotonic() + limit_s
    for thread in threads.values():
        thread.join(max(0.0, end_s - time.monotonic()))
    return [
        finding
        for topic in checks
        for finding in results.get(topic, [_late(topic, limit_s, (addresses or {}).get(topic))])
    ]


def _late(topic: str, limit_s: float, setting: str | None) -> Finding:
    cure = f"check the network and the address{'' if setting is None else f' in {setting}'}"
    return Finding(topic, "failure", f"no answer within {limit_s:g} s", cure)
