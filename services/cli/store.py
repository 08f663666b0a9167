"""`fovea store`: inspect and manage the model store."""

import json
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from datetime import datetime
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.filesize import decimal as human_bytes
from rich.markup import escape
from rich.table import Table
from typer.core import TyperGroup

from services.cli.delegation import errors_in_one_line
from services.cli.store_import import ENGINES, interruptions, recognise, store_name, summary, write_outputs
from services.core.audit import AuditFailed, AuditLog
from services.core.logs import log_warnings_to_stderr
from services.core.printable import printable
from services.core.refusals import did_you_mean
from services.core.settings import ServiceSettings, read_settings
from services.core.store.checkpoint_files import (
    DESCRIPTION_FILE,
    CheckpointDescription,
    packaged_starters,
    read_description,
)
from services.core.store.errors import (
    CorruptCheckpoint,
    InvalidCheckpoint,
    NotFoundInStore,
    StoreError,
    StoreUnavailable,
)
from services.core.store.manifest import check_alias, check_model_name
from services.core.store.store import ANYWHERE, DEFAULT_GRACE_S, DEFAULT_KEEP, Anywhere, Removal, Store
from services.core.store.versions import Version


def text_of(value: Any) -> str:
    """Write a value of a manifest in a cell."""
    return value if isinstance(value, str) else json.dumps(value)


def report(content: dict[str, Any], sentence: str, *, as_json: bool) -> None:
    """Print what was done, as sentences or as JSON."""
    if as_json:
        print_json(content)
    else:
        typer.echo(printable(sentence, keep="\n"))


def print_json(content: Any) -> None:
    """Print a JSON document."""
    typer.echo(json.dumps(content, default=datetime.isoformat, indent=2))


