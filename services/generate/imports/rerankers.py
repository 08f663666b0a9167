"""Import of published rerankers in transformers' layout."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from pydantic import JsonValue

from services.core.refusals import Refused
from services.generate.imports.language_model import BESIDE_TOKENIZER, CONFIG, TOKENIZER, TOKENIZER_CONFIG
from services.generate.model.reranker_engine import CROSS_ENCODER_KIND, check_cross_encoder, cross_encoder_tokens
from services.jobs.imports.plan import Plan, left_files
from services.jobs.imports.source import Source, read_model_config, read_object
from services.jobs.imports.weights import find_weights, stored_weights
from services.nn.loading import quiet_loading, transformers
from services.nn.model_configs import faults_of, model_config

NO_LIMIT = 10**30  # transformers' own, of a tokenizer that names none


def reranker_import(source: Source, config: Mapping[str, Any]) -> "CrossEncoderImport | None":
    """Return the import of a source that is a reranker, or nearly one, by its `config.json`; None for any other."""
    named = map(str, config.get("architectures") or ())
    return CrossEncoderImport(source) if any(one.endswith("ForSequenceClassification") for one in named) else None


@dataclass(frozen=True)
class CrossEncoderImport:
    """An import of an encoder that was trained to classify pairs of texts, with one label."""

    source: Source

    def plan(self) -> Plan:
        """Plan the import without reading weights. Raises Refused for what would not be served rightly."""
        raw, stored = read_model_config(self.source), stored_weights(self.source)
        if raw.get("quantization_config") is not None:
            raise Refused(f"{CONFIG}: quantised weights are not served; import the model that they were made from")
        config = model_config(raw, stored)
        with faults_of(CONFIG):
            check_cross_encoder(config)
        present = self.source.files
        if TOKENIZER not in present:
            raise Refused(
                f"{self.source.uri} has no {TOKENIZER}: load and save its tokenizer once with transformers, which "
                "writes it"
            )
        weights = find_weights(self.source)
        beside = [path for path in (*BESIDE_TOKENIZER, "config_sentence_transformers.json") if path in present]
        taken = (CONFIG, TOKENIZER, *beside, *weights.taken_index)
        with faults_of(CONFIG, config.to_dict()), stored.bound(), torch.device("meta"), quiet_loading():
            model = transformers().AutoModelForSequenceClassification.from_config(config)
        most = read_object(self.source, TOKENIZER_CONFIG).get("model_max_length", NO_LIMIT)
        facts: dict[str, JsonValue] = {
            "architecture": config.model_type,
            "num_parameters": sum(weight.numel() for weight in model.parameters()),
            "dtype": str(config.dtype or torch.float32).removeprefix("torch."),
            "context_length": cross_encoder_tokens(config, int(most)),
            "weight_bytes": sum(present[file] for file in weights.files),
        }
        left = left_files(self.source, weights, taken, {})
        return Plan(CROSS_ENCODER_KIND, ("generate",), taken, weights, left=left, facts=facts)

    def build(self, folder: Path) -> None:
        """Make nothing: the source has all that is served."""
