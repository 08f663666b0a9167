"""Connections of the processes: stores, ports, Redis, collections, and the gateway's files.

PostgreSQL's URL may contain a password, so nothing of it is told but what the server says, and that only where no part
of a password can have been read as something else.
"""

import asyncio
import json
import os
import re
import shutil
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote, urlsplit

from services.cli.doctor.findings import Configured, Finding, served_models
from services.cli.doctor.installation import is_importable
from services.cli.programs import BadPort, Program, plan_programs
from services.cli.supervisor import PortTaken, get, require_free_port
from services.core.byte_sizes import binary_size
from services.core.http.browsers import is_loopback
from services.core.http.signatures import MAKE, SigningSecrets
from services.core.printable import first_line
from services.core.serving.model_settings import cure_of_absence
from services.core.settings import SettingsError
from services.core.store.checkpoint_files import packaged_starters, read_description
from services.core.store.errors import CorruptCheckpoint, NotFoundInStore, StoreError
from services.core.store.objects import Objects
from services.core.store.store import Store

if TYPE_CHECKING:
    from services.embed.settings import EmbedSettings

FOLDERS = {
    "checkpoint_cache_dir": "FOVEA_CHECKPOINT_CACHE_DIR",
    "collections_dir": "FOVEA_EMBED_COLLECTIONS_DIR",
}


def find_store(configured: Configured) -> Iterator[Finding]:
    """Tell whether each store answers and holds the models of the services."""
    described = {folder: read_description(folder) for folder in packaged_starters()}
    starters = {(one.name, alias): folder for folder, one in described.items() for alias in one.aliases}
    for url, names in configured.values("store_url").items():
        try:
            store = Store.open(url)
            models = store.names()
        except StoreError as error:
            cure = "check FOVEA_STORE_URL, its credentials and the network, or unset FOVEA_STORE_URL"
            yield Finding("store", "failure", str(error), cure)
            continue
        yield Finding("store", "ok", f"{store.label} answers; models: {', '.join(models) or 'none yet'}")
        for name in names:
            settings = configured.settings[name]
            for model, alias in served_models(settings):
                starter = starters.get((model, alias))
                is_ours = starter is not None and _can_write(url)
                yield _model(store, (model, alias), name, f"FOVEA_{name.upper()}_MODELS", is_ours=is_ours)
                if starter is not None and model in models:
                    yield from _outdated(store, starter, f"{name}: {model}@{alias}")


def find_room(configured: Configured, room_bytes: int) -> Iterator[Finding]:
    """Tell the free room of each file system that is written to, and folders that can't be written."""
    users: dict[int, tuple[Path, list[str]]] = {}
    for folder, variable in _folders(configured):
        existing = _existing(folder)
        if not os.access(existing, os.W_OK):
            told = f"{folder} can't be written to"
            yield Finding("room", "failure", told, f"set {variable}, or: sudo chown -R $USER {existing}")
            continue
        users.setdefault(existing.stat().st_dev, (folder, []))[1].append(variable)
    for folder, variables in users.values():
        usage = shutil.disk_usage(_existing(folder))
        figures = {"free_bytes": usage.free, "total_bytes": usage.total, "folder": str(folder)}
        told = f"{binary_size(usage.free)} of {binary_size(usage.total)} free for {folder} ({', '.join(variables)})"
        if usage.free < room_bytes:
            cure = f"fovea store gc --delete, or set {', '.join(variables)} to another disk"
            yield Finding("room", "failure", f"{told}: less than {binary_size(room_bytes)}", cure, figures)
        else:
            yield Finding("room", "ok", told, figures=figures)


def _outdated(store: Store, starter: Path, served: str) -> Iterator[Finding]:
    """Tell of a starter that is packaged and not stored, as after an upgrade."""
    with suppress(StoreError):  # which `_model` tells
        if store.lacks(starter):
            told = f"{served} is not the starter that this release packages, which the store does not hold"
            yield Finding("store", "warning", told, f"fovea store publish {starter}")


