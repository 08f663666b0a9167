"""Checks that imports of models in transformers' layout share, and their description of a model."""

from collections.abc import Callable, Mapping
from typing import Any

import torch
from pydantic import JsonValue

from services.core.refusals import Refused
from services.jobs.imports.source import MODEL_CONFIG, Source, read_model_config
from services.jobs.imports.weights import stored_weights
from services.nn.image_transform import PREPROCESSOR, PROCESSOR
from services.nn.loading import quiet_loading
from services.nn.model_configs import StoredWeights, faults_of, model_config

TOKENIZER = "tokenizer.json"


def read_unquantised(source: Source, read: Callable[[Mapping[str, Any], StoredWeights], Any] = model_config) -> Any:
    """Read a source's configuration by `read`. Raises Refused, also for quantised weights."""
    raw = read_model_config(source)
    if raw.get("quantization_config") is not None:
        told = "quantised weights are not served; import the model that they were made from"
        raise Refused(f"{MODEL_CONFIG}: {told}")
    try:
        return read(raw, stored_weights(source))
    except ValueError as error:
        raise Refused(str(error).splitlines()[0]) from None


def image_settings(source: Source, tokenizer: str = TOKENIZER) -> list[str]:
    """Name the files of a source with the settings of images. Raises Refused without them, or without a tokenizer."""
    found = [path for path in (PREPROCESSOR, PROCESSOR) if path in source.files]
    for needed, is_there in ((tokenizer, tokenizer in source.files), (PREPROCESSOR, bool(found))):
        if not is_there:
            raise Refused(f"{source.uri} has no {needed}")
    return found


def facts_of(source: Source, config: Any, make: Callable[[], Any]) -> dict[str, JsonValue]:
    """Describe a model by its configuration: it is made without memory, and nothing of its weights is read."""
    stored, described = stored_weights(source), config.to_dict()
    dtype = config.dtype or config.get_text_config().dtype or torch.float32  # making the model would change it
    with faults_of(MODEL_CONFIG, described), stored.bound(), torch.device("meta"), quiet_loading():
        model = make()
    return {
        "architecture": config.model_type,
        "num_parameters": sum(weight.numel() for weight in model.parameters()),
        "dtype": str(dtype).removeprefix("torch."),
    }
