"""Objects under keys: a thin layer over obstore that raises the store's errors and writes local files durably."""

import os
import re
import stat
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, unquote, urlsplit

import obstore
import stamina
import structlog
from obstore.exceptions import AlreadyExistsError, BaseError, InvalidPathError, NotSupportedError, PreconditionError
from obstore.store import LocalStore, from_url

from services.core.durable_files import delete_durably, half_written_files, write_durably
from services.core.printable import first_line, printable
from services.core.refusals import shown_names
from services.core.store.errors import NotFoundInStore, StoreUnavailable
from services.core.store.s3_listing import raw_listing

SCHEMES = ("file", "memory", "s3", "gs")
# Secrets, which must not be in a URL, since URLs are logged and copied.
SECRET_WORDS = ("secret", "token", "password", "access_key", "credential")

READ_CHUNK_BYTES = 4 * 1024 * 1024
# Manifests and aliases, which are read whole.
MAX_OBJECT_BYTES = 8 * 1024 * 1024
# A body up to this size travels in one request, a longer one in parts.
SINGLE_PUT_BYTES = 8 * 1024 * 1024

# Where obstore takes an endpoint from that the URL does not name, and what to set instead.
ENDPOINT_VARIABLES = ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL", "AWS_ENDPOINT")
ENDPOINT = "endpoint= in the store URL or AWS_ENDPOINT_URL"
UNREADABLE_KEY = "a key with an empty part, `.` or `..`, or that is not UTF-8, can't be read"
# What an error says, and what to do about it; the first that matches counts.
CURES = (
    ("169.254.169.254", "there are no credentials; set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY"),
    ("ExpiredToken", "the credentials have expired; renew AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY, AWS_SESSION_TOKEN"),
    (
        "AuthorizationHeaderMalformed|PermanentRedirect|configured region",
        "the bucket is in another region; set region= in the store URL or AWS_REGION",
    ),
    (
        "InvalidAccessKeyId|SignatureDoesNotMatch|401 Unauthorized|403 Forbidden",
        "the store refuses the credentials; check AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or"
        " GOOGLE_APPLICATION_CREDENTIALS, and what they may do",
    ),
    ("404 Not Found", f"the endpoint has no such bucket; check the bucket's name, and {ENDPOINT}"),
    (
        "InvalidCertificate",
        "the certificate of the endpoint is refused; set SSL_CERT_FILE to a file with the certificate of its authority,"
        " and check the endpoint's name and the clock",
    ),
    ("HTTP error", f"there is no answer; check {ENDPOINT}, and the network"),
    ("invalid path", f"{UNREADABLE_KEY}; rename or delete that object"),
)

CONNECT_TIMEOUT_S = 5
# Seconds of silence; a whole request may take as long as many gigabytes take.
READ_TIMEOUT_S = 60
REQUEST_TIMEOUT_S = 3 * 3600
MAX_RETRIES = 4
RETRY_TIMEOUT_S = 30

log = structlog.get_logger(__name__)


class ConditionFailed(Exception):
    """The object was not as the writer of a conditional put expected it."""


class ConditionUnsupported(Exception):
    """The store answered that it has no conditional puts."""


class _BrokenOff(StoreUnavailable):
    """An answer that ended before its body was complete."""


@dataclass(frozen=True)
class StoredObject:
    body: bytes
    e_tag: str | None


@dataclass(frozen=True)
class Entry:
    """One entry of a listing; `modified` is by the store's clock."""

    key: str
    size_bytes: int
    modified: datetime


@dataclass(frozen=True)
class Listing:
    """Objects under a prefix, unordered, and the full names of those that can't be read (see UNREADABLE_KEY)."""

    entries: list[Entry]
    unreadable: list[str]


