"""Health of the process (live, started, ready), and the probe routes that report it.

A failed liveness probe asks for a restart, readiness for traffic to go elsewhere, start-up for patience. Checks run on
the event loop at each probe, so they read a flag or a clock and never wait.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from typing import Any, Literal

from fastapi import APIRouter, Response
from pydantic import BaseModel

# Whether the check passed, and a description of the state, which is shown to clients of the probes.
CheckResult = tuple[bool, str]
Check = Callable[[], CheckResult]

PROBE_PATHS = frozenset({"/livez", "/readyz", "/startupz", "/health"})


class CheckReport(BaseModel):
    ok: bool
    detail: str


class HealthReport(BaseModel):
    status: Literal["ok", "unavailable"]
    checks: dict[str, CheckReport]


class Health:
    """The checks of one process, registered by name, and its phase: loading, serving or draining."""

    def __init__(self) -> None:
        self._liveness: dict[str, Check] = {}
        self._readiness: dict[str, tuple[Check, Callable[[], bool]]] = {}
        self._is_started = False
        self._is_draining = False
        self._failure: str | None = None

    def add_liveness_check(self, name: str, check: Check) -> None:
        """Add a check of what only a restart can mend, such as a compute thread that stalled or died."""
        self._liveness[name] = check

    def add_readiness_check(self, name: str, check: Check, is_vital: Callable[[], bool] = lambda: True) -> None:
        """Add a check of what may mend itself, such as a checkpoint that is being fetched.

        Where it fails and is not vital, the process is ready nonetheless.
        """
        self._readiness[name] = check, is_vital

    @asynccontextmanager
    async def upkeep(self, name: str, work: Callable[[], Coroutine[Any, Any, None]]) -> AsyncIterator[None]:
        """Run `work` in the background; if it ever ends by itself, `/livez` answers 503."""
        task = asyncio.create_task(work())
        self.add_liveness_check(name, lambda: (not task.done(), "ended" if task.done() else "followed"))
        try:
            yield
        finally:
            task.cancel()
            await asyncio.wait([task])

    def mark_started(self) -> None:
        self._is_started = True

    def begin_drain(self) -> None:
        """Let `/readyz` answer 503 and every response ask its client to close the connection from now on."""
        self._is_draining = True

    def fail(self, reason: str) -> None:
        """Note that starting up has failed for good: `/livez` answers 503 and the server ends the process."""
        self._failure = reason

    @property
    def is_draining(self) -> bool:
        return self._is_draining

    @property
    def has_failed(self) -> bool:
        return self._failure is not None

    def live(self) -> HealthReport:
        results = {name: check() for name, check in self._liveness.items()}
        if self._failure is not None:
            results["startup"] = (False, self._failure)
        return _report(results)

    def started(self) -> HealthReport:
        return _report({"startup": self._startup()})

    def ready(self) -> HealthReport:
        results = {"startup": self._startup(), **{name: check() for name, check in self._liveness.items()}}
        if self._is_draining:
            results["drain"] = (False, "draining")
        report = _report(results)
        for name, (check, is_vital) in self._readiness.items():
            ok, detail = check()
            report.checks[name] = CheckReport(ok=ok, detail=detail)
            if not ok and is_vital():
                report.status = "unavailable"
        return report

    def _startup(self) -> CheckResult:
        if self._failure is not None:
            return False, self._failure
        return (True, "started") if self._is_started else (False, "loading")


def _report(results: dict[str, CheckResult]) -> HealthReport:
    return HealthReport(
        status="ok" if all(ok for ok, _ in results.values()) else "unavailable",
        checks={name: CheckReport(ok=ok, detail=detail) for name, (ok, detail) in results.items()},
    )


def health_router(health: Health) -> APIRouter:
    """Return the routes `/livez`, `/readyz`, `/startupz` and `/health`, the name of `/readyz` that most clients try."""
    router = APIRouter(tags=["health"], responses={503: {"model": HealthReport, "description": "A check failed"}})

    def answer(report: HealthReport, response: Response) -> HealthReport:
        response.status_code = 200 if report.status == "ok" else 503
        response.headers["cache-control"] = "no-store"
        return report

    # Coroutines, so that a probe never queues behind the thread pool.
    @router.get("/livez")
    async def livez(response: Response) -> HealthReport:
        return answer(health.live(), response)

    @router.get("/startupz")
    async def startupz(response: Response) -> HealthReport:
        return answer(health.started(), response)

    @router.get("/readyz")
    async def readyz(response: Response) -> HealthReport:
        return answer(health.ready(), response)

    @router.get("/health", operation_id="health")
    async def health_alias(response: Response) -> HealthReport:
        return answer(health.ready(), response)

    # Some load balancers and monitors send HEAD; the server leaves the body out.
    for path, probe in {"/livez": livez, "/startupz": startupz, "/readyz": readyz, "/health": health_alias}.items():
        router.head(path, include_in_schema=False)(probe)
    return router