def print_table(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
    """Print rows under their columns."""
    table = Table(*columns)
    for row in rows:
        table.add_row(*(escape(printable(cell, keep="\n")) for cell in row))
    # Piped output has no terminal width: ids and digests must not be cut.
    console = Console() if sys.stdout.isatty() else Console(width=200)
    console.print(table)


HOUR_S = 3600.0


class OneLineErrors(TyperGroup):
    """A command group that prints errors of the store in one line, with exit status 1."""

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except (StoreError, AuditFailed) as error:
            typer.echo(f"fovea store: {printable(str(error))}", err=True)
            raise typer.Exit(1) from None


app = typer.Typer(
    rich_markup_mode=None,
    cls=OneLineErrors,
    help="List, publish, promote, roll back and verify checkpoints.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)

# The gateway's image has this command without `services.jobs`, whose options hold the same.
StoreUrl = Annotated[
    str | None,
    typer.Option(
        "--store-url", envvar="FOVEA_STORE_URL", help="Model store (file://, s3://, gs://). Default: ~/.fovea/store."
    ),
]
AuditOption = Annotated[
    Path | None,
    typer.Option("--audit-log", envvar="FOVEA_AUDIT_LOG", help="Audit log to which the change is appended."),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print a JSON document instead of a table.")]
Reference = Annotated[str, typer.Argument(metavar="NAME[@ALIAS|@VERSION]", help="Default alias: `latest`.")]
Expected = Annotated[
    str | None,
    typer.Option(help="Move the alias only if it names this version; `none`: only if it does not exist."),
]


@app.callback()
def configure() -> None:
    log_warnings_to_stderr()


@app.command("ls")
def list_models(
    name: Annotated[str | None, typer.Argument(help="List the versions of this model.")] = None,
    store_url: StoreUrl = None,
    *,
    as_json: AsJson = False,
) -> None:
    """List the models, or the versions of one, newest first."""
    store = open_store(store_url, name)
    starters = packaged_starters()
    # some may be there already, from a service or from a command that was killed half-way
    if name is None and {starter.name for starter in starters}.issuperset(store.names()):
        store.publish_starters(starters)
    names = store.names() if name is None else [name]
    listed = [row for model in names for row in _versions_with_aliases(store, model)]
    if name is not None and not listed:
        raise NotFoundInStore(f"{store.label} has no model {name!r}{did_you_mean(name, store.names())}")
    if as_json:
        print_json([{**asdict(version), "aliases": aliases} for version, aliases in listed])
        return
    if not listed:
        typer.echo(printable(f"No models in {store.label}."))
        return
    print_table(
        ("model", "version", "aliases", "published", "files", "size"),
        (_row(version, aliases) for version, aliases in listed),
    )


@app.command()
def show(reference: Reference, store_url: StoreUrl = None, *, as_json: AsJson = False) -> None:
    """Show the manifest of a version."""
    store = open_store(store_url, reference)
    manifest = store.manifest(*_resolve(store, reference))
    content = manifest.model_dump(mode="json")
    if as_json:
        print_json(content)
        return
    files = content.pop("files")
    print_table(("field", "value"), ((field, text_of(value)) for field, value in content.items()))
    print_table(
        ("file", "size", "sha256"),
        ((path, human_bytes(file["size_bytes"]), file["sha256"]) for path, file in files.items()),
    )


@app.command()
def publish(  # noqa: PLR0913 - one parameter an option
    directory: Annotated[Path, typer.Argument(help="Folder with weights and, without --kind, a checkpoint.json.")],
    name: Annotated[
        str | None, typer.Option(help="Name to publish under. Default: the name in checkpoint.json.")
    ] = None,
    kind: Annotated[
        str | None,
        typer.Option(help=f"Kind of a model made by other tools: {', '.join(ENGINES)}. Requires --name."),
    ] = None,
    alias: Annotated[
        list[str] | None,
        typer.Option(help="Alias to point at the version. Repeatable. Default: the aliases in checkpoint.json."),
    ] = None,
    store_url: StoreUrl = None,
    audit_log: AuditOption = None,
    *,
    reference: Annotated[
        bool,
        typer.Option(help="Load and run the model, refuse what fails, and write its outputs to reference.json."),
    ] = True,
    as_json: AsJson = False,
) -> None:
    """Publish a folder as a new version and point aliases at it."""
    if kind is not None and name is None:
        raise typer.BadParameter("--kind requires --name.")
    if kind is None and not (directory / DESCRIPTION_FILE).exists():
        missing = f"{directory / DESCRIPTION_FILE}: No such file or directory"
        raise InvalidCheckpoint(f"{missing}; say with --name and --kind what it is: {', '.join(ENGINES)}")
    description = read_description(directory) if kind is None else CheckpointDescription(name=name or "", kind=kind)
    if reference:
        # a kind of one's own may be stored, a misspelt one would take the alias from a version that serves
        if description.kind not in ENGINES and (meant := did_you_mean(description.kind, ENGINES)):
            told = f"kind: {description.kind!r} is unknown{meant} (--no-reference: publish unchecked)"
            raise InvalidCheckpoint(told)
        write_outputs(description.kind, directory)
    aliases = list(alias or description.aliases)
    model = name or description.name
    store = open_store(store_url, model)
    with _audit(audit_log).command("store.publish", store=store.label, model=model, aliases=aliases) as entry:
        version = store.publish(model, directory, description.info(), alias=None)
        entry["version"] = version.id
        for each in aliases:
            store.promote(version.name, version.id, each)
    report({**asdict(version), "aliases": aliases}, f"{version} published as {', '.join(aliases)}", as_json=as_json)


TaskOfT5 = Annotated[
    str | None,
    typer.Option("--task", help="For a T5, what it answers: a task file, or esnli, anli1, cqa, svamp or asdiv."),
]
EmbedBy = Annotated[
    str | None,
    typer.Option(
        help="For a vision-language model, the prompt by which it embeds: instruction (Qwen3-VL-Embedding's) or "
        "one-word (DIOR's)."
    ),
]
Dimensions = Annotated[
    str | None,
    typer.Option(help="Widths to which a model's embeddings were trained to be cut (Matryoshka): 64,128,256, or 64+."),
]

Once = Annotated[
    str | None, typer.Option(help="Do nothing if --name has this alias; else point it at the version, besides --alias.")
]


@app.command("import")
def import_checkpoint(  # noqa: PLR0913 - one parameter an option
    source: Annotated[str, typer.Argument(metavar="SOURCE", help="hf://owner/name[@revision], a folder, or a file.")],
    name: Annotated[str | None, typer.Option(help="Name to publish under. Default: the source's.")] = None,
    task: TaskOfT5 = None,
    label_prefix: Annotated[str, typer.Option(help="Text that a T5 was trained to have before its input.")] = "",
    rationale_prefix: Annotated[
        str | None, typer.Option(help="Text before the input that asks a T5 for its rationale. Default: it gives none.")
    ] = None,
    chat_template: Annotated[
        str | None,
        typer.Option(help="Chat template for a language model, in place of its own: a Jinja file, or a family's name."),
    ] = None,
    architecture: Annotated[
        str | None, typer.Option(help="open_clip's name of a CLIP that is one file of a training: ViT-B-32-quickgelu.")
    ] = None,
    embed_by: EmbedBy = None,
    dimensions: Dimensions = None,
    licence: Annotated[str | None, typer.Option(help="Licence. Default: what the model card says.")] = None,
    alias: Annotated[
        list[str] | None, typer.Option(help="Alias to point at the version. Repeatable. Default: latest.")
    ] = None,
    once: Once = None,
    store_url: StoreUrl = None,
    audit_log: AuditOption = None,
    *,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Print what would be imported, and change nothing.")
    ] = False,
    reference: Annotated[
        bool, typer.Option(help="Load and run the model, refuse what fails, and keep its outputs for later checks.")
    ] = True,
    as_json: AsJson = False,
) -> None:
    """Import a published model: choose its files, convert and check them, and publish it.

    The same command continues an interrupted import. Nothing of a source is run: pickles are read as plain tensors.
    """
    given = {
        "--task": task,
        "--label-prefix": label_prefix or None,
        "--rationale-prefix": rationale_prefix,
        "--chat-template": chat_template,
        "--architecture": architecture,
        "--embed-by": embed_by,
        "--dimensions": dimensions,
    }
    with errors_in_one_line("fovea store import", "generate"), interruptions():
        if once and _is_imported(open_store(store_url, name), name, once):
            return report({"name": name, "aliases": []}, f"{name}@{once} is there: nothing is done", as_json=as_json)
        planned = recognise(source, given, name, licence)
        check_model_name(planned.name)
        aliases = [check_alias(each) for each in dict.fromkeys([*(alias or ["latest"]), *filter(None, [once])])]
        if not as_json:
            typer.echo(printable("\n".join(summary(planned)), keep="\n"))
            print_table(("file", "size", "what becomes of it"), planned.rows())
        if dry_run:
            content, told = planned.content(aliases), ["Nothing was changed: this was a dry run."]
        else:
            store = open_store(store_url, planned.name)
            version, before = planned.publish(store, _audit(audit_log), aliases, reference=reference)
            content = {**asdict(version), "aliases": aliases}
            told = [f"{version} published as {', '.join(aliases)}", *_ways_back(version.name, before)]
    told += [f"serve it: {setting} fovea up" for setting in planned.settings(aliases)]
    report(content, "\n".join(told), as_json=as_json)


def _is_imported(store: Store, name: str | None, once: str) -> bool:
    if name is None:
        raise typer.BadParameter("--once requires --name.")
    return check_alias(once) in store.aliases(name)


def _ways_back(name: str, before: Mapping[str, str]) -> list[str]:
    return [
        f"{alias} named {version} before; `fovea store rollback {name} {alias}` returns to it"
        for alias, version in before.items()
    ]


@app.command()
def fetch(
    reference: Reference,
    folder: Annotated[
        Path | None,
        typer.Argument(
            help="Folder to make. One that is there already is only compared. Default: the copy that services make."
        ),
    ] = None,
    store_url: StoreUrl = None,
    *,
    link: Annotated[
        bool, typer.Option("--link", help="Copy nothing: link the folder to the store's, which nothing may change.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Copy a version to a folder, every byte checked."""
    store = open_store(store_url, reference)
    name, version = _resolve(store, reference)
    if folder is None or link:
        fetched = _fetched(store, name, version, in_place=link)
        folder = fetched if folder is None else _linked(folder, fetched)
    else:
        store.copy(name, version, folder)
    content = {"name": name, "version": version, "folder": str(folder)}
    report(content, f"{name}@{version} is in {folder}", as_json=as_json)


def _fetched(store: Store, name: str, version: str, *, in_place: bool = False) -> Path:
    settings = read_settings(ServiceSettings, port=0)
    max_bytes = 0 if in_place else settings.checkpoint_cache_max_bytes
    return store.fetch(name, version, settings.checkpoint_cache_dir, max_bytes)


@app.command()
def push(  # noqa: PLR0913 - one parameter an option
    repository: Annotated[str, typer.Argument(metavar="hf://OWNER/NAME", help="Repository of the Hugging Face Hub.")],
    reference: Annotated[
        str | None, typer.Argument(metavar="[NAME[@ALIAS|@VERSION]]", help="Default: the repository's name.")
    ] = None,
    store_url: StoreUrl = None,
    audit_log: AuditOption = None,
    *,
    private: Annotated[
        bool,
        typer.Option(
            "--private", help="Make a new repository private. Default: public, or what its organisation chose."
        ),
    ] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print the model card, and upload nothing.")] = False,
    as_json: AsJson = False,
) -> None:
    """Upload a version to the Hugging Face Hub in one commit, with a model card made of its manifest.

    The same command continues an interrupted upload, and changes nothing where all is there.
    """
    with errors_in_one_line("fovea store push", "generate"), interruptions():
        from services.jobs.hub_upload import check_owner, upload
        from services.jobs.imports.source import repository_of
        from services.jobs.model_card import lineage, model_card

        called = store_name(repository_of(repository)[0].partition("/")[2])
        store = open_store(store_url, reference or called)
        name, version = _resolve(store, reference or called)
        found = lineage(store, store.manifest(name, version))
        card = model_card(found, f"fovea store import {repository}{'' if called == name else f' --name {name}'}")
        content: dict[str, Any] = {"name": name, "version": version}
        if dry_run:
            content |= {"repository": repository, "card": card, "files": sorted(found[0].files)}
            return report(content, card.removesuffix("\n"), as_json=as_json)
        owned = check_owner(repository)
        with _audit(audit_log).command("store.push", store=store.label, **content, repository=repository) as entry:
            pushed = upload(owned, found[0], _fetched(store, name, version), card, private=private)
            entry["commit"] = pushed["commit"]
    seen = "private" if pushed["private"] else "public"
    told = f"{name}@{version} is in {repository}, which is {seen}: {pushed['url']}"
    pinned = f"this upload, whatever follows: fovea store import {repository}@{pushed['commit']} --name {name}"
    report(content | pushed, f"{told}\n{pinned}", as_json=as_json)


def _linked(folder: Path, to: Path) -> Path:
    """Make the folder a link, in place of an earlier one. Raises StoreUnavailable for anything else that is there."""
    try:
        if folder.is_symlink():
            folder.unlink()
        folder.symlink_to(to)
    except OSError as error:
        raise StoreUnavailable(f"{folder}: {error.strerror}; name a folder that is not there") from error
    return folder


@app.command()
def promote(
    reference: Reference,
    alias: Annotated[str, typer.Argument(help="The alias to move, e.g. stable.")],
    expected: Expected = None,
    store_url: StoreUrl = None,
    audit_log: AuditOption = None,
    *,
    as_json: AsJson = False,
) -> None:
    """Point an alias at a version."""
    store = open_store(store_url, reference)
    name, version = _resolve(store, reference)
    audit = _audit(audit_log)
    with audit.command("store.promote", store=store.label, model=name, version=version, alias=alias):
        store.promote(name, version, alias, expected=_expected(expected))
    report({"name": name, "alias": alias, "version": version}, f"{name}@{alias} is {version}", as_json=as_json)


@app.command()
def rollback(
    name: Annotated[str, typer.Argument(help="The model.")],
    alias: Annotated[str, typer.Argument(help="The alias to move back.")] = "latest",
    expected: Expected = None,
    store_url: StoreUrl = None,
    audit_log: AuditOption = None,
    *,
    as_json: AsJson = False,
) -> None:
    """Point an alias at its previous version."""
    store = open_store(store_url, name)
    with _audit(audit_log).command("store.rollback", store=store.label, model=name, alias=alias) as entry:
        version = entry["version"] = store.rollback(name, alias, expected=_expected(expected))
    report({"name": name, "alias": alias, "version": version}, f"{name}@{alias} is {version}", as_json=as_json)


@app.command()
def verify(
    reference: Annotated[str | None, typer.Argument(metavar="[NAME[@…]]", help="Default: all models.")] = None,
    store_url: StoreUrl = None,
    *,
    as_json: AsJson = False,
) -> None:
    """Compare every file of a version, or of all versions, with its digest. Exits with status 1 if any is damaged."""
    store = open_store(store_url, reference)
    if reference is not None:
        targets = [_resolve(store, reference)]
    else:
        targets = [(version.name, version.id) for name in store.names() for version in store.versions(name)]
    damage = {f"{name}@{version}": _damage(store, name, version) for name, version in targets}
    if as_json:
        print_json([{"version": version, "damage": found} for version, found in damage.items()])
    else:
        print_table(("version", "state"), ((version, found or "intact") for version, found in damage.items()))
    if any(damage.values()):
        raise typer.Exit(1)


@app.command()
def gc(
    keep: Annotated[int, typer.Option(min=1, help="Number of newest versions of each model to keep.")] = DEFAULT_KEEP,
    grace_hours: Annotated[
        float, typer.Option(min=0, help="Keep files younger than this many hours.")
    ] = DEFAULT_GRACE_S / HOUR_S,
    store_url: StoreUrl = None,
    audit_log: AuditOption = None,
    *,
    delete: Annotated[bool, typer.Option("--delete", help="Remove the files instead of only listing them.")] = False,
    as_json: AsJson = False,
) -> None:
    """Remove unreferenced versions and incomplete uploads."""
    store = open_store(store_url)
    removals = (
        _removed(store, _audit(audit_log), keep, grace_hours)
        if delete
        else store.gc(keep=keep, grace_s=grace_hours * HOUR_S, dry_run=True)
    )
    if as_json:
        print_json([asdict(removal) for removal in removals])
        return
    print_table(
        ("model", "removed" if delete else "would be removed", "reason", "size"),
        ((r.name, r.version, r.reason, human_bytes(r.size_bytes)) for r in removals),
    )


def _removed(store: Store, audit: AuditLog, keep: int, grace_hours: float) -> Sequence[Removal]:
    with audit.command("store.gc", store=store.label, keep=keep, grace_hours=grace_hours) as entry:
        removals = store.gc(keep=keep, grace_s=grace_hours * HOUR_S, dry_run=False)
        entry["removed"] = [f"{removal.name}@{removal.version}" for removal in removals]
        return removals


def _audit(path: Path | None) -> AuditLog:
    return AuditLog(path and path.expanduser())


def open_store(store_url: str | None, name: str | None = None) -> Store:
    """Open the store, with the packaged starter of this name if there is one."""
    settings = ServiceSettings(port=0) if store_url is None else ServiceSettings(port=0, store_url=store_url)
    store = Store.open(settings.store_url)
    if name is not None:
        store.publish_starters(packaged_starters(name.partition("@")[0]))
    return store


def _resolve(store: Store, reference: str) -> tuple[str, str]:
    name, _, alias_or_version = reference.partition("@")
    return name, store.resolve(name, alias_or_version or "latest")


def _expected(text: str | None) -> str | Anywhere | None:
    if text is None:
        return ANYWHERE
    return None if text == "none" else text


def _damage(store: Store, name: str, version: str) -> str | None:
    try:
        store.verify(name, version)
    except CorruptCheckpoint as error:
        return str(error)
    return None


def _versions_with_aliases(store: Store, name: str) -> list[tuple[Version, list[str]]]:
    aliases = store.aliases(name)
    return [
        (version, sorted(alias for alias, target in aliases.items() if target.version == version.id))
        for version in store.versions(name)
    ]


def _row(version: Version, aliases: Sequence[str]) -> tuple[str, ...]:
    published = f"{version.published:%Y-%m-%d %H:%M}"
    size = human_bytes(version.size_bytes)
    return version.name, version.id, ", ".join(aliases), published, str(version.num_files), size
