"""Import of a LLaVA in transformers' layout (`llava-hf/llava-1.5-7b-hf`), whose answers become embeddings."""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from pydantic import JsonValue

from services.embed.model.mllm_engine import (
    BESIDE_TOKENIZER,
    LLAVA,
    MLLM_CONFIG,
    MLLM_KIND,
    MLLM_PROJECTION,
    MllmPrompt,
    llava_config,
    num_image_tokens,
)
from services.jobs.imports.plan import Plan, left_files
from services.jobs.imports.published_folder import TOKENIZER, facts_of, image_settings, read_unquantised
from services.jobs.imports.source import MODEL_CONFIG, Source
from services.jobs.imports.weights import find_weights
from services.nn.loading import transformers

SENTENCEPIECE = "tokenizer.model"
BESIDE = ("generation_config.json", *BESIDE_TOKENIZER, MLLM_CONFIG, MLLM_PROJECTION)
CHAT = ("chat_template.json", "chat_template.jinja")


@dataclass(frozen=True)
class LlavaImport:
    """An import of one source."""

    source: Source

    @classmethod
    def recognises(cls, config: Mapping[str, Any]) -> bool:
        """Whether a `config.json` is of a LLaVA."""
        return config.get("model_type") == LLAVA

    def plan(self) -> Plan:
        """Plan the import without reading weights. Raises Refused for what would not be served rightly."""
        present = self.source.files
        config = read_unquantised(self.source, llava_config)
        preparation = image_settings(self.source)
        weights = find_weights(self.source)
        taken = [MODEL_CONFIG, TOKENIZER, *(path for path in BESIDE if path in present), *preparation]
        taken += weights.taken_index
        made = {} if MLLM_CONFIG in present else {MLLM_CONFIG: "LLaVA-1.5's prompt"}
        reasons = dict.fromkeys(CHAT, f"{MLLM_CONFIG} has the prompt") | {SENTENCEPIECE: f"{TOKENIZER} says the same"}
        left = left_files(self.source, weights, taken, reasons)
        facts = {**_facts(self.source, config), "weight_bytes": sum(present[file] for file in weights.files)}
        return Plan(MLLM_KIND, ("embed",), tuple(taken), weights, (), made, left, facts)

    def build(self, folder: Path) -> None:
        """Write how the model is asked, unless the source says it."""
        if MLLM_CONFIG not in self.source.files:
            (folder / MLLM_CONFIG).write_text(json.dumps(asdict(MllmPrompt()), indent=2) + "\n")


def _facts(source: Source, config: Any) -> dict[str, JsonValue]:
    return {
        **facts_of(source, config, lambda: transformers().LlavaForConditionalGeneration(config)),
        "image_size": config.vision_config.image_size,
        "image_tokens": num_image_tokens(config),
        "context_length": config.text_config.max_position_embeddings,
    }
