"""The settings of processes, and the one function that reads them from the environment.

A shared setting is read from `FOVEA_<FIELD>` and, for one process only, from `FOVEA_<PROCESS>_<FIELD>`,
which wins. A process's own settings, and its `port`, have the second form only. Creating a settings object in code
reads no environment: only `read_settings` does, and only a `__main__` calls it.
"""

import os
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, TypeVar
from urllib.parse import urlsplit

from pydantic import Field, ValidationError, field_validator
from pydantic_settings import (
    BaseSettings,
    EnvSettingsSource,
    NoDecode,
    PydanticBaseSettingsSource,
    SettingsConfigDict,
)
from pydantic_settings.exceptions import SettingsError as UnreadableVariable

from services.core.byte_sizes import NumBytes
from services.core.refusals import did_you_mean, message_of

SHARED_PREFIX = "FOVEA_"
# Several processes share one environment, so each must know which names belong to others.
PROCESS_PREFIXES = tuple(
    f"{SHARED_PREFIX}{process}_" for process in ("GATEWAY", "PREDICT", "GENERATE", "EMBED", "SCORE", "CURATE")
)
# Read by commands only; a shell that exports them may still start a process.
COMMAND_LINE_VARIABLES = frozenset(
    f"{SHARED_PREFIX}{name}"
    for name in (
        "API_KEY",
        "CODE_REVISION",
        "CURATE_PORT",
        "UP_RESTART_AFTER_S",
        "UP_VLLM",
        "UP_VLLM_OPTIONS",
        "UP_VLLM_PORT",
        "URL",
    )
)
# Processes that shared one value would conflict.
PROCESS_ONLY_FIELDS = frozenset({"port"})

MEBIBYTE = 1024 * 1024
DEFAULT_CHECKPOINT_CACHE_BYTES = 100 * 1024 * MEBIBYTE
DeviceName = Literal["auto", "cuda", "mps", "cpu"]
DtypeName = Literal["auto", "float32", "bfloat16", "float16"]
DEFAULT_STORE_URL = "file://~/.fovea/store"


class SettingsError(SystemExit):
    """A setting that does not exist or holds a value out of range, one sentence per line.

    A SystemExit, so that a program that does not catch it prints the sentences and exits with status 1, without a
    traceback.
    """


class ProcessSettings(BaseSettings):
    """The settings of every listening process, the gateway included."""

    model_config = SettingsConfigDict(env_prefix=SHARED_PREFIX, frozen=True, extra="forbid")

    # What sets fields that are not set by a variable alone, for messages; empty if nothing does.
    set_by: ClassVar[Mapping[str, str]] = {}

    host: str = Field("127.0.0.1", description="Address to listen on; `0.0.0.0` in a container.")
    port: int = Field(ge=0, le=65535, description="Port to listen on; 0: any free port.")
    allowed_hosts: Annotated[tuple[str, ...], NoDecode] = Field(
        (),
        description="Values of `Host` to accept besides `localhost` and IP addresses, separated by commas; "
        "`.example.org` matches all of its subdomains, `*` any name. Unset: none when listening on loopback, otherwise "
        "any.",
    )
    allowed_origins: Annotated[tuple[str, ...], NoDecode] = Field(
        (),
        description="Origins (`https://app.example.org`) whose pages may send requests from a browser, separated by "
        "commas; "
        "`*`: all.",
    )
    log_level: Literal["debug", "info", "warning", "error"] = Field("info", description="Minimum severity to log.")
    log_format: Literal["auto", "json", "console"] = Field(
        "auto",
        description="`json`: one JSON object per line. `console`: short lines for people. `auto`: `console` at a "
        "terminal, otherwise `json`.",
    )
    request_timeout_s: float = Field(60.0, gt=0, description="Default deadline of a request, in seconds.")
    max_request_timeout_s: float = Field(
        600.0, gt=0, description="Maximum deadline that a request may set, in seconds."
    )
    burst_s: float = Field(
        1.0,
        ge=0,
        le=60,
        description="Seconds after the first request waits in which further requests count as one burst and may wait "
        "longer.",
    )
    max_body_bytes: NumBytes = Field(
        64 * MEBIBYTE, gt=0, description="Maximum size of a request body, decompressed, in bytes."
    )
    body_timeout_s: float = Field(
        20.0,
        gt=0,
        description="Seconds that a body may stall or fall behind its minimum rate before the request gets 408.",
    )
    min_body_bytes_per_s: NumBytes = Field(
        4096, gt=0, description="Minimum rate at which a request's body must arrive, regardless of its deadline."
    )
    max_held_body_bytes: NumBytes = Field(
        256 * MEBIBYTE,
        gt=0,
        description="Maximum number of bytes held in request bodies over 256 KiB; one body always fits. Beyond it, the "
        "gateway (where one client may use half) rejects bodies, and a service (where bodies up to 8 MiB have a "
        "separate budget of half the size) queues them.",
    )
    max_connections: int = Field(
        8192,
        gt=0,
        description="Maximum number of open connections; fewer if the limit of open files is low.",
    )
    drain_delay_s: float = Field(
        0.0,
        ge=0,
        description="Seconds after SIGTERM during which /readyz answers 503 but connections are still accepted.",
    )
    drain_timeout_s: float = Field(
        30.0, gt=0, description="Seconds that requests in flight have to finish after SIGTERM and the drain delay."
    )
    redis_url: str | None = Field(
        None,
        repr=False,
        description="`redis://:PASSWORD@HOST:PORT/0`, `rediss://…` with TLS, or `unix://PATH`: cache and rate limits "
        "shared by all processes. Unset: each process has its own.",
    )
    signing_secret_file: Path | None = Field(
        None,
        description="File of the secret by which the gateway signs what it sends to services, which then refuse "
        "everything else, read again when it changes. Unset: services answer whoever reaches them.",
    )
    telemetry: bool = Field(
        default=False,
        description="Send OpenTelemetry traces to `OTEL_EXPORTER_OTLP_ENDPOINT` (extra `telemetry`).",
    )

    @field_validator("allowed_hosts", "allowed_origins", mode="before")
    @classmethod
    def split_names(cls, given: Any) -> Any:
        return tuple(one.strip() for one in given.split(",") if one.strip()) if isinstance(given, str) else given

    @field_validator("redis_url")
    @classmethod
    def check_redis_url(cls, url: str | None) -> str | None:
        """Refuse an address that would be read as another one; the message shows nothing of it, nor of a password."""
        if not url:
            return None
        try:
            parts = urlsplit(url)
            has_place = bool(parts.path if parts.scheme == "unix" else parts.hostname and parts.port != 0)
        except ValueError:
            has_place = False
        form = r"unix:///[^@#]+|rediss?://[^/?#]+(/\d*)?(\?[^@#]*)?|unix://[^/?#]*@/[^@#]+"
        if not has_place or re.fullmatch(form, url) is None:
            raise ValueError(
                "this can't be read as redis://:PASSWORD@HOST:PORT/0, rediss://… (with TLS) or unix://PATH; write @, "
                "/, :, ? and # in a password as %40, %2F, %3A, %3F and %23"
            )
        return url

    @field_validator("allowed_origins")
    @classmethod
    def check_origins(cls, origins: tuple[str, ...]) -> tuple[str, ...]:
        for origin in origins:
            parts = urlsplit(origin)
            if origin != "*" and origin != f"{parts.scheme}://{parts.netloc}".lower():
                raise ValueError(f"{origin!r} is not an origin such as https://app.example.org")
        return origins

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,
        file_secret_settings: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        """Take values from arguments only: nothing but `read_settings` reads the environment."""
        return (init_settings,)


