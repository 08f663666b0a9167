"""`fovea doctor`: what this machine has and what would not work, each with its cure."""

import json
from collections.abc import Sequence
from dataclasses import asdict
from functools import partial
from typing import Annotated

import typer

from services.cli.doctor.configured import read_configured
from services.cli.doctor.findings import Check, Finding, examine
from services.cli.doctor.gateway import TOPIC_GATEWAY, find_gateway_files
from services.cli.doctor.installation import (
    TOPIC_EXTRAS,
    TOPIC_PROCESSES,
    TOPIC_VERSIONS,
    find_extras,
    find_processes,
    find_versions,
)
from services.cli.doctor.machine import TOPIC_DEVICES, TOPIC_MEMORY, find_devices, find_memory
from services.cli.doctor.network import TOPIC_PORTS, TOPIC_REDIS, find_ports, find_redis
from services.cli.doctor.shared_collections import (
    DATABASE,
    IMAGES,
    TOPIC_IMAGES,
    TOPIC_MILVUS,
    TOPIC_POSTGRES,
    VECTORS,
    find_image_store,
    find_milvus,
    find_postgres,
)
from services.cli.doctor.storage import TOPIC_ROOM, TOPIC_STORE, find_room, find_store
from services.core.byte_sizes import parse_bytes
from services.core.logs import log_warnings_to_stderr
from services.core.printable import printable

SHOWN = {"ok": "ok", "warning": "warning", "failure": "FAILURE"}
INDENT = " " * 20
ADDRESSES = {
    TOPIC_STORE: "FOVEA_STORE_URL",
    TOPIC_REDIS: "FOVEA_REDIS_URL",
    TOPIC_POSTGRES: DATABASE,
    TOPIC_MILVUS: VECTORS,
    TOPIC_IMAGES: IMAGES,
}

app = typer.Typer(rich_markup_mode=None, add_completion=False, pretty_exceptions_enable=False)


@app.command()
def doctor(
    room: Annotated[str, typer.Option(help="Free room that each file system in use should have.")] = "1GiB",
    *,
    as_json: Annotated[bool, typer.Option("--json", help="Print a JSON document instead of text.")] = False,
) -> None:
    """Tell what this machine has and what would not work, each with its cure.

    Exits with status 1 if something that is needed would not work; warnings do not count.
    """
    try:
        room_bytes = parse_bytes(room)
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint="--room") from None
    log_warnings_to_stderr()
    findings = _examine(room_bytes)
    works = all(finding.status != "failure" for finding in findings)
    if as_json:
        typer.echo(json.dumps({"works": works, "findings": [asdict(finding) for finding in findings]}, indent=2))
    else:
        typer.echo(_report(findings))
    if not works:
        raise typer.Exit(1)


def _examine(room_bytes: int) -> list[Finding]:
    configured = read_configured()
    checks: dict[str, Check] = {
        TOPIC_VERSIONS: find_versions,
        TOPIC_PROCESSES: partial(find_processes, configured),
        TOPIC_EXTRAS: partial(find_extras, configured),
        TOPIC_MEMORY: find_memory,
        TOPIC_DEVICES: partial(find_devices, configured),
        TOPIC_ROOM: partial(find_room, configured, room_bytes),
        TOPIC_STORE: partial(find_store, configured),
        TOPIC_PORTS: partial(find_ports, configured),
        TOPIC_REDIS: partial(find_redis, configured),
        TOPIC_POSTGRES: partial(find_postgres, configured),
        TOPIC_MILVUS: partial(find_milvus, configured),
        TOPIC_IMAGES: partial(find_image_store, configured),
        TOPIC_GATEWAY: partial(find_gateway_files, configured),
    }
    return [*configured.complaints, *examine(checks, addresses=ADDRESSES)]


def _report(findings: Sequence[Finding]) -> str:
    lines = []
    for finding in findings:
        lines.append(f"{SHOWN[finding.status]:<9}{finding.topic:<11}{printable(finding.found)}")
        if finding.cure is not None:
            lines.append(f"{INDENT}-> {printable(finding.cure)}")
    counts = {status: sum(finding.status == status for finding in findings) for status in ("failure", "warning")}
    told = [f"{count} {status}{'s' if count > 1 else ''}" for status, count in counts.items() if count]
    return "\n".join([*lines, "", f"{', '.join(told) or 'All well'}."])
