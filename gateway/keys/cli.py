"""`fovea keys`: management of the gateway's keys.

A key is shown once, when it is created; the file stores only its digest.
"""

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, NoReturn, get_args

import typer
from pydantic import ValidationError

from gateway.access import KeyFile, digest, new_key
from gateway.keys.key_files import KeysInFile, KeysInSecret, KeySource, KeysUnavailable
from gateway.settings import Backend, KeyRecord, LimitsByModel, check_limited_model
from services.core.audit import AuditFailed, AuditLog
from services.core.exchange import DEFAULT_TENANT
from services.core.printable import printable
from services.core.refusals import first_complaint

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
LIMITS = ("rate_limit", "token_limit", "models")
DEFAULT_FILE = Path("~/.fovea/keys.json")
OF_MODEL = "The same for the requests that a model answers, beside the key's own. Repeatable."


@app.command()
def create(  # noqa: PLR0913 - one parameter an option
    name: Annotated[str, typer.Option(help="Name of the key's owner, used in logs and by `revoke`.")],
    scope: Annotated[
        list[str],
        typer.Option(
            help=f"{', '.join(get_args(Backend))}, each optionally followed by :read, :write or :admin; metrics; "
            "admin. Repeatable."
        ),
    ],
    rate_limit: Annotated[
        str | None, typer.Option(help="Rate limit, such as `600/minute`. Default: the gateway's limit.")
    ] = None,
    token_limit: Annotated[
        str | None, typer.Option(help="Limit of tokens read and generated, such as `100000/minute`. Default: none.")
    ] = None,
    model_rate_limit: Annotated[list[str] | None, typer.Option(metavar="MODEL=RATE", help=OF_MODEL)] = None,
    model_token_limit: Annotated[list[str] | None, typer.Option(metavar="MODEL=RATE", help=OF_MODEL)] = None,
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
    models = _by_model(rate_limit=model_rate_limit, token_limit=model_token_limit)
    try:
        record = KeyRecord(
            **fields,
            token_limit=token_limit,
            models=models,
            canary=canary,
            created=datetime.now(UTC).isoformat(timespec="seconds"),
        )
    except ValidationError as invalid:
        _refuse(f"{first_complaint(invalid, 'the key')}.")
    with _changing(file, secret) as (source, keys):
        if any(known.name == name for known in keys.keys):
            _refuse(f"{source} already has a key named {name!r}; revoke it first.")
        try:
            with _audited(audit_log, "key.create", source, record):
                source.write(keys.model_copy(update={"keys": (*keys.keys, record)}))
        except AuditFailed as failed:
            _refuse(f"{audit_log}: {failed.message}")
    typer.echo(key)


@app.command("list")
def list_keys(file: FileOption = DEFAULT_FILE, secret: SecretOption = None) -> None:
    """Show the name, scopes, limits, creation time and tenant of every key and whether its requests go to canaries, and
    tenants' own limits."""
    with _reasons_in_one_line():
        held = _source(file, secret).read()
    typer.echo("\t".join(("name", "scopes", *LIMITS, "created", "tenant", "canary")))
    for record in held.keys:
        scopes, canary = ",".join(sorted(record.scopes)), "yes" if record.canary else "-"
        shown = (record.name, scopes, *_shown_limits(record), record.created or "-", record.tenant, canary)
        typer.echo("\t".join(map(printable, shown)))
    if held.tenants:
        typer.echo("\t".join(("\ntenant", *LIMITS)))
    for tenant, limits in held.tenants.items():
        typer.echo("\t".join((tenant, *map(printable, _shown_limits(limits)))))


@app.command()
def revoke(
    name: Annotated[str, typer.Argument()],
    file: FileOption = DEFAULT_FILE,
    secret: SecretOption = None,
    audit_log: AuditOption = None,
) -> None:
    """Remove a key. The gateway rejects it within seconds."""
    with _changing(file, secret) as (source, keys):
        revoked = next((record for record in keys.keys if record.name == name), None)
        if revoked is None:
            _refuse(f"{source} has no key named {name!r}.")
        kept = keys.model_copy(update={"keys": tuple(record for record in keys.keys if record.name != name)})
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
    typer.echo(f"Revoked {printable(name)}.")


def _shown_limits(limits: LimitsByModel) -> tuple[str, str, str]:
    """Return the columns of LIMITS; those of models are by name, as `big rate_limit=6/minute`."""
    models = [
        " ".join((name, *(f"{kind}={rate}" for kind, rate in one.model_dump(exclude_none=True).items())))
        for name, one in limits.models.items()
    ]
    return limits.rate_limit or "-", limits.token_limit or "-", ", ".join(models) or "-"


def _by_model(**given: list[str] | None) -> dict[str, dict[str, str]]:
    """Return limits by model and kind, each given as `MODEL=RATE`."""
    found: dict[str, dict[str, str]] = {}
    for kind, several in given.items():
        for one in several or ():
            model, separator, rate = one.partition("=")
            option = f"--model-{kind.replace('_', '-')}"
            if not (model and separator):
                _refuse(f"{option}: {one!r} is not MODEL=RATE, such as vicuna-7b=60/minute.")
            try:
                check_limited_model(model)
            except ValueError as reason:
                _refuse(f"{option}: {reason}; write MODEL=RATE, such as vicuna-7b=60/minute.")
            found.setdefault(model, {})[kind] = rate
    return found


def _source(file: Path, secret: str | None) -> KeySource:
    return KeysInFile(file) if secret is None else KeysInSecret(secret)


@contextmanager
def _changing(file: Path, secret: str | None) -> Iterator[tuple[KeySource, KeyFile]]:
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
