"""The engine of each kind of checkpoint, and of a folder by its files."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from services.embed.model.focallens_engine import FOCALLENS_CONFIG, FocalLensEngine
from services.embed.model.image_engine import ImageEngine
from services.embed.model.instructblip_engine import INSTRUCTBLIP_KIND, InstructBlipEngine
from services.embed.model.magiclens_engine import MAGICLENS_CONFIG, MAGICLENS_KIND, MagicLensEngine
from services.embed.model.mllm_engine import LLAVA, MLLM_KIND, MllmEngine
from services.embed.model.plain_engine import PlainEngine
from services.embed.model.vlm_engine import VLM_KIND, VlmEngine, vlm_types
from services.embed.model.vlm_prompts import VLM_CONFIG
from services.nn.loading import model_type_of
from services.nn.plain_clip import OPEN_CLIP_KIND

ENGINES: Mapping[str, type[ImageEngine[Any]]] = {
    "focallens-clip": FocalLensEngine,
    OPEN_CLIP_KIND: PlainEngine,
    MAGICLENS_KIND: MagicLensEngine,
    MLLM_KIND: MllmEngine,
    VLM_KIND: VlmEngine,
    INSTRUCTBLIP_KIND: InstructBlipEngine,
}
Engines = Mapping[str, type[ImageEngine[Any]]]
# By a file that only such folders have, and by the architecture that a configuration names.
BY_FILE: Engines = {FOCALLENS_CONFIG: FocalLensEngine, MAGICLENS_CONFIG: MagicLensEngine, VLM_CONFIG: VlmEngine}
BY_TYPE: Engines = {LLAVA: MllmEngine, INSTRUCTBLIP_KIND: InstructBlipEngine}


def engine_of(directory: Path) -> type[ImageEngine[Any]]:
    """Return the engine that runs a folder. A LLaVA runs as another vision-language model if its folder says how it is
    asked."""
    for name, engine in BY_FILE.items():
        if (directory / name).is_file():
            return engine
    kind = model_type_of(directory)
    return BY_TYPE.get(str(kind)) or (VlmEngine if kind in vlm_types() else PlainEngine)
