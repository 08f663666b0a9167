"""`fovea keys`: management of the gateway's keys.

A key is shown once, when it is created; the file stores only its digest.
"""

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, NoReturn

import typer
from pydantic import ValidationError

from gateway.access import digest, new_key
from gateway.keys.key_files import KeysInFile, KeysInSecret, KeySource, KeysUnavailable
from gateway.settings import KeyRecord
from services.core.audit import AuditFailed, AuditLog
from services.core.exchange import DEFAULT_TENANT
from services.core.printable import printable

app = typer.Typer(
    rich_markup_mode=None,
    add_completion=False,
    no_args_is_help=True,
    help="Create, list and revoke the gateway's keys.",
)

FileOption = Annotated[Path, typer.Option("--file", envvar="FOVEA_GATEWAY_KEYS_FILE", help="The gateway's keys file.")]
SecretOption = Annotated[
    str | None,
    typer.Option("--secret", help="NAMESPACE/NAME of a Secret to change instead of the file, through kubectl."),
]
AuditOption = Annotated[
    Path | None,
    typer.Option("--audit-log", envvar="FOVEA_AUDIT_LOG", help="Audit log to which the change is appended."),
]
DEFAULT_FILE = Path("~/.fovea/keys.json")


@app.command()
def create(  # noqa: PLR0913 - one parameter an option
    name: Annotated[str, typer.Option(help="Name of the key's owner, used in logs and by `revoke`.")],
    scope: Annotated[
        list[str],
        typer.Option(
            help="predict, generate, embed or score, optionally followed by :read, :write or :admin; metrics; admin. "
            "Repeatable."
        ),
    ],
    rate_limit: Annotated[
        str | None, typer.Option(help="Rate limit, such as `600/minute`. Default: the gateway's limit.")
    ] = None,
    tenant: Annotated[str, typer.Option(help="Tenant of the key. Keys of the same tenant share its collections.")] = (
        DEFAULT_TENANT
    ),
    *,
    canary: Annotated[bool, typer.Option("--canary", help="Send its requests to canaries that are ready.")] = False,
    file: FileOption = DEFAULT_FILE,
    secret: SecretOption = None,
    audit_log: AuditOption = None,
) -> None:
    """Create a key, print it once and add its digest to the file."""
    key = new_key()
    fields = {"name": name, "sha256": digest(key), "scopes": scope, "rate_limit": rate_limit, "tenant": tenant}
    try:
        record = KeyRecord(**fields, canary=canary, created=datetime.now(UTC).isoformat(timespec="seconds"))
    except ValidationError as invalid:
        first = invalid.errors()[0]
        _refuse(f"{first['loc'][0]}: {first['msg'].removeprefix('Value error, ')}.")
    with _changing(file, secret) as (source, keys):
        if any(known.name == name for known in keys):
            _refuse(f"{source} already has a key named {name!r}; revoke it first.")
        try:
            with _audited(audit_log, "key.create", source, record):
                source.write((*keys, record))
        except AuditFailed as failed:
            _refuse(f"{audit_log}: {failed.message}")
    typer.echo(key)


@app.command("list")
def list_keys(file: FileOption = DEFAULT_FILE, secret: SecretOption = None) -> None:
    """Show the name, scopes, limit, creation time and tenant of every key, and whether it goes to canaries."""
    with _reasons_in_one_line():
        records = _source(file, secret).read()
    for record in records:
        scopes = ",".join(sorted(record.scopes))
        limit, created = record.rate_limit or "-", record.created or "-"
        version = "canary" if record.canary else "-"
        typer.echo(f"{printable(record.name)}\t{scopes}\t{limit}\t{created}\t{record.tenant}\t{version}")


@app.command()
def revoke(
    name: Annotated[str, typer.Argument()],
    file: FileOption = DEFAULT_FILE,
    secret: SecretOption = None,
    audit_log: AuditOption = None,
) -> None:
    """Remove a key. The gateway rejects it within seconds."""
    with _changing(file, secret) as (source, keys):
        kept = tuple(record for record in keys if record.name != name)
        if len(kept) == len(keys):
            _refuse(f"{source} has no key named {name!r}.")
        revoked = next(record for record in keys if record.name == name)
        try:
            with _audited(audit_log, "key.revoke", source, revoked):
                source.write(kept)
        except AuditFailed:
            # A leaked key must not stay valid because a disk is full.
            source.write(kept)
            typer.echo(
                f"{audit_log}: the audit log can't be written; the key is revoked, but the revocation is not recorded",
                err=True,
            )


def _source(file: Path, secret: str | None) -> KeySource:
    return KeysInFile(file) if secret is None else KeysInSecret(secret)


@contextmanager
def _changing(file: Path, secret: str | None) -> Iterator[tuple[KeySource, tuple[KeyRecord, ...]]]:
    """Yield a source and its keys, which are changed from what they are now or not at all."""
    with _reasons_in_one_line():
        source = _source(file, secret)
        with source.changing() as keys:
            yield source, keys


@contextmanager
def _reasons_in_one_line() -> Iterator[None]:
    try:
        yield
    except KeysUnavailable as reason:
        _refuse(str(reason))


def _audited(
    audit_log: Path | None, action: str, source: KeySource, record: KeyRecord
) -> AbstractContextManager[object]:
    """Record the block in the audit log. If the log can't be written, the block does not run."""
    what = {"key": record.name, "sha256": record.sha256, "tenant": record.tenant, "scopes": sorted(record.scopes)}
    return AuditLog(audit_log and audit_log.expanduser()).command(action, file=str(source), **what)


def _refuse(reason: str) -> NoReturn:
    typer.echo(f"fovea keys: {printable(reason)}", err=True)
    raise typer.Exit(1)