def _model(store: Store, followed: tuple[str, str], process: str, variable: str, *, is_ours: bool) -> Finding:
    model, alias = followed
    try:
        version = store.resolve(model, alias)
        store.manifest(model, version)
        return Finding("store", "ok", f"{process}: {model}@{alias} is {version}")
    except NotFoundInStore as missing:
        if is_ours:
            told = f"{process}: {model} is packaged, and stored when it is first started"
            return Finding("store", "ok", told)
        told = f"{process} would lack a model: {missing}"
        return Finding("store", "failure", told, cure_of_absence(model, alias, variable))
    except CorruptCheckpoint as damaged:
        return Finding("store", "failure", f"{process}: {damaged}", f"fovea store rollback {model} {alias}")
    except StoreError as error:
        return Finding("store", "failure", f"{process}: {error}", f"fovea store show {model}@{alias}")


def _folders(configured: Configured) -> Iterator[tuple[Path, str]]:
    """Yield each folder that a process writes to, with the variable that sets it; a store may be read-only."""
    for url in configured.values("store_url"):
        if (root := _root(url)) is not None and _can_write(url):
            yield root, "FOVEA_STORE_URL"
    if configured.values("collections_url"):
        for url in configured.values("collections_store_url"):
            if (root := _root(url)) is not None:
                yield root, "FOVEA_EMBED_COLLECTIONS_STORE_URL"
    for setting, variable in FOLDERS.items():
        for folder in configured.values(setting):
            yield folder, variable


def _root(url: str) -> Path | None:
    """Return the folder of a store on this machine."""
    return Path(unquote(urlsplit(url).path)) if urlsplit(url).scheme == "file" else None


def _can_write(url: str) -> bool:
    """Whether the store may be written to, as far as can be told without writing."""
    root = _root(url)
    return root is None or os.access(_existing(root), os.W_OK)


def _existing(folder: Path) -> Path:
    """Return the folder, or where it would be made."""
    while not folder.exists():
        folder = folder.parent
    return folder


REDIS_TIMEOUT_S = 2.0
# Of the next ports after one that is taken.
TRIED_PORTS = 100


def find_ports(configured: Configured) -> Iterator[Finding]:
    """Tell which ports of `fovea up` are free."""
    try:
        programs = plan_programs(configured.to_start, os.environ)
    except BadPort as refused:
        yield Finding("ports", "failure", str(refused), f"unset {str(refused).partition(' ')[0]}")
        return
    free = [program for program in programs if _refusal(program) is None]
    if free:
        told = ", ".join(f"{program.name} {program.port}" for program in free)
        yield Finding("ports", "ok", f"free: {told}", figures={program.name: program.port for program in free})
    planned = {program.port for program in programs}
    for program in programs:
        refusal = _refusal(program)
        if refusal is None:
            continue
        other = _next_free(program, planned)
        cure = f"{program.port_variable}={other} fovea up"
        if _is_fovea(program):
            told = f"{program.name}: a Fovea runs already on {program.host}:{program.port}"
            yield Finding("ports", "warning", told, f"use {program.url}, or start a second one: {cure}")
        else:
            yield Finding("ports", "failure", refusal.partition(". Choose")[0], cure)


def find_redis(configured: Configured) -> Iterator[Finding]:
    """Tell whether the configured Redis servers answer."""
    urls = configured.values("redis_url")
    if not urls:
        yield Finding("redis", "ok", "not configured: each process has its own cache and limits")
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
            return Finding("redis", "ok", f"{label} answers")
    except AuthenticationError:
        cure = "set FOVEA_REDIS_URL with the password: redis://:PASSWORD@HOST:PORT"
        return Finding("redis", "failure", f"{label} refuses the password", cure)
    # The client's parser raises more than RedisError where a server speaks another protocol.
    except (RedisError, OSError, EOFError, ValueError, LookupError, TypeError, AttributeError) as error:
        reason = " ".join(str(error).split()).rstrip(".") or type(error).__name__
        is_local = parts.scheme == "redis" and parts.hostname in ("127.0.0.1", "localhost", "::1")
        start = f"redis-server --port {parts.port or 6379}" if is_local else "start Redis there"
        told = f"{label} does not answer: {reason}"
        return Finding("redis", "failure", told, f"{start}, or go without it: unset FOVEA_REDIS_URL")


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


