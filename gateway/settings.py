"""The gateway's settings."""

import re
from ipaddress import ip_network
from pathlib import Path
from typing import Annotated, Any, Literal, get_args
from urllib.parse import urlsplit

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, StringConstraints, field_validator
from pydantic_settings import NoDecode, SettingsConfigDict

from gateway.rate_limits import parse_rate
from services.core.exchange import DEFAULT_TENANT, TENANT_PATTERN
from services.core.settings import ProcessSettings

Service = Literal["predict", "generate", "embed", "score"]
# Who answers requests that are sent on: a service, or the review of `fovea curate review`.
Backend = Literal[Service, "review"]
# Levels of access to a backend, each including the ones before it: `write` permits changes to stored data, `admin` also
# shows how long each stage took.
Level = Literal["read", "write", "admin"]
# A backend's routes up to a level (`write` where none is named), the gateway's `/metrics`, or everything.
SCOPES = (
    *(f"{backend}{level}" for backend in get_args(Backend) for level in ("", *(f":{one}" for one in get_args(Level)))),
    "metrics",
    "admin",
)
URL_FIELDS = ("predict_urls", "generate_urls", "embed_urls", "score_urls", "collections_urls")


def check_scope(scope: str) -> str:
    """Return the scope unchanged. Raises ValueError for one that does not exist."""
    if scope not in SCOPES:
        raise ValueError(f"{scope!r} is not one of {', '.join(SCOPES)}")
    return scope


Scope = Annotated[str, AfterValidator(check_scope)]
Sha256 = Annotated[str, StringConstraints(pattern=r"^[0-9a-f]{64}$")]


def check_base_urls(urls: tuple[str, ...]) -> tuple[str, ...]:
    """Return base URLs unchanged. Raises ValueError for one that is none."""
    for url in urls:
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ValueError(f"{url!r} is not a base URL such as http://embed:8103")
        if parts.path.strip("/") or parts.query or parts.fragment or parts.username:
            raise ValueError(f"{url!r} must consist of only scheme, host and port")
        try:
            _ = parts.port
        except ValueError:
            raise ValueError(f"{url!r} has no port from 0 to 65535") from None
    return urls


Rate = Annotated[str, AfterValidator(parse_rate)]


def check_limited_model(name: str) -> str:
    """Return the name of a model unchanged. Raises ValueError for one with a version or an alias, and for none."""
    if re.fullmatch(r"[^@\s]+", name) is None:
        raise ValueError(f"{name!r} can't be limited: a limit is of a model's name without a version, as vicuna-7b")
    return name


