"""Reference outputs of a folder that is published: the answers of its own weights on the publishing machine.

torch and the services' engines are imported only where they are needed.
"""

import importlib
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from services.core.durable_files import write_durably
from services.core.store.errors import InvalidCheckpoint

# The engine for each kind of checkpoint; `load` of all but one takes the device options unchanged.
ENGINES = {
    "focallens-clip": ("services.embed.model.focallens_engine", "FocalLensEngine"),
    "focallens-mllm": ("services.embed.model.mllm_engine", "MllmEngine"),
    "fsc-clip": ("services.score.engine", "ScoreEngine"),
    "instructblip": ("services.embed.model.instructblip_engine", "InstructBlipEngine"),
    "magiclens": ("services.embed.model.magiclens_engine", "MagicLensEngine"),
    "open-clip": ("services.embed.model.plain_engine", "PlainEngine"),
    "t5-student": ("services.predict.engine", "PredictEngine"),
    "vlm-embedding": ("services.embed.model.vlm_engine", "VlmEngine"),
    "causal-lm": ("services.generate.engine", "GenerateEngine"),
}


class NoReference(Exception):
    """The folder can't be run here; the message says why, and can be shown to users."""


def write_reference(kind: str, directory: Path) -> None:
    """Check a folder with its engine, and write `reference.json` into it. The check compares with an existing one,
    which is kept.

    Raises InvalidCheckpoint for a folder that does not load or pass; NoReference for a kind that no service runs, and
    where packages or memory are missing or the folder can't be written to.
    """
    if kind not in ENGINES:
        raise NoReference(f"no service of Fovea's own runs checkpoints of kind {kind!r}, only {', '.join(ENGINES)}")
    if find_spec("torch") is None:
        raise NoReference("torch is not installed")
    from services.nn.broken_model import BrokenModel
    from services.nn.reference_outputs import REFERENCE_FILE, make_reference

    try:
        engine = _load(kind, directory)
    except (ImportError, MemoryError) as error:
        raise NoReference(f"it can't be loaded here: {error!r}") from error
    except (OSError, ValueError, RuntimeError, LookupError, TypeError) as error:
        reason = str(error).splitlines()[0] if str(error) else repr(error)
        raise InvalidCheckpoint(
            f"{directory} can't be loaded as {kind}: {reason} (--no-reference: publish unchecked)"
        ) from error
    try:
        engine.self_check()
        if not (directory / REFERENCE_FILE).exists():
            write_durably(directory / REFERENCE_FILE, [make_reference(engine)])
    except BrokenModel as error:
        raise InvalidCheckpoint(f"{directory}: {error}") from error
    except OSError as error:
        raise NoReference(f"{directory}: {error.strerror}") from error


def _load(kind: str, directory: Path) -> Any:
    devices = importlib.import_module("services.nn.devices")
    module = importlib.import_module(ENGINES[kind][0])
    load: Callable[..., Any] = getattr(module, ENGINES[kind][1]).load
    options = devices.DeviceOptions()
    return load(directory, module.EngineOptions(device=options) if kind == "causal-lm" else options)
