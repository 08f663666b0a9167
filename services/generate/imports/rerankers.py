"""Import of published rerankers in transformers' layout."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

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
    MXBAI_RERANK_KIND,
    MXBAI_TOKENS,
    QWEN3_RERANKER_KIND,
    QWEN3_RERANKER_TOKENS,
    TASK,
    check_cross_encoder,
    cross_encoder_tokens,
)
from services.generate.model.vl_reranker_engine import (
    ARCHITECTURE,
    QWEN3_VL_RERANKER_KIND,
    check_qwen3_vl,
    qwen3_vl_tokens,
)
from services.jobs.imports.plan import Plan, left_files
from services.jobs.imports.published_folder import facts_of, image_settings, read_unquantised
from services.jobs.imports.source import Source, fetch_small, read_object
from services.jobs.imports.weights import find_weights
from services.nn.loading import transformers
from services.nn.model_configs import faults_of

SENTENCE_TRANSFORMERS = "config_sentence_transformers.json"
NO_LIMIT = 10**30  # transformers' own, of a tokenizer that names none


# What their names contain, and files that may have Qwen3-Reranker's prompt: their `config.json` is any other Qwen's.
QWEN3_RERANKER, QWEN3_VL_RERANKER, MXBAI_RERANK = "qwen3-reranker", "qwen3-vl-reranker", "mxbai-rerank"
TOLD_IN = ("chat_template.jinja", TOKENIZER_CONFIG, SENTENCE_TRANSFORMERS)


def reranker_import(source: Source, config: Mapping[str, Any]) -> "CrossEncoderImport | Qwen3RerankerImport | None":
    """Return the import of a source that is a reranker, or nearly one; None for any other."""
    name = source.name.lower()
    if config.get("model_type") == ARCHITECTURE and QWEN3_VL_RERANKER in name:
        return Qwen3VlRerankerImport(source)
    if any(str(one).endswith("ForSequenceClassification") for one in config.get("architectures") or ()):
        return CrossEncoderImport(source)
    if config.get("model_type") == "qwen2" and MXBAI_RERANK in name:
        return MxbaiRerankImport(source)
    if config.get("model_type") != "qwen3":
        return None
    texts = (fetch_small(source, path).read_text(errors="replace") for path in TOLD_IN if path in source.files)
    is_reranker = QWEN3_RERANKER in name or any(TASK in text for text in texts)
    return Qwen3RerankerImport(source) if is_reranker else None


@dataclass(frozen=True)
class CrossEncoderImport:
    """An import of an encoder that was trained to classify pairs of texts, with one label."""

    source: Source

    def plan(self) -> Plan:
        """Plan the import without reading weights. Raises Refused for what would not be served rightly."""
        config = read_unquantised(self.source)
        with faults_of(CONFIG):
            check_cross_encoder(config)
        if TOKENIZER not in self.source.files:
            raise Refused(
                f"{self.source.uri} has no {TOKENIZER}: load and save its tokenizer once with transformers, which "
                "writes it"
            )
        with faults_of(TOKENIZER_CONFIG):
            most = int(read_object(self.source, TOKENIZER_CONFIG).get("model_max_length") or NO_LIMIT)
            most = cross_encoder_tokens(config, most)
        beside = (*BESIDE_TOKENIZER, SENTENCE_TRANSFORMERS)
        return _plan(self.source, CROSS_ENCODER_KIND, config, "AutoModelForSequenceClassification", most, beside)

    def build(self, folder: Path) -> None:
        """Make nothing: the source has all that is served."""


class Qwen3VlRerankerImport(CrossEncoderImport):
    """An import of a Qwen3-VL-Reranker, or of one that was trained further."""

    def plan(self) -> Plan:
        """Plan the import without reading weights. Raises Refused for what would not be served rightly."""
        config = read_unquantised(self.source)
        with faults_of(CONFIG):
            check_qwen3_vl(config)
        settings = image_settings(self.source)
        most, beside = qwen3_vl_tokens(config), (*BESIDE_TOKENIZER, *settings)
        return _plan(self.source, QWEN3_VL_RERANKER_KIND, config, "AutoModelForImageTextToText", most, beside)


def _plan(source: Source, kind: str, config: Any, model_class: str, most_tokens: int, beside: Sequence[str]) -> Plan:
    """Plan the import of a source that has all that is served, some of it `beside` configuration and tokenizer."""
    present, weights = source.files, find_weights(source)
    taken = (CONFIG, TOKENIZER, *(path for path in beside if path in present), *weights.taken_index)
    facts: dict[str, JsonValue] = {
        **facts_of(source, config, lambda: getattr(transformers(), model_class).from_config(config)),
        "context_length": most_tokens,
        "weight_bytes": sum(present[file] for file in weights.files),
    }
    return Plan(kind, ("generate",), taken, weights, left=left_files(source, weights, taken, {}), facts=facts)


class Qwen3RerankerImport(LanguageModelImport):
    """An import of a Qwen3-Reranker, or of one that was trained further."""

    kind: ClassVar[str] = QWEN3_RERANKER_KIND
    most_tokens: ClassVar[int] = QWEN3_RERANKER_TOKENS

    def plan(self) -> Plan:
        """Plan the import as that of a language model. Raises Refused."""
        plan = super().plan()
        facts = {name: plan.facts[name] for name in ("architecture", "num_parameters", "dtype", "weight_bytes")}
        context_length = min(self.most_tokens, self._config().max_position_embeddings)
        return replace(plan, kind=self.kind, facts={**facts, "context_length": context_length})

    def _profile(self) -> tuple[None, str]:
        return None, "none: its score has no bias of positions"


class MxbaiRerankImport(Qwen3RerankerImport):
    """An import of an mxbai-rerank-v2, or of one that was trained further."""

    kind = MXBAI_RERANK_KIND
    most_tokens = MXBAI_TOKENS
