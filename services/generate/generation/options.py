"""Options of an engine and of an answer."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from services.generate.capacity import DEFAULT_SHARE
from services.generate.generation.sampling import Sampling
from services.generate.model.profile import CalibrationProfile
from services.nn.devices import DeviceOptions

# Order of the documents of a question before it is answered.
Reorder = Literal["none", "attention", "calibrated", "query_likelihood", "prompt"]
# Tokens of different prompts that are prefilled together; a longer prompt is prefilled alone.
MAX_PREFILL_TOKENS = 4096
# A CPU shares its memory with other services, and is too slow for more.
CPU_CACHED_TOKENS = 65_536
# Tokens for which an answer gets room when it joins, and again whenever these are used up.
HEADROOM_TOKENS = 256


@dataclass(frozen=True)
class EngineOptions:
    """The device of a checkpoint, and the limits of its running batch (`RunningBatch` explains each).

    `max_cached_tokens` None means as many as fit into `memory_share` of the device's memory beside the weights, on a
    CPU at most CPU_CACHED_TOKENS.
    """

    device: DeviceOptions = field(default_factory=DeviceOptions)
    max_cached_tokens: int | None = None
    memory_share: float = DEFAULT_SHARE
    max_running: int = 64
    prefix_cache_bytes: int = 2**29
    max_prefill_tokens: int = MAX_PREFILL_TOKENS
    headroom_tokens: int = HEADROOM_TOKENS


@dataclass(frozen=True)
class AnswerOptions:
    """Options of an answer.

    `max_tokens` None means as many as the context allows. `calibration` None means the checkpoint's own profile.
    `reorder` ranks the documents first. `echo` repeats the prompt of a completion. The rest is as in `Generation`.
    """

    max_tokens: int | None = None
    sampling: Sampling = field(default_factory=Sampling)
    stop: tuple[str, ...] = ()
    calibration: CalibrationProfile | None = None
    reorder: Reorder = "none"
    include_stop: bool = False
    ignore_eos: bool = False
    echo: bool = False
    for_vllm: Mapping[str, Any] = field(default_factory=dict)
    explain: bool = False
