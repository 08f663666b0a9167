"""`fovea doctor`: what this machine has and what would not work, each with its cure."""

import json
from collections.abc import Sequence
from dataclasses import asdict
from functools import partial
from typing import Annotated

import typer

from services.cli.doctor import connections, installation
from services.cli.doctor.findings import LIMIT_S, Check, Finding, examine, read_configured
from services.core.byte_sizes import parse_bytes
from services.core.logs import log_warnings_to_stderr
from services.core.printable import printable

SHOWN = {"ok": "ok", "warning": "warning", "failure": "FAILURE"}
INDENT = " " * 20
ADDRESSES = {
    "store": "FOVEA_STORE_URL",
    "redis": "FOVEA_REDIS_URL",
    "postgresql": connections.DATABASE,
    "images": connections.IMAGES,
}
# Torch may take longer to start than a server on the network takes to answer.
OWN_LIMITS_S = {"devices": installation.ASK_LIMIT_S + LIMIT_S}

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
        "versions": installation.find_versions,
        "processes": partial(installation.find_processes, configured),
        "extras": partial(installation.find_extras, configured),
        "memory": installation.find_memory,
        "devices": partial(installation.find_devices, configured),
        "room": partial(connections.find_room, configured, room_bytes),
        "store": partial(connections.find_store, configured),
        "ports": partial(connections.find_ports, configured),
        "redis": partial(connections.find_redis, configured),
        "postgresql": partial(connections.find_postgres, configured),
        "images": partial(connections.find_image_store, configured),
        "gateway": partial(connections.find_gateway_files, configured),
        "signing": partial(connections.find_signing_secrets, configured),
    }
    return [*configured.complaints, *examine(checks, addresses=ADDRESSES, own_limits_s=OWN_LIMITS_S)]


def _report(findings: Sequence[Finding]) -> str:
    lines = []
    for finding in findings:
        lines.append(f"{SHOWN[finding.status]:<9}{finding.topic:<11}{printable(finding.found)}")
        if finding.cure is not None:
            lines.append(f"{INDENT}-> {printable(finding.cure)}")
    counts = {status: sum(finding.status == status for finding in findings) for status in ("failure", "warning")}
    told = [f"{count} {status}{'s' if count > 1 else ''}" for status, count in counts.items() if count]
    return "\n".join([*lines, "", f"{', '.join(told) or 'All well'}."])
