"""Warnings of limits that name a model which no service has, and so never apply."""

import asyncio

import structlog

from gateway.access import KeyRing
from gateway.directory import Directory
from services.core.refusals import near_names

log = structlog.get_logger(__name__)


async def warn_of_unserved_models(keys: KeyRing, directory: Directory, poll_s: float) -> None:
    """Log each limited model that no service has, once all services list theirs, until cancelled."""
    checked: set[str] = set()
    while True:
        limited = keys.limited_models()
        if unknown := limited.keys() - checked:
            served = await directory.served_models()
            for name in sorted(unknown - served) if served is not None else ():
                nearest = near_names(name, served or (), similarity=0)
                log.warning("limit_of_unserved_model", model=name, limits=limited[name], nearest=" ".join(nearest))
            checked |= unknown if served is not None else set()
        await asyncio.sleep(poll_s)
