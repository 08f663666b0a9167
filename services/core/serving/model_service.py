"""Parts of every service that runs a model: the liveness check, and the packaged starters."""

import structlog

from services.core.batching.compute_thread import ComputeThread
from services.core.http.health import CheckResult
from services.core.store.errors import StoreUnavailable
from services.core.store.starters import packaged_starters
from services.core.store.store import Store


def check_compute(thread: ComputeThread, stall_timeout_s: float) -> CheckResult:
    """Check for `/livez` that calls are run, and none for longer than `stall_timeout_s`."""
    stalled_s = thread.stalled_for_s()
    if not thread.is_alive:
        return False, "the compute thread has ended"
    return stalled_s < stall_timeout_s, f"running one batch for {stalled_s:.1f} s" if stalled_s else "idle"


def publish_packaged_starters(store: Store) -> None:
    """Publish the packaged checkpoints to an empty store; one that can't be written now is used as it is."""
    try:
        store.publish_starters(packaged_starters())
    except StoreUnavailable as error:
        structlog.get_logger(__name__).warning("starter checkpoints not published", error=str(error))
