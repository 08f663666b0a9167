"""Import of a vision-language model in transformers' layout, which embeds by what it holds at the end of a prompt.

Qwen3-VL-Embedding is known by the instruction that its template, or its settings for sentence-transformers, names. Any
other model is asked for one word.
"""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from services.core.refusals import Refused
from services.embed.model.vlm_engine import VLM_KIND, vlm_config, vlm_types
from services.embed.model.vlm_prompts import FORMS, TOLD_IN, VLM_CONFIG, VlmPrompt, form_of
from services.embed.outputs import TRAINED_WIDTHS
from services.jobs.imports.plan import Plan, left_files
from services.jobs.imports.published_folder import TOKENIZER, facts_of, image_settings, read_unquantised
from services.jobs.imports.source import MODEL_CONFIG, Source, fetch_small
from services.jobs.imports.weights import find_weights
from services.nn.loading import transformers

BESIDE = (
    *("generation_config.json", "tokenizer_config.json", "special_tokens_map.json", "added_tokens.json"),
    *("vocab.json", "merges.txt", "tokenizer.model", "chat_template.jinja", "chat_template.json"),
    *("video_preprocessor_config.json", VLM_CONFIG),
)
# Whose prompt a form is.
PUBLISHED = {"instruction": "Qwen3-VL-Embedding's prompt", "one-word": "DIOR's prompt"}


@dataclass(frozen=True)
class VlmImport:
    """An import of one source; `form` names how it is asked, None for what the source tells."""

    source: Source
    form: str | None = None

    @classmethod
    def recognises(cls, config: Mapping[str, Any]) -> bool:
        """Whether a `config.json` is of a vision-language model that transformers knows."""
        return config.get("model_type") in vlm_types()

    def plan(self) -> Plan:
        """Plan the import without reading weights. Raises Refused for what would not be served rightly."""
        if self.form is not None and self.form not in FORMS:
            raise Refused(f"--embed-by is one of {', '.join(FORMS)}, not {self.form!r}")
        if self.form is None and "rerank" in self.source.name.lower():
            told = "of rerankers of images, Qwen3-VL-Reranker is served; --embed-by takes another as an embedder"
            raise Refused(f"{self.source.uri}: {told}")
        present = self.source.files
        config = read_unquantised(self.source, vlm_config)
        settings = image_settings(self.source)
        weights = find_weights(self.source)
        own = VLM_CONFIG in present and self.form is None
        beside = [path for path in BESIDE if path in present and (own or path != VLM_CONFIG)]
        taken = [MODEL_CONFIG, TOKENIZER, *beside, *settings, *weights.taken_index]
        form = "its own prompt" if own else self._form()
        left = left_files(self.source, weights, [*taken, VLM_CONFIG], {})
        facts = {
            **facts_of(self.source, config, lambda: transformers().AutoModelForImageTextToText.from_config(config)),
            "context_length": config.get_text_config().max_position_embeddings,
            "embeds_by": form,
            "weight_bytes": sum(present[file] for file in weights.files),
        }
        if self.form is None and self._form() == "instruction":
            facts[TRAINED_WIDTHS] = "64+"  # as Qwen3-VL-Embedding's model card says
        made = {} if own else {VLM_CONFIG: PUBLISHED[form]}
        return Plan(VLM_KIND, ("embed",), tuple(taken), weights, (), made, left, facts)

    def build(self, folder: Path) -> None:
        """Write how the model is asked, unless the source says it."""
        if VLM_CONFIG not in self.source.files or self.form is not None:
            (folder / VLM_CONFIG).write_text(json.dumps(_told(FORMS[self._form()]), indent=2) + "\n")

    def _form(self) -> str:
        """Name the form in which the model is asked."""
        if self.form is not None:
            return self.form
        return form_of(fetch_small(self.source, path).read_text() for path in TOLD_IN if path in self.source.files)


def _told(prompt: VlmPrompt) -> dict[str, Any]:
    """Return what a prompt has beside the defaults."""
    return {name: value for name, value in asdict(prompt).items() if value not in (None, False)}