class ServiceSettings(ProcessSettings):
    """The further settings of services that run a model; each subclasses it with its own prefix and fields."""

    store_url: str = Field(
        DEFAULT_STORE_URL,
        description="Model store: `file://`, `s3://`, `gs://` or `memory://`.",
    )
    store_poll_s: float = Field(5.0, gt=0, description="Seconds between checks of the store for a moved alias.")
    load_timeout_s: float = Field(
        600.0,
        gt=0,
        description="Seconds that a version may take to load, warm up and pass its checks before it is rejected.",
    )
    checkpoint_cache_dir: Path = Field(
        Path("~/.fovea/checkpoints"), description="Folder for verified local copies of checkpoints."
    )
    checkpoint_cache_max_bytes: NumBytes = Field(
        DEFAULT_CHECKPOINT_CACHE_BYTES,
        ge=0,
        description="Bytes that these copies may take together; those used longest ago make room for a new one. 0: no "
        "copies, for a store in a folder that nothing changes, such as an image that is mounted.",
    )
    cache_max_bytes: NumBytes = Field(
        256 * MEBIBYTE, ge=0, description="Size of the in-process result cache, in bytes; 0: disabled."
    )
    cache_timeout_s: float = Field(0.1, gt=0, description="Seconds after which a slow Redis counts as a cache miss.")
    cache_ttl_s: float = Field(86_400.0, gt=0, description="Seconds for which Redis keeps a result.")
    max_batch_cost: int = Field(16_384, gt=0, description="Maximum padded cost of one batch (e.g. tokens).")
    max_batch_size: int = Field(64, gt=0, description="Maximum number of items in one batch.")
    max_queue_cost: int = Field(
        262_144, gt=0, description="Maximum total cost of queued items of a kind; further requests get 503."
    )
    min_concurrency: int = Field(
        32,
        gt=0,
        description="Minimum concurrency limit. The service measures how far a higher limit improves throughput.",
    )
    max_concurrency: int = Field(
        1024,
        gt=0,
        description="Maximum concurrency limit. Half of the current limit may wait in addition, and up to this many "
        "requests of a burst; further requests get 503.",
    )
    max_json_values: int = Field(
        262_144,
        gt=0,
        description="Maximum number of values in one JSON body: members of objects count twice.",
    )
    audit_log: Path | None = Field(
        None,
        description="File to which every change of a collection is appended as a JSON line, before and after it is "
        "made. Changes that can't be recorded are rejected.",
    )
    stall_timeout_s: float = Field(120.0, gt=0, description="Seconds that one batch may run before /livez fails.")

    @field_validator("store_url")
    @classmethod
    def expand_home(cls, url: str) -> str:
        return Path(url.removeprefix("file://")).expanduser().as_uri() if url.startswith("file://~") else url

    @field_validator("checkpoint_cache_dir", "audit_log")
    @classmethod
    def expand_home_folder(cls, path: Path | None) -> Path | None:
        return path and path.expanduser()


