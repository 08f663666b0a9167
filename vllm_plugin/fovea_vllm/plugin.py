"""The entry point `vllm.general_plugins`: vLLM calls `register` in each of its processes."""

import re
from typing import Any

from fovea_vllm import loaded

SUPPORTED_VERSIONS = ("0.32", "0.33")


def register() -> None:
    """Make calibration part of vLLM in this process; further calls change nothing.

    Raises RuntimeError for a version of vLLM that is not supported.
    """
    from vllm import __version__ as version

    check_version(version)
    from vllm.v1.attention.backends.registry import AttentionBackendEnum, register_backend
    from vllm.v1.worker.worker_base import WorkerBase

    from fovea_vllm import admission, block_hashes

    register_backend(AttentionBackendEnum.CPU_ATTN, "fovea_vllm.backends.cpu.FoveaCPUBackend")
    register_backend(AttentionBackendEnum.FLASH_ATTN, "fovea_vllm.backends.flash.FoveaFlashBackend")
    register_backend(AttentionBackendEnum.TRITON_ATTN, "fovea_vllm.backends.triton.FoveaTritonBackend")
    block_hashes.install()
    admission.install()
    WorkerBase.take_fovea_attention = take_fovea_attention
    loaded.is_complete = True


def check_version(version: str) -> None:
    """Raises RuntimeError unless this version of vLLM is supported."""
    found = re.match(r"\d+\.\d+", version)
    if found is None or found.group() not in SUPPORTED_VERSIONS:
        raise RuntimeError(
            f"fovea-vllm works with vLLM {', '.join(SUPPORTED_VERSIONS)}, not with {version}: install one of those, or "
            "start vLLM without the plug-in, with VLLM_PLUGINS set to the names of the other plug-ins"
        )


def take_fovea_attention(worker: Any, key: str) -> list[list[list[float]]] | None:
    """Return and forget a prompt's measured attention on a worker, for vLLM's `collective_rpc`.

    L × H × K numbers, Attn(k) of each layer and each of this worker's heads; None for an unknown key.
    """
    from fovea_vllm.batch import batch_of

    return batch_of(worker.vllm_config).measurements.take(key)
