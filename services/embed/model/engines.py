"""The engine of each kind of checkpoint, and of a folder by its files."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from services.embed.model.focallens_engine import FOCALLENS_CONFIG, FocalLensEngine
from services.embed.model.image_engine import ImageEngine
from services.embed.model.instructblip_engine import INSTRUCTBLIP_KIND, InstructBlipEngine, is_instructblip
from services.embed.model.magiclens_engine import MAGICLENS_CONFIG, MAGICLENS_KIND, MagicLensEngine
from services.embed.model.mllm_engine import MLLM_KIND, MllmEngine, is_llava
from services.embed.model.plain_engine import PlainEngine
from services.embed.model.vlm_engine import VLM_KIND, VlmEngine, is_vlm, says_how_asked
from services.nn.plain_clip import OPEN_CLIP_KIND

ENGINES: Mapping[str, type[ImageEngine[Any]]] = {
    "focallens-clip": FocalLensEngine,
    OPEN_CLIP_KIND: PlainEngine,
    MAGICLENS_KIND: MagicLensEngine,
    MLLM_KIND: MllmEngine,
    VLM_KIND: VlmEngine,
    INSTRUCTBLIP_KIND: InstructBlipEngine,
}


def engine_of(directory: Path) -> type[ImageEngine[Any]]:
    """Return the engine that runs a folder. A LLaVA runs as another vision-language model if its folder says how it is
    asked."""
    if (directory / FOCALLENS_CONFIG).is_file():
        return FocalLensEngine
    if (directory / MAGICLENS_CONFIG).is_file():
        return MagicLensEngine
    if says_how_asked(directory):
        return VlmEngine
    if is_llava(directory):
        return MllmEngine
    if is_instructblip(directory):
        return InstructBlipEngine
    return VlmEngine if is_vlm(directory) else PlainEngine
