"""The needs of shared collections: PostgreSQL, Milvus and an object store.

URLs of the first two may contain a password, so nothing of them is told but what the servers say, and that only where
no part of a password can have been read as something else.
"""

from collections.abc import Iterator
from contextlib import closing
from typing import TYPE_CHECKING, Any

from services.cli.doctor.configured import Configured
from services.cli.doctor.findings import Finding
from services.cli.doctor.installation import is_importable
from services.core.errors import Overloaded
from services.core.printable import first_line
from services.core.store.errors import StoreError
from services.core.store.objects import Objects

if TYPE_CHECKING:
    from services.embed.settings import EmbedSettings

TOPIC_POSTGRES, TOPIC_MILVUS, TOPIC_IMAGES = "postgresql", "milvus", "images"
DATABASE, VECTORS, IMAGES = (f"FOVEA_EMBED_{name}_URL" for name in ("COLLECTIONS", "VECTORS", "COLLECTIONS_STORE"))
LEAST_POSTGRES = 13
# Whether a first process of embed could not make its tables.
LACKS_RIGHT = (
    "SELECT to_regclass('migrations') IS NULL AND NOT coalesce(has_schema_privilege(current_schema(), 'CREATE'), false)"
)


def find_postgres(configured: Configured) -> Iterator[Finding]:
    """Tell whether the database of the collections can be used."""
    settings = _settings(configured)
    # what is not installed is told with the extras
    if settings is None or settings.collections_url is None or not _can_import("psycopg", "psycopg_pool"):
        return
    import psycopg

    from services.embed.collections.cluster.connections import LIVENESS, place_of

    url = settings.collections_url
    form = f"{DATABASE}=postgresql://USER:PASSWORD@HOST:PORT/DATABASE"
    try:
        place_of(url)
    except ValueError:
        cure = f"set {form}, with @, / and : in the password as %40, %2F and %3A"
        yield Finding(TOPIC_POSTGRES, "failure", f"{DATABASE} can't be read as an address", cure)
        return
    options: dict[str, Any] = {"autocommit": True, **LIVENESS}
    try:
        with psycopg.connect(url, **options) as connection:
            yield from _usable_database(connection)
    except (psycopg.Error, ValueError) as error:
        cure = f"start PostgreSQL there, or correct {form}"
        yield Finding(TOPIC_POSTGRES, "failure", f"{DATABASE}: {first_line(error)}", cure)


def find_milvus(configured: Configured) -> Iterator[Finding]:
    """Tell whether the vectors' database answers."""
    settings = _settings(configured)
    if settings is None or settings.vectors_url is None or not _can_import("pymilvus"):
        return
    from services.embed.collections.cluster.milvus import OPEN_TIMEOUT_S, address_of, connection_to, reason_of

    try:
        with closing(connection_to(settings.vectors_url)) as vectors:
            version = vectors.run("tell its version", lambda milvus: milvus.get_server_version(timeout=OPEN_TIMEOUT_S))
    except Overloaded as error:
        cure = f"start Milvus there, or correct {VECTORS}=http://USER:PASSWORD@HOST:PORT"
        yield Finding(TOPIC_MILVUS, "failure", f"{VECTORS}: {reason_of(error.__cause__ or error)}", cure)
    else:
        address = address_of(settings.vectors_url)
        yield Finding(TOPIC_MILVUS, "ok", f"Milvus {version} answers at {address}", figures={"version": version})


def find_image_store(configured: Configured) -> Iterator[Finding]:
    """Tell whether the object store of the images answers."""
    settings = _settings(configured)
    if settings is None:
        return
    if settings.collections_store_url is None:
        yield Finding(TOPIC_IMAGES, "ok", f"{IMAGES} is not set: the images are in the model store")
        return
    try:
        objects = Objects(settings.collections_store_url, {})
        objects.children("images")
    except StoreError as error:
        cure = f"check {IMAGES}, its credentials and the network, or unset it: the images are then in the model store"
        yield Finding(TOPIC_IMAGES, "failure", f"{IMAGES}: {error}", cure)
    else:
        yield Finding(TOPIC_IMAGES, "ok", f"{objects.label} answers")


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
    for told, cure in failures:
        yield Finding(TOPIC_POSTGRES, "failure", f"{DATABASE}: {told}", cure)
    if not failures:
        told = f"PostgreSQL {version} answers at {info.host or 'localhost'}, and {info.dbname} can be used"
        yield Finding(TOPIC_POSTGRES, "ok", told, figures={"version": version})


def _can_import(*modules: str) -> bool:
    return all(map(is_importable, modules))
