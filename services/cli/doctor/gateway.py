"""The files that the gateway follows: its keys and its pools."""

from collections.abc import Callable, Iterator
from pathlib import Path

from services.cli.doctor.configured import Configured
from services.cli.doctor.findings import Finding
from services.core.settings import SettingsError

TOPIC_GATEWAY = "gateway"


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
            yield Finding(TOPIC_GATEWAY, "failure", str(refused), f"mend {path}, or unset {variable}")
        else:
            yield Finding(TOPIC_GATEWAY, "ok", f"{variable}: {path} can be read")