class Objects:
    """The objects of one store.

    Reads, listings and remote writes go through obstore, which repeats a request that fails in transit (with
    back-off). Local writes are our own: obstore moves a file into place without an fsync, and a power cut could leave
    an alias empty. Every method raises StoreUnavailable where the store fails.

    `memory://` is a new, empty store each time it is opened.
    """

    def __init__(self, url: str, options: Mapping[str, str]) -> None:
        parts = urlsplit(url)
        if parts.scheme not in SCHEMES:
            raise StoreUnavailable(f"store URL {url!r} must begin with {', '.join(f'{s}://' for s in SCHEMES)}")
        if "@" in parts.netloc:
            raise StoreUnavailable("a store URL must not contain credentials; set AWS_… or GOOGLE_… in the environment")
        self.label = f"{parts.scheme}://{parts.netloc}{parts.path}"
        self.root: Path | None = None
        if parts.scheme == "file":
            self.root = _local_root(parts.netloc, parts.path, url)
        else:
            self._options = {**_options_in_url(parts.query), **options}
            self._remote = _open_remote(self.label, self._options)

    @stamina.retry(on=_BrokenOff, attempts=4, wait_initial=0.02, wait_max=0.5, wait_jitter=0.05)
    def read(self, key: str) -> StoredObject:
        """Read a whole object of at most MAX_OBJECT_BYTES. Raises NotFoundInStore.

        Repeated where the body breaks off, as on some servers when the object is replaced meanwhile.
        """
        with self._translated(key):
            result = obstore.get(self._store(key), key)
            if result.meta["size"] > MAX_OBJECT_BYTES:
                raise StoreUnavailable(f"{self.label}: {key} has more than {MAX_OBJECT_BYTES} bytes")
            try:
                body = bytes(result.bytes())
            except BaseError as error:
                raise _BrokenOff(f"{self.label}: {printable(first_line(error))}") from error
            return StoredObject(body, result.meta["e_tag"])

    def size_bytes(self, key: str) -> int:
        """Return the object's size. Raises NotFoundInStore."""
        with self._translated(key):
            return obstore.head(self._store(key), key)["size"]

    def entry(self, key: str) -> Entry:
        """Return the object's size and time. Raises NotFoundInStore."""
        with self._translated(key):
            meta = obstore.head(self._store(key), key)
            return Entry(meta["path"], meta["size"], meta["last_modified"])

    def read_chunks(self, key: str) -> Iterator[bytes]:
        """Yield the object's bytes in order, in one request: some servers get ranges wrong. Raises NotFoundInStore."""
        with self._translated(key):
            yield from obstore.get(self._store(key), key).stream(min_chunk_size=READ_CHUNK_BYTES)

    def read_range(self, key: str, start: int, num_bytes: int) -> bytes:
        """Read at most `num_bytes` bytes from `start` on, which must lie in the object. Raises NotFoundInStore."""
        with self._translated(key):
            return bytes(obstore.get_range(self._store(key), key, start=start, length=num_bytes))

    def write(self, key: str, chunks: Iterable[bytes], size_bytes: int) -> None:
        """Create or replace an object in one step; what was there before is lost."""
        with self._translated(key):
            if self.root is not None:
                write_durably(self._local_path(key), chunks)
            elif size_bytes <= SINGLE_PUT_BYTES:
                obstore.put(self._remote, key, b"".join(chunks), use_multipart=False)
            else:
                # S3 takes at most 10,000 parts.
                chunk_size = max(SINGLE_PUT_BYTES, size_bytes // 5000)
                obstore.put(self._remote, key, iter(chunks), chunk_size=chunk_size, max_concurrency=4)

    def create(self, key: str, body: bytes) -> None:
        """Write only where there is no object. Raises ConditionFailed, ConditionUnsupported."""
        self._write_conditionally(key, body, "create")

    def replace(self, key: str, body: bytes, e_tag: str) -> None:
        """Write only over the object with this tag. Raises ConditionFailed, ConditionUnsupported."""
        self._write_conditionally(key, body, {"e_tag": e_tag})

    def entries(self, prefix: str | None) -> list[Entry]:
        """Return every readable object under `prefix/`, or of the whole store, unordered."""
        return self.listing(prefix).entries

    def listing(self, prefix: str | None) -> Listing:
        """List every object under `prefix/`, or of the whole store; a warning names those that can't be read.

        Those that a local store reaches by symbolic links are left out.
        """
        with self._translated(prefix or "*"):
            if self._is_absent():
                return Listing([], [])
            store = self._whole() if prefix is None else self._store(prefix)
            try:
                listing = obstore.list(store, prefix).collect()
                found = [Entry(meta["path"], meta["size"], meta["last_modified"]) for meta in listing]
            except InvalidPathError:
                if self.label.startswith("gs:"):
                    raise
                found = list(self._raw_entries(prefix))
            refused = (entry.key for entry in found if not _is_readable(entry.key))
            unreadable = sorted(printable(f"{self.label}/{key}") for key in refused)
            entries = [entry for entry in found if _is_readable(entry.key) and not self._is_linked(entry.key)]
            if unreadable:
                log.warning(f"objects are skipped: {UNREADABLE_KEY}", keys=shown_names(unreadable))
            return Listing(entries, unreadable)

    def children(self, prefix: str) -> list[str]:
        """Return the names directly under `prefix/`, sorted, folders included."""
        with self._translated(prefix):
            if self._is_absent():
                return []
            try:
                listing = obstore.list_with_delimiter(self._store(prefix), prefix)
            except InvalidPathError:
                return sorted({entry.key[len(prefix) + 1 :].split("/", 1)[0] for entry in self.entries(prefix)})
        paths = [*listing["common_prefixes"], *(meta["path"] for meta in listing["objects"])]
        return sorted(path.rsplit("/", 1)[-1] for path in paths if not self._is_linked(path))

    def delete(self, keys: Iterable[str]) -> None:
        """Remove objects one by one; one that is gone already is no error."""
        for key in keys:
            with self._translated(key):
                if self.root is not None:
                    delete_durably(self._local_path(key))
                else:
                    obstore.delete(self._remote, key)

    def delete_half_written(self, before: datetime) -> None:
        """Remove unfinished files of killed writers in a local store; a remote one never shows such files."""
        if self.root is None:
            return
        # Files come and go meanwhile; the next sweep finds what this one misses.
        with self._translated("*"), suppress(FileNotFoundError):
            for staged in half_written_files(self.root):
                if staged.stat().st_mtime < before.timestamp():
                    staged.unlink(missing_ok=True)

    def _raw_entries(self, prefix: str | None) -> Iterator[Entry]:
        """Yield what obstore refuses to list, with the keys as they are."""
        if self.root is not None:
            for path in (self.root / (prefix or "")).rglob("*"):
                if path.is_file():
                    status = path.stat()
                    modified = datetime.fromtimestamp(status.st_mtime, UTC)
                    yield Entry(path.relative_to(self.root).as_posix(), status.st_size, modified)
            return
        parts = urlsplit(self.label)
        root = f"{unquote(parts.path).strip('/')}/".lstrip("/")
        for key, size_bytes, modified in raw_listing(
            parts.netloc, f"{root}{prefix}/" if prefix else root, self._options
        ):
            if not (key.endswith("/") and _is_readable(key[:-1])):  # the empty object that marks a folder
                yield Entry(key.removeprefix(root), size_bytes, modified)

    def _write_conditionally(self, key: str, body: bytes, mode: Any) -> None:
        with self._translated(key):
            try:
                obstore.put(self._store(key), key, body, mode=mode)
            except (AlreadyExistsError, PreconditionError) as error:
                raise ConditionFailed(key) from error
            except (NotImplementedError, NotSupportedError) as error:
                raise ConditionUnsupported(key) from error
            except BaseError as error:
                if "501 Not Implemented" not in str(error):
                    raise
                raise ConditionUnsupported(key) from error

    def _is_absent(self) -> bool:
        """Whether it is a local store whose folder does not exist yet, which counts as empty."""
        return self.root is not None and not self.root.is_dir()

    def _store(self, key: str) -> Any:
        if self.root is not None:
            if self._is_absent():
                raise FileNotFoundError(key)
            self._local_path(key)
        return self._whole()

    def _whole(self) -> Any:
        return self._remote if self.root is None else LocalStore(self.root)

    def _local_path(self, key: str) -> Path:
        """Return an object's path in a local store. Raises StoreUnavailable for a key that leads out of it.

        A writer to the store could have put a link, a pipe or a device there: foreign files would be written, read or
        deleted, or reading would never end.
        """
        assert self.root is not None, "a local store"
        parts = key.split("/")
        if not all(parts) or {".", ".."} & set(parts) or "\0" in key:
            raise StoreUnavailable(f"{self.label}: {key!r} is not a valid key")
        path = self.root
        for part in parts:
            path /= part
            try:
                mode = path.lstat().st_mode
            except FileNotFoundError:
                break
            if not (stat.S_ISDIR(mode) or stat.S_ISREG(mode)):
                raise StoreUnavailable(f"{self.label}: {key!r} leads through a symbolic link or a special file")
        return self.root / key

    def _is_linked(self, key: str) -> bool:
        if self.root is None:
            return False
        try:
            self._local_path(key)
        except (StoreUnavailable, OSError):
            return True
        return False

    @contextmanager
    def _translated(self, key: str) -> Iterator[None]:
        try:
            yield
        except FileNotFoundError as error:
            raise NotFoundInStore(f"{key} is not in {self.label}") from error
        except (BaseError, OSError, ValueError) as error:
            raise StoreUnavailable(f"{self.label}: {_told(error)}") from error
        except BaseException as error:
            if type(error).__name__ != "PanicException":  # a panic of Rust is no Exception
                raise
            raise StoreUnavailable(f"{self.label}: the store's client failed: {printable(first_line(error))}") from None


def _is_readable(key: str) -> bool:
    """Whether obstore can read the key."""
    return not {"", ".", ".."} & set(key.split("/")) and key == key.encode(errors="ignore").decode()


def _told(error: Exception) -> str:
    """Say what to do about an error, if that is known, and what it is."""
    text = printable(first_line(error))
    cure = next((cure for said, cure in CURES if re.search(said, str(error))), None)
    return text if cure is None else f"{cure} ({text})"


def _local_root(host: str, path: str, url: str) -> Path:
    if host not in ("", "localhost"):
        raise StoreUnavailable(f"store URL {url!r} needs an absolute path: file:///…")
    return Path(unquote(path))


def _options_in_url(query: str) -> dict[str, str]:
    options = dict(parse_qsl(query))
    for option in options:
        if any(word in option for word in SECRET_WORDS):
            raise StoreUnavailable(
                f"store URL: {option} does not belong in a URL; set AWS_… or GOOGLE_… in the environment"
            )
    return options


def _endpoint(label: str, options: Mapping[str, str]) -> str:
    """Return the address of an S3 server, "" for AWS's own. Raises StoreUnavailable for two of them, and
    for one at which obstore panics."""
    given = [options.get("endpoint"), *(os.environ.get(name) for name in ENDPOINT_VARIABLES)]
    endpoint = next((one for one in given if one), "") if label.startswith("s3:") else ""
    of_s3 = os.environ.get("AWS_ENDPOINT_URL_S3") or endpoint
    if endpoint and endpoint.rstrip("/") != of_s3.rstrip("/"):  # obstore would take the environment's
        raise StoreUnavailable(f"{label}: endpoint={endpoint} and AWS_ENDPOINT_URL_S3={of_s3} differ; unset one")
    try:
        parts = urlsplit(endpoint)
        is_address = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        is_address = False
    if endpoint and (not is_address or parts.query or " " in endpoint):
        raise StoreUnavailable(f"{label}: the endpoint {endpoint!r} is no http:// or https:// address; set {ENDPOINT}")
    return endpoint


def _open_remote(label: str, options: dict[str, str]) -> Any:
    if label.startswith("memory:"):
        return from_url("memory:///")
    client_options: dict[str, Any] = {
        "connect_timeout": timedelta(seconds=CONNECT_TIMEOUT_S),
        "read_timeout": timedelta(seconds=READ_TIMEOUT_S),
        "timeout": timedelta(seconds=REQUEST_TIMEOUT_S),
    }
    if _endpoint(label, options).lower().startswith("http://"):
        client_options["allow_http"] = True
    try:
        # The overloads expect the options of one kind of store, which is known only from the URL.
        open_url: Any = from_url
        return open_url(
            label,
            config=options,
            client_options=client_options,
            retry_config={"max_retries": MAX_RETRIES, "retry_timeout": timedelta(seconds=RETRY_TIMEOUT_S)},
        )
    except (BaseError, ValueError) as error:
        raise StoreUnavailable(f"{label}: {printable(first_line(error))}") from error
