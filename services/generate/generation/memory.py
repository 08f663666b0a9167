"""The size of the cache of keys and values, from the memory of the model's device."""

from services.generate.capacity import Capacity
from services.generate.generation.options import CPU_CACHED_TOKENS
from services.generate.model.language_model import LanguageModel
from services.nn.devices import memory_of
from services.nn.weight_files import GIBIBYTE


def fitting_tokens(model: LanguageModel, share: float) -> int:
    """Return the tokens that fit into a share of the memory of a loaded model's device, beside its weights.

    Raises ValueError, naming the sizes, if none fits.
    """
    memory = memory_of(model.device)
    if model.device.type == "cpu":
        # what is free has been counted without the weights, which are loaded
        memory = None if memory is None else memory + model.weight_bytes
    if memory is None:
        return CPU_CACHED_TOKENS
    capacity = Capacity(model.weight_bytes, model.config.token_bytes, int(share * memory), model.config.max_model_len)
    if not capacity.fits:
        raise ValueError(
            f"its weights take {model.weight_bytes / GIBIBYTE:.1f} GiB and leave no room for a token in"
            f" {capacity.budget_bytes / GIBIBYTE:.1f} GiB of {model.device}"
        )
    return min(capacity.cache_tokens, CPU_CACHED_TOKENS) if model.device.type == "cpu" else capacity.cache_tokens