class Limits(BaseModel):
    """Limits in requests and in tokens, such as `600/minute`."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    rate_limit: Rate | None = None
    token_limit: Rate | None = None


class LimitsByModel(Limits):
    """Limits of all requests, and beside them limits of those that a model answers."""

    models: dict[str, Limits] = {}

    @field_validator("models")
    @classmethod
    def check_models(cls, models: dict[str, Limits]) -> dict[str, Limits]:
        for name in models:
            check_limited_model(name)
        return models


class KeyRecord(LimitsByModel):
    """One key as it is stored: its digest, never the key itself."""

    name: str = Field(min_length=1, max_length=100)
    sha256: Sha256
    scopes: frozenset[Scope]
    created: str | None = None
    tenant: str = DEFAULT_TENANT
    canary: bool = False

    @field_validator("tenant")
    @classmethod
    def check_tenant(cls, tenant: str) -> str:
        if re.fullmatch(TENANT_PATTERN, tenant) is None:
            raise ValueError(
                f"{tenant!r} is no tenant: up to 63 lower-case letters, digits, dots, dashes and underscores, "
                "of which the first is a letter or a digit"
            )
        return tenant


class GatewaySettings(ProcessSettings):
    """The gateway's own settings, read from `FOVEA_GATEWAY_<FIELD>`."""

    model_config = SettingsConfigDict(env_prefix="FOVEA_GATEWAY_")

    port: int = Field(8080, ge=0, le=65535)
    predict_urls: Annotated[tuple[str, ...], NoDecode] = Field(
        ("http://127.0.0.1:8101",), description="Base URLs of predict, separated by commas."
    )
    generate_urls: Annotated[tuple[str, ...], NoDecode] = Field(
        ("http://127.0.0.1:8102",), description="Base URLs of generate, separated by commas."
    )
    embed_urls: Annotated[tuple[str, ...], NoDecode] = Field(
        ("http://127.0.0.1:8103",), description="Base URLs of embed, separated by commas."
    )
    score_urls: Annotated[tuple[str, ...], NoDecode] = Field(
        ("http://127.0.0.1:8104",), description="Base URLs of score, separated by commas."
    )
    canary_urls: dict[Service, tuple[str, ...]] = Field(
        {},
        description='Base URLs of canaries, as JSON such as `{"embed":["http://embed-canary:8103"]}`. They receive '
        "only the requests with `X-Fovea-Canary: true`.",
    )
    collections_urls: Annotated[tuple[str, ...], NoDecode] = Field(
        (),
        description="Base URLs of the only embed process with collections, which receives `/collections` and requests "
        "that name an image of a collection. Unset: every embed process receives both.",
    )
    review_url: str | None = Field(
        None,
        description="Base URL of a review (`fovea curate review`), which the console then shows. Unset: none.",
    )
    pools: Path | None = Field(
        None,
        description="JSON file of pools, processes of a service that serve some of its models, read again when it "
        "changes. Unset: all requests of a service go to its base URLs.",
    )
    pools_poll_s: float = Field(2.0, gt=0, description="Seconds between checks of the file of pools for changes.")
    dns_refresh_s: float = Field(5.0, gt=0, description="Seconds between DNS lookups of a service's host name.")
    probe_interval_s: float = Field(1.0, gt=0, description="Seconds between readiness probes of an instance.")
    unanswered_probes: int = Field(
        5,
        gt=0,
        description="Consecutive unanswered readiness probes after which an instance is considered hung.",
    )
    max_inflight_requests: int = Field(
        1024, gt=0, description="Maximum number of requests in flight to one service; further requests are queued."
    )
    max_queued_requests: int = Field(
        1024, ge=0, description="Maximum number of requests queued for one service; further requests get 503."
    )
    wait_for_service_s: float = Field(
        0.0,
        ge=0,
        description="Seconds that requests wait for a service without a ready instance (scale from zero).",
    )
    wake_s: dict[str, Annotated[float, Field(gt=0)]] = Field(
        {},
        description="Seconds that requests wait for services and pools that scale to zero, as JSON such as "
        '`{"predict":530}`; the default deadline of a request that finds one asleep is as much longer.',
    )
    keys_file: Path | None = Field(
        None,
        description="JSON file of keys (`fovea keys create`), read again when it changes. Unset: no key is required.",
    )
    keys: tuple[KeyRecord, ...] = Field((), description="Additional keys: a JSON list of entries of a keys file.")
    keys_poll_s: float = Field(2.0, gt=0, description="Seconds between checks of the keys file for changes.")
    rate_limit: str | None = Field(
        None,
        description="Rate limit of a key (without keys: of a client address), such as `600/minute`. Unset: no limit.",
    )
    failed_key_limit: str | None = Field(
        "60/minute",
        description="Rate limit of requests with a missing or invalid key from one client address, those to `/docs` "
        "and `/openapi.json` too; further requests get 429. No effect if no key is required.",
    )
    trusted_proxies: Annotated[tuple[str, ...], NoDecode] = Field(
        (),
        description="Addresses or networks (`10.42.0.0/16`) of proxies in front, separated by commas. "
        "`X-Forwarded-For` is trusted only from these.",
    )
    console: bool = Field(True, description="Serve the console, a page that tries the services out, at `/console`.")
    client_connection_share: float = Field(
        0.5,
        gt=0,
        le=1,
        description="Share of the connections that one client address may have open; 1: all. No effect for "
        "`trusted_proxies`, whose connections carry many clients.",
    )

    @field_validator(*URL_FIELDS, "trusted_proxies", mode="before")
    @classmethod
    def split_at_commas(cls, given: Any) -> Any:
        return tuple(one.strip() for one in given.split(",") if one.strip()) if isinstance(given, str) else given

    @field_validator(*URL_FIELDS)
    @classmethod
    def check_urls(cls, urls: tuple[str, ...]) -> tuple[str, ...]:
        return check_base_urls(urls)

    @field_validator("review_url")
    @classmethod
    def check_review_url(cls, url: str | None) -> str | None:
        return check_base_urls((url,))[0] if url else None

    @field_validator("canary_urls")
    @classmethod
    def check_canary_urls(cls, urls: dict[Service, tuple[str, ...]]) -> dict[Service, tuple[str, ...]]:
        return {service: check_base_urls(given) for service, given in urls.items()}

    @field_validator("trusted_proxies")
    @classmethod
    def check_networks(cls, proxies: tuple[str, ...]) -> tuple[str, ...]:
        for proxy in proxies:
            ip_network(proxy)  # raises ValueError, quoting an invalid one
        return proxies

    @field_validator("rate_limit", "failed_key_limit")
    @classmethod
    def check_rate(cls, rate: str | None) -> str | None:
        return parse_rate(rate) if rate else None

    def urls(self) -> dict[Service, tuple[str, ...]]:
        """Return the base URLs by service; this deployment lacks a service without any."""
        return {
            "predict": self.predict_urls,
            "generate": self.generate_urls,
            "embed": self.embed_urls,
            "score": self.score_urls,
        }

    def has_own_urls(self, service: Service) -> bool:
        """Whether base URLs of a service were set, be they those of the default."""
        return f"{service}_urls" in self.model_fields_set and bool(self.urls()[service])
