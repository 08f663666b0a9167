"""Import of published rerankers in transformers' layout."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from pydantic import JsonValue

from services.core.refusals import Refused
from services.generate.imports.language_model import (
    BESIDE_TOKENIZER,
    CONFIG,
    TOKENIZER,
    TOKENIZER_CONFIG,
    LanguageModelImport,
)
from services.generate.model.reranker_engine import (
    CROSS_ENCODER_KIND,
    QWEN3_RERANKER_KIND,
    QWEN3_RERANKER_TOKENS,
    TASK,
    check_cross_encoder,
    cross_encoder_tokens,
)
from services.jobs.imports.plan import Plan, left_files
from services.jobs.imports.source import Source, fetch_small, read_model_config, read_object
from services.jobs.imports.weights import find_weights, stored_weights
from services.nn.loading import quiet_loading, transformers
from services.nn.model_configs import faults_of, model_config

SENTENCE_TRANSFORMERS = "config_sentence_transformers.json"
NO_LIMIT = 10**30  # transformers' own, of a tokenizer that names none


# What its name contains, and files that may have its prompt: its `config.json` is that of any other Qwen3.
QWEN3_RERANKER = "qwen3-reranker"
TOLD_IN = ("chat_template.jinja", TOKENIZER_CONFIG, SENTENCE_TRANSFORMERS)


def reranker_import(source: Source, config: Mapping[str, Any]) -> "CrossEncoderImport | Qwen3RerankerImport | None":
    """Return the import of a source that is a reranker, or nearly one; None for any other."""
    if any(str(one).endswith("ForSequenceClassification") for one in config.get("architectures") or ()):
        return CrossEncoderImport(source)
    if config.get("model_type") != "qwen3":
        return None
    texts = (fetch_small(source, path).read_text(errors="replace") for path in TOLD_IN if path in source.files)
    is_reranker = QWEN3_RERANKER in source.name.lower() or any(TASK in text for text in texts)
    return Qwen3RerankerImport(source) if is_reranker else None


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
        beside = [path for path in (*BESIDE_TOKENIZER, SENTENCE_TRANSFORMERS) if path in present]
        taken = (CONFIG, TOKENIZER, *beside, *weights.taken_index)
        with faults_of(CONFIG, config.to_dict()), stored.bound(), torch.device("meta"), quiet_loading():
            model = transformers().AutoModelForSequenceClassification.from_config(config)
        with faults_of(TOKENIZER_CONFIG):
            most = int(read_object(self.source, TOKENIZER_CONFIG).get("model_max_length") or NO_LIMIT)
            context_length = cross_encoder_tokens(config, most)
        facts: dict[str, JsonValue] = {
            "architecture": config.model_type,
            "num_parameters": sum(weight.numel() for weight in model.parameters()),
            "dtype": str(config.dtype or torch.float32).removeprefix("torch."),
            "context_length": context_length,
            "weight_bytes": sum(present[file] for file in weights.files),
        }
        left = left_files(self.source, weights, taken, {})
        return Plan(CROSS_ENCODER_KIND, ("generate",), taken, weights, left=left, facts=facts)

    def build(self, folder: Path) -> None:
        """Make nothing: the source has all that is served."""


class Qwen3RerankerImport(LanguageModelImport):
    """An import of a Qwen3-Reranker, or of one that was trained further."""

    def plan(self) -> Plan:
        """Plan the import as that of a language model. Raises Refused."""
        plan = super().plan()
        facts = {name: plan.facts[name] for name in ("architecture", "num_parameters", "dtype", "weight_bytes")}
        context_length = min(QWEN3_RERANKER_TOKENS, self._config().max_position_embeddings)
        return replace(plan, kind=QWEN3_RERANKER_KIND, facts={**facts, "context_length": context_length})

    def _profile(self) -> tuple[None, str]:
        return None, "none: its score has no bias of positions"
