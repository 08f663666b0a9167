"""The ports that `fovea up` takes, and Redis."""

import asyncio
import json
import os
from collections.abc import Iterator
from dataclasses import replace
from urllib.parse import urlsplit

from services.cli.doctor.configured import Configured
from services.cli.doctor.findings import Finding
from services.cli.programs import BadPort, Program, plan_programs
from services.cli.supervisor import PortTaken, get, require_free_port

TOPIC_PORTS, TOPIC_REDIS = "ports", "redis"
REDIS_TIMEOUT_S = 2.0
# Of the next ports after one that is taken.
TRIED_PORTS = 100


def find_ports(configured: Configured) -> Iterator[Finding]:
    """Tell which ports of `fovea up` are free."""
    try:
        programs = plan_programs(configured.to_start, os.environ)
    except BadPort as refused:
        yield Finding(TOPIC_PORTS, "failure", str(refused), f"unset {str(refused).partition(' ')[0]}")
        return
    free = [program for program in programs if _refusal(program) is None]
    if free:
        told = ", ".join(f"{program.name} {program.port}" for program in free)
        yield Finding(TOPIC_PORTS, "ok", f"free: {told}", figures={program.name: program.port for program in free})
    planned = {program.port for program in programs}
    for program in programs:
        refusal = _refusal(program)
        if refusal is None:
            continue
        other = _next_free(program, planned)
        cure = f"{program.port_variable}={other} fovea up"
        if _is_fovea(program):
            told = f"{program.name}: a Fovea runs already on {program.host}:{program.port}"
            yield Finding(TOPIC_PORTS, "warning", told, f"use {program.url}, or start a second one: {cure}")
        else:
            yield Finding(TOPIC_PORTS, "failure", refusal.partition(". Choose")[0], cure)


def find_redis(configured: Configured) -> Iterator[Finding]:
    """Tell whether the configured Redis servers answer."""
    urls = configured.values("redis_url")
    if not urls:
        yield Finding(TOPIC_REDIS, "ok", "not configured: each process has its own cache and limits")
    for url in urls:
        yield _redis(url)


def _redis(url: str) -> Finding:
    from redis import Redis
    from redis.backoff import NoBackoff
    from redis.exceptions import AuthenticationError, RedisError
    from redis.retry import Retry

    parts = urlsplit(url)
    label = f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path}"
    waits = {"socket_timeout": REDIS_TIMEOUT_S, "socket_connect_timeout": REDIS_TIMEOUT_S}
    try:
        with Redis.from_url(url, retry=Retry(NoBackoff(), 0), **waits) as client:
            client.ping()
            return Finding(TOPIC_REDIS, "ok", f"{label} answers")
    except AuthenticationError:
        cure = "set FOVEA_REDIS_URL with the password: redis://:PASSWORD@HOST:PORT"
        return Finding(TOPIC_REDIS, "failure", f"{label} refuses the password", cure)
    # The client's parser raises more than RedisError where a server speaks another protocol.
    except (RedisError, OSError, EOFError, ValueError, LookupError, TypeError, AttributeError) as error:
        reason = " ".join(str(error).split()).rstrip(".") or type(error).__name__
        is_local = parts.scheme == "redis" and parts.hostname in ("127.0.0.1", "localhost", "::1")
        start = f"redis-server --port {parts.port or 6379}" if is_local else "start Redis there"
        told = f"{label} does not answer: {reason}"
        return Finding(TOPIC_REDIS, "failure", told, f"{start}, or go without it: unset FOVEA_REDIS_URL")


def _refusal(program: Program) -> str | None:
    try:
        require_free_port(program)
    except PortTaken as taken:
        return str(taken)
    return None


def _next_free(program: Program, planned: set[int]) -> int:
    following = range(program.port + 10, min(program.port + 10 + TRIED_PORTS, 65536))
    free = (port for port in following if port not in planned and _refusal(replace(program, port=port)) is None)
    return next(free, 0)


def _is_fovea(program: Program) -> bool:
    """Whether the process on this port answers a probe as ours do."""
    try:
        _, body = asyncio.run(get(program, "/livez"))
        return set(json.loads(body)) == {"status", "checks"}
    except (OSError, ValueError, TypeError):
        return False