DATABASE, IMAGES = "FOVEA_EMBED_COLLECTIONS_URL", "FOVEA_EMBED_COLLECTIONS_STORE_URL"
SIGNING = "FOVEA_SIGNING_SECRET_FILE"
PGVECTOR_VERSIONS = (
    "SELECT (SELECT extversion FROM pg_extension WHERE extname = 'vector'),"
    " (SELECT default_version FROM pg_available_extensions WHERE name = 'vector'),"
    " current_setting('is_superuser')::bool"
)
LEAST_POSTGRES = 13
# Vacuuming may damage graphs before this version, and making them may read other memory before 0.8.2 (CVE-2026-3172).
SOUND_PGVECTOR = (0, 8, 4)
# Whether a first process of embed could not make its tables.
LACKS_RIGHT = (
    "SELECT to_regclass('migrations') IS NULL AND NOT coalesce(has_schema_privilege(current_schema(), 'CREATE'), false)"
)


def find_postgres(configured: Configured) -> Iterator[Finding]:
    """Tell whether the database of the collections can be used."""
    settings = _settings(configured)
    # what is not installed is told with the extras
    if (
        settings is None
        or settings.collections_url is None
        or not (is_importable("psycopg") and is_importable("psycopg_pool"))
    ):
        return
    import psycopg

    from services.embed.collections.cluster.connections import LIVENESS, place_of

    url = settings.collections_url
    form = f"{DATABASE}=postgresql://USER:PASSWORD@HOST:PORT/DATABASE"
    try:
        place_of(url)
    except ValueError:
        cure = f"set {form}, with @, / and : in the password as %40, %2F and %3A"
        yield Finding("postgresql", "failure", f"{DATABASE} can't be read as an address", cure)
        return
    options: dict[str, Any] = {"autocommit": True, **LIVENESS}
    try:
        with psycopg.connect(url, **options) as connection:
            yield from _usable_database(connection)
    except (psycopg.Error, ValueError) as error:
        cure = f"start PostgreSQL there, or correct {form}"
        yield Finding("postgresql", "failure", f"{DATABASE}: {first_line(error)}", cure)


def find_image_store(configured: Configured) -> Iterator[Finding]:
    """Tell whether the object store of the images answers."""
    settings = _settings(configured)
    if settings is None:
        return
    if settings.collections_store_url is None:
        yield Finding("images", "ok", f"{IMAGES} is not set: the images are in the model store")
        return
    try:
        objects = Objects(settings.collections_store_url, {})
        objects.children("images")
    except StoreError as error:
        cure = f"check {IMAGES}, its credentials and the network, or unset it: the images are then in the model store"
        yield Finding("images", "failure", f"{IMAGES}: {error}", cure)
    else:
        yield Finding("images", "ok", f"{objects.label} answers")


def _settings(configured: Configured) -> "EmbedSettings | None":
    """Return the settings of embed if its collections are shared."""
    settings = configured.settings.get("embed")
    if settings is None:
        return None
    from services.embed.settings import EmbedSettings

    assert isinstance(settings, EmbedSettings)
    return None if settings.collections_url is None else settings


def _usable_database(connection: Any) -> Iterator[Finding]:
    """Tell what keeps embed from using a database that can be connected to."""
    info = connection.info
    encoding, major = info.parameter_status("server_encoding"), info.server_version // 10_000
    version = (info.parameter_status("server_version") or str(major)).partition(" ")[0]
    failures = []
    if major < LEAST_POSTGRES:
        cure = f"update it to {LEAST_POSTGRES} or newer, or set {DATABASE} to another"
        failures.append((f"PostgreSQL {version} is older than {LEAST_POSTGRES}", cure))
    if encoding != "UTF8":
        cure = f"createdb --encoding UTF8 --template template0 NAME, and set NAME in {DATABASE}"
        failures.append((f"the encoding of {info.dbname} is {encoding}, not UTF8", cure))
    if connection.execute(LACKS_RIGHT).fetchone() == (True,):
        cure = f"as the owner of {info.dbname}: GRANT CREATE ON SCHEMA public TO {info.user}"
        failures.append((f"{info.user} may not make tables in {info.dbname}", cure))
    installed, available, may_create = connection.execute(PGVECTOR_VERSIONS).fetchone()
    failures += _lacking_pgvector(info, installed, available, may_create=may_create)
    for told, cure in failures:
        yield Finding("postgresql", "failure", f"{DATABASE}: {told}", cure)
    if not failures:
        told = f"PostgreSQL {version} answers at {info.host or 'localhost'}, and {info.dbname} can be used"
        yield Finding("postgresql", "ok", told, figures={"version": version})
        yield from _faults_of_pgvector(info, installed or available)


