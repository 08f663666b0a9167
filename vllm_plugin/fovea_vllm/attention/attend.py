"""Attention of document rows over a paged cache, calibrated or only measured: on a GPU in Triton, else in torch."""

import importlib.util
from collections.abc import Callable

import torch
from torch import Tensor

from fovea_vllm.attention import paged
from fovea_vllm.attention.rows import DocumentRows

DTYPES = (torch.float16, torch.bfloat16, torch.float32, torch.float64)


def attend_documents(  # noqa: PLR0913 (a layer's attention and what calibrates it)
    query: Tensor,
    key_cache: Tensor,
    value_cache: Tensor,
    rows: DocumentRows,
    log_alpha: Tensor | None,
    *,
    scale: float,
    window: int | None = None,
    soft_cap: float | None = None,
) -> tuple[Tensor, Tensor]:
    """Attend R rows with their documents' weights rescaled by Eq. 3.5, and measure Attn(k) without that.

    `query` (R, H, D); `key_cache` and `value_cache` (blocks, B, H', D) views of the layer's cache with any strides, in
    the dtype of the query: float16, bfloat16, float32 or, in torch, float64; the rows' own keys and values are in it.
    `log_alpha` (R, K), or (R, K, H) for one per head, −inf where α is 0: a row all of whose documents have −inf is only
    measured, as all rows are with None. `scale` multiplies the logits; `window` is the number of tokens up to itself
    that a row sees, None for all.

    Returns the attention, (R, H, D), and Attn(k), (R, K, H), 0 for a document that is empty or not seen: both float32,
    or float64 if the query is. A row without documents is plain attention. `merge` says what becomes of documents that
    the window hides.

    Raises ValueError for a soft cap of the logits other than None and 0, query heads that the key heads do not divide,
    other shapes and dtypes than these, a window below 1, and a row longer than its blocks.
    """
    _check(query, key_cache, value_cache, rows, log_alpha)
    if soft_cap:
        raise ValueError(f"logits with a soft cap ({soft_cap}) cannot be calibrated")
    attend_rows = _attend_rows(is_on_gpu=query.is_cuda)
    return attend_rows(query, key_cache, value_cache, rows, log_alpha, scale=scale, window=window)


def _attend_rows(*, is_on_gpu: bool) -> Callable[..., tuple[Tensor, Tensor]]:
    """Return the implementation for a device; Triton is imported where it is used, as it may not be there."""
    if is_on_gpu and importlib.util.find_spec("triton") is not None:
        from fovea_vllm.attention import launch

        return launch.attend_rows
    return paged.attend_rows


def _check(query: Tensor, key_cache: Tensor, value_cache: Tensor, rows: DocumentRows, log_alpha: Tensor | None) -> None:
    num_rows, num_heads, width = query.shape
    if key_cache.shape != value_cache.shape or key_cache.shape[-1] != width:
        raise ValueError(
            f"query heads of width {width} need caches (blocks, block size, key heads, {width}), not "
            f"{tuple(key_cache.shape)} and {tuple(value_cache.shape)}"
        )
    if query.dtype not in DTYPES or not query.dtype == key_cache.dtype == value_cache.dtype:
        raise ValueError(
            f"query, keys and values must have one dtype of {', '.join(map(str, DTYPES))}, not {query.dtype}, "
            f"{key_cache.dtype} and {value_cache.dtype}"
        )
    if num_heads % key_cache.shape[2]:
        raise ValueError(f"{num_heads} query heads are not a multiple of {key_cache.shape[2]} key heads")
    documents = rows.starts.shape
    if documents[0] != num_rows:
        raise ValueError(f"{num_rows} queries, but {documents[0]} rows")
    if log_alpha is not None and tuple(log_alpha.shape) not in {tuple(documents), (*documents, num_heads)}:
        raise ValueError(
            f"log_alpha must be {tuple(documents)}, or {(*documents, num_heads)} for one per head, not "
            f"{tuple(log_alpha.shape)}"
        )
