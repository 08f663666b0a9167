"""Import of InstructBLIP as Salesforce publishes it: of the weights, those of its image side alone."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from pydantic import JsonValue
from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor, nn

from services.core.refusals import Refused
from services.embed.model.instructblip_engine import (
    INSTRUCTBLIP_KIND,
    PARTS,
    TOKENIZER_FOLDER,
    WEIGHTS,
    instructblip_config,
)
from services.jobs.imports.plan import Plan, left_files
from services.jobs.imports.published_folder import facts_of, image_settings, read_unquantised
from services.jobs.imports.source import MODEL_CONFIG, Source, read_object
from services.jobs.imports.weights import Weights, find_weights, read_pickle, separate, stored_names
from services.jobs.progress import watched
from services.nn.loading import transformers
from services.nn.weight_files import readable_weights, without_wrappers


@dataclass(frozen=True)
class InstructBlipImport:
    """An import of one source."""

    source: Source

    @classmethod
    def recognises(cls, config: Mapping[str, Any]) -> bool:
        """Whether a `config.json` is of an InstructBLIP."""
        return config.get("model_type") == INSTRUCTBLIP_KIND

    def plan(self) -> Plan:
        """Plan the import without reading weights. Raises Refused for what would not be served rightly."""
        config = read_unquantised(self.source, instructblip_config)
        tokenizer = [path for path in self.source.files if path.startswith(f"{TOKENIZER_FOLDER}/")]
        names = {path.partition("/")[2] for path in tokenizer}
        if not names & {"tokenizer.json", "vocab.txt"}:
            raise Refused(f"{self.source.uri} has no {TOKENIZER_FOLDER} with the Q-Former's tokens")
        settings = image_settings(self.source, MODEL_CONFIG)
        weights = find_weights(self.source)
        shards = self._files_of_image_side(weights)
        read = (*shards, weights.index) if weights.index else shards
        taken = [MODEL_CONFIG, *tokenizer, *settings]
        reasons = dict.fromkeys(weights.files, "weights of the language model, which has no part in embeddings")
        left = left_files(self.source, None, [*taken, *read], reasons)
        made = {WEIGHTS: "the image tower, the queries and the Q-Former of the weights"}
        return Plan(INSTRUCTBLIP_KIND, ("embed",), tuple(taken), None, read, made, left, _facts(self.source, config))

    def build(self, folder: Path) -> None:
        """Write the image side's weights into one file. Raises Refused."""
        weights: dict[str, Tensor] = {}
        files = self._files_of_image_side(find_weights(self.source))
        for file in watched(files, "reading", len(files)):
            weights |= _image_side(self.source.fetch(file))
        if "query_tokens" not in weights:
            raise Refused(f"{self.source.uri} has no query tokens: it is not an InstructBLIP model")
        save_file(separate(weights), folder / WEIGHTS, metadata={"format": "pt"})

    def _files_of_image_side(self, weights: Weights) -> tuple[str, ...]:
        if weights.index is None:
            return weights.files
        mapped = read_object(self.source, weights.index)["weight_map"]
        plain = without_wrappers(mapped)
        return tuple(sorted({file for name, file in mapped.items() if plain[name].startswith(PARTS)}))


def _image_side(path: Path) -> dict[str, Tensor]:
    """Read the tensors of the image side from a file of the whole model. Raises Refused."""
    if path.suffix != ".safetensors":
        tensors = read_pickle(path)
        plain = without_wrappers(tensors)
        return {plain[name]: tensor for name, tensor in tensors.items() if plain[name].startswith(PARTS)}
    plain = without_wrappers(stored_names(path))
    with readable_weights(path), safe_open(path, framework="pt") as opened:
        return {short: opened.get_tensor(name) for name, short in plain.items() if short.startswith(PARTS)}


def _facts(source: Source, config: Any) -> dict[str, JsonValue]:
    """Describe the image side."""

    def image_side() -> nn.ModuleList:
        kinds = transformers()
        return nn.ModuleList(
            [kinds.InstructBlipVisionModel(config.vision_config), kinds.InstructBlipQFormerModel(config.qformer_config)]
        )

    facts = facts_of(source, config, image_side)
    size = getattr(torch, str(facts["dtype"])).itemsize
    return {
        **facts,
        "weight_bytes": int(str(facts["num_parameters"])) * size,
        "image_size": config.vision_config.image_size,
        "context_length": config.qformer_config.max_position_embeddings,
    }