class ImageSettings(ServiceSettings):
    """Further settings of a service that reads images."""

    num_decode_threads: int = Field(4, ge=1, description="Threads that decode images.")
    max_decode_pixels: int = Field(
        64_000_000,
        ge=1,
        description="Maximum number of pixels decoded concurrently in images over 12.6 million pixels, at 8 bytes "
        "each; a larger image is decoded alone.",
    )
    image_urls: bool = Field(default=False, description="Fetch images from public `http(s)` URLs.")
    image_url_hosts: frozenset[str] = Field(
        frozenset(), description="Hosts to fetch from, as a JSON list; empty: every public host."
    )


SettingsT = TypeVar("SettingsT", bound=ProcessSettings)


def read_settings(settings_cls: type[SettingsT], **overrides: Any) -> SettingsT:
    """Return the settings from the environment; `overrides` (from a command line) win over it.

    Raises SettingsError for a `FOVEA_` variable that no process reads (naming the nearest that exists) and for an
    invalid value, naming the variable that held it.
    """
    if unknown := unknown_variables(settings_cls):
        raise SettingsError("\n".join(unknown))
    try:
        values = {
            **_SharedVariables(settings_cls, env_prefix=SHARED_PREFIX)(),
            **EnvSettingsSource(settings_cls, env_prefix=own_prefix_of(settings_cls))(),
            **overrides,
        }
        return settings_cls(**values)
    except ValidationError as invalid:
        raise SettingsError("\n".join(_complaints(settings_cls, invalid))) from None
    except UnreadableVariable as unreadable:
        name = str(unreadable).split('"')[1]
        raise SettingsError(f"{variable_of(settings_cls, name)}: Input should be valid JSON.") from None


class _SharedVariables(EnvSettingsSource):
    """The environment under the shared prefix, restricted to shared settings."""

    def get_field_value(self, field: Any, field_name: str) -> tuple[Any, str, bool]:
        if not is_shared(field_name):
            return None, field_name, False
        return super().get_field_value(field, field_name)


def is_shared(field_name: str) -> bool:
    """Whether processes share the variable of a field."""
    return field_name in ServiceSettings.model_fields and field_name not in PROCESS_ONLY_FIELDS


def own_prefix_of(settings_cls: type[ProcessSettings]) -> str:
    """Return the beginning of the variables that only this process reads."""
    return settings_cls.model_config.get("env_prefix", SHARED_PREFIX)


def known_variables(settings_cls: type[ProcessSettings]) -> set[str]:
    """Return the variables that a process takes; a shared one that it has no use for is other processes'."""
    shared = {SHARED_PREFIX + name.upper() for name in ServiceSettings.model_fields if is_shared(name)}
    own = {own_prefix_of(settings_cls) + name.upper() for name in settings_cls.model_fields}
    return shared | COMMAND_LINE_VARIABLES | own


def unknown_variables(settings_cls: type[ProcessSettings]) -> list[str]:
    """Return a sentence about each `FOVEA_` variable that nobody reads, as far as one process can know."""
    own_prefix = own_prefix_of(settings_cls)
    known = known_variables(settings_cls)
    foreign = tuple(prefix for prefix in PROCESS_PREFIXES if prefix != own_prefix)
    unknown = [
        variable
        for variable in sorted(os.environ)
        if variable.startswith(SHARED_PREFIX) and variable not in known and not variable.startswith(foreign)
    ]
    return [f"{name} is not a setting{_hint(name, own_prefix, known)}" for name in unknown]


def _hint(unknown: str, own_prefix: str, known: set[str]) -> str:
    own_variable = own_prefix + unknown.removeprefix(SHARED_PREFIX)
    if own_variable in known:
        return f"; did you mean {own_variable}?"
    return did_you_mean(unknown, sorted(known)) or "."


def _complaints(settings_cls: type[ProcessSettings], invalid: ValidationError) -> Iterator[str]:
    for error in invalid.errors(include_url=False, include_context=False, include_input=False):
        if error["loc"]:
            variable = variable_of(settings_cls, str(error["loc"][0]))
            yield f"{'.'.join([variable, *map(str, error['loc'][1:])])}: {message_of(error)}."
        else:  # about several settings, which the message names
            yield f"{message_of(error)}."


def variable_of(settings_cls: type[ProcessSettings], field_name: str) -> str:
    """Return the variable that held a field's value, or that changes its default."""
    own_variable, shared_variable = own_prefix_of(settings_cls) + field_name.upper(), SHARED_PREFIX + field_name.upper()
    if own_variable in os.environ or not is_shared(field_name):
        return own_variable
    has_own_default = field_name in settings_cls.__annotations__
    return own_variable if has_own_default and shared_variable not in os.environ else shared_variable
