"""Import of CLIPs as they are published, for the two services that serve them."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import JsonValue

from services.core.refusals import Refused
from services.jobs.imports.clip_weights import (
    Layout,
    clip_files,
    convert_clip_folder,
    convert_openai_clip,
    convert_trained_clip,
)
from services.jobs.imports.plan import Plan, left_files
from services.jobs.imports.source import MODEL_CONFIG, Source, read_object
from services.jobs.imports.weights import PICKLES, check_whole, shards_of
from services.jobs.released_weights import is_torch_script
from services.nn.clip_model import OPEN_CLIP_CONFIG, OPEN_CLIP_WEIGHTS
from services.nn.model_configs import StoredWeights, faults_of
from services.nn.plain_clip import OPEN_CLIP_KIND

FILES = (*PICKLES, ".safetensors")


@dataclass(frozen=True)
class ClipImport:
    """An import of one source; `architecture` is open_clip's name, which a file of a training needs."""

    source: Source
    architecture: str | None = None

    @classmethod
    def recognises(cls, source: Source, config: Mapping[str, Any]) -> bool:
        """Whether a source with this `config.json` is a CLIP: a folder of one, or one file of weights."""
        is_file = len(source.files) == 1 and next(iter(source.files)).endswith(FILES)
        return is_file or OPEN_CLIP_CONFIG in source.files or config.get("model_type") == "clip"

    def plan(self) -> Plan:
        """Plan the import without reading weights. Raises Refused for what would not be served rightly."""
        layout = self._layout()
        read = tuple(self.source.files) if layout in ("openai", "training") else self._folder_files(layout)
        for path in [path for path in read if path.endswith(FILES)]:
            check_whole(self.source, path)
        if layout == "training" and self.architecture is None:
            raise Refused(
                f"{read[0]} does not say what it is: give --architecture, open_clip's name of it; models tuned from "
                "OpenAI's have names that end in -quickgelu, such as ViT-B-32-quickgelu"
            )
        if layout != "training" and self.architecture is not None:
            raise Refused(f"--architecture is for one file of a training, and {self.source.uri} says what it is")
        made = {OPEN_CLIP_CONFIG: "the source's configuration", OPEN_CLIP_WEIGHTS: "the source's weights"}
        size = sum(self.source.files[path] for path in read)
        if layout in ("open-clip", "hugging-face"):
            StoredWeights.in_bytes(size).check(read_object(self.source, read[0]), read[0])
        left = left_files(self.source, None, read, {})
        facts: dict[str, JsonValue] = {
            "layout": layout,
            "architecture": self.architecture or "CLIP",
            "weight_bytes": size,
        }
        return Plan(OPEN_CLIP_KIND, ("score", "embed"), (), None, read, made, left, facts)

    def build(self, folder: Path) -> None:
        """Convert the source into the folder. Raises Refused."""
        layout = self._layout()
        with faults_of(self.source.uri):
            if layout == "openai":
                convert_openai_clip(self._only_file(), folder)
            elif layout == "training":
                assert self.architecture is not None, "the plan has refused it otherwise"
                convert_trained_clip(self._only_file(), folder, architecture=self.architecture)
            else:
                convert_clip_folder(self.source, folder)

    def _layout(self) -> Layout:
        if OPEN_CLIP_CONFIG in self.source.files:
            return "open-clip"
        if MODEL_CONFIG in self.source.files:
            return "hugging-face"
        return "openai" if is_torch_script(self._only_file()) else "training"

    def _only_file(self) -> Path:
        (path,) = self.source.files
        return self.source.fetch(path)

    def _folder_files(self, layout: Layout) -> tuple[str, ...]:
        try:
            chosen = clip_files(layout, self.source.files)
        except Refused as error:
            raise Refused(f"{self.source.uri}: {error}") from None
        indexes = [path for path in chosen if path.endswith(".index.json")]
        return (*chosen, *(shard for index in indexes for shard in shards_of(self.source, index)))
