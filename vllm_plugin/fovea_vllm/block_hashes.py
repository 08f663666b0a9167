"""Keys and values of calibrated rows apart from others in vLLM's prefix cache.

A block's hash covers its tokens and those before it. A calibrated row has other keys and values than the same tokens
without calibration, so blocks from the first calibrated row on get the digest of the calibration as an extra key.
Blocks before it are shared with any request.
"""

from typing import Any

from vllm.v1.core import block_pool, kv_cache_utils

from fovea_vllm.request import DocumentRequest

_original = kv_cache_utils.generate_block_hash_extra_keys


def keys_with_calibration(
    request: Any, start_token_idx: int, end_token_idx: int, start_mm_idx: int
) -> tuple[tuple[Any, ...] | None, int]:
    """Add the calibration's digest to vLLM's extra keys of a block; the later arguments are vLLM's own."""
    keys, next_mm_idx = _original(request, start_token_idx, end_token_idx, start_mm_idx)
    found = _calibration_of(request)
    if found is not None and end_token_idx > found[0]:
        keys = (*(keys or ()), ("fovea", found[1]))
    return keys, next_mm_idx


def install() -> None:
    """Replace vLLM's function where it is used; a second call changes nothing."""
    for module in (kv_cache_utils, block_pool):
        module.generate_block_hash_extra_keys = keys_with_calibration


def _calibration_of(request: Any) -> tuple[int, str] | None:
    """The first calibrated row and the calibration's digest, computed once for each request; None without one."""
    if "_fovea_calibration" not in vars(request):
        asked = DocumentRequest.of(request.sampling_params.extra_args) if request.sampling_params else None
        is_calibrated = asked is not None and asked.is_calibrated
        request._fovea_calibration = (asked.first_calibrated, asked.cache_key) if asked and is_calibrated else None
    found: tuple[int, str] | None = request._fovea_calibration
    return found
