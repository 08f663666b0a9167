"""The engines of folders that are recognised by their files: all but FocalLens's own and plain CLIPs."""

from pathlib import Path
from typing import Any

from services.embed.model.conditional_engine import ConditionalEngine
from services.embed.model.instructblip_checkpoint import is_instructblip
from services.embed.model.instructblip_engine import InstructBlipEngine
from services.embed.model.magiclens_checkpoint import MAGICLENS_CONFIG
from services.embed.model.magiclens_engine import MagicLensEngine
from services.embed.model.mllm_checkpoint import is_llava
from services.embed.model.mllm_engine import MllmEngine
from services.embed.model.vlm_checkpoint import is_vlm, says_how_asked
from services.embed.model.vlm_engine import VlmEngine


def engine_of(directory: Path) -> type[ConditionalEngine[Any]] | None:
    """Return the engine that runs a folder, None for any other; a LLaVA that says how it is asked is asked so."""
    if (directory / MAGICLENS_CONFIG).is_file():
        return MagicLensEngine
    if says_how_asked(directory):
        return VlmEngine
    if is_llava(directory):
        return MllmEngine
    if is_instructblip(directory):
        return InstructBlipEngine
    return VlmEngine if is_vlm(directory) else None