def _lacking_pgvector(
    info: Any, installed: str | None, available: str | None, *, may_create: bool
) -> Iterator[tuple[str, str]]:
    """Tell what is missing of pgvector, and its cure."""
    from services.embed.collections.cluster.connections import PGVECTOR

    least = ".".join(map(str, PGVECTOR))
    if available is None:
        yield "its server lacks pgvector", f"install pgvector {least} or later there"
    elif _numbers(installed or available)[:2] < PGVECTOR:
        cure = f"install pgvector {least} or later on its server, and in {info.dbname}: ALTER EXTENSION vector UPDATE"
        yield f"its pgvector {installed or available} is older than {least}", cure
    elif installed is None and not may_create:
        cure = f"as an administrator, in {info.dbname}: CREATE EXTENSION vector"
        yield f"{info.dbname} lacks the extension vector, and {info.user} may not create it", cure


def _faults_of_pgvector(info: Any, version: str) -> Iterator[Finding]:
    """Warn of a version that works, but has known faults."""
    if _numbers(version) < SOUND_PGVECTOR:
        least = ".".join(map(str, SOUND_PGVECTOR))
        told = f"{DATABASE}: pgvector {version} may damage graphs that are searched, which {least} does not"
        cure = f"update it on the server, and in {info.dbname}: ALTER EXTENSION vector UPDATE"
        yield Finding("postgresql", "warning", told, cure)


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(map(int, re.findall(r"\d+", version)))


def find_signing_secrets(configured: Configured) -> Iterator[Finding]:
    """Tell whether services know the gateway's requests from others'; with a bad file, a process does not start."""
    known: dict[str, tuple[bytes, ...]] = {}
    for name, settings in configured.settings.items():
        try:
            secrets = SigningSecrets.of(settings)
        except SettingsError as refused:
            yield Finding("signing", "failure", str(refused), f"{MAKE} > FILE, named by {SIGNING} for all processes")
            return
        known[name] = secrets.file.content if secrets else ()
    signing = known.pop("gateway", None)
    checking = [name for name, secrets in known.items() if secrets]
    strangers = [name for name in checking if signing is not None and not set(signing[:1]) & set(known[name])]
    if strangers:
        told = f"{', '.join(strangers)} would refuse the gateway's requests: its first secret is not theirs"
        yield Finding("signing", "failure", told, f"set {SIGNING} to the same file for all processes")
    elif checking:
        yield Finding("signing", "ok", f"{', '.join(checking)} answer only what the gateway has signed")
    elif any(not is_loopback(settings.host) for settings in configured.settings.values()):
        told = "services answer whoever reaches them, for any tenant"
        yield Finding("signing", "warning", told, f"{MAKE} > FILE, and set {SIGNING}=FILE for all processes")


def find_gateway_files(configured: Configured) -> Iterator[Finding]:
    """Tell whether each file that is set can be read; without one, the gateway does not start."""
    settings = configured.settings.get("gateway")
    if settings is None:
        return
    from gateway.access import KeyRing
    from gateway.routing.destinations import follow_pools
    from gateway.settings import GatewaySettings

    assert isinstance(settings, GatewaySettings)
    files: list[tuple[Path | None, str, Callable[[GatewaySettings], object]]] = [
        (settings.keys_file, "FOVEA_GATEWAY_KEYS_FILE", KeyRing),
        (settings.pools, "FOVEA_GATEWAY_POOLS", follow_pools),
    ]
    for path, variable, read in files:
        if path is None:
            continue
        try:
            read(settings)
        except SettingsError as refused:
            yield Finding("gateway", "failure", str(refused), f"mend {path}, or unset {variable}")
        else:
            yield Finding("gateway", "ok", f"{variable}: {path} can be read")
