"""Loading of torchvision even if its operator library cannot be loaded, and of transformers without progress bars.

The terminal output of transformers would be mixed with a service's log lines.
"""

import functools
import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

MODEL_CONFIG = "config.json"


@contextmanager
def quiet_loading() -> Iterator[None]:
    """Suppress transformers' progress bars and warnings in this block; errors still raise."""
    from transformers.utils import logging

    was_enabled, verbosity = logging.is_progress_bar_enabled(), logging.get_verbosity()
    logging.disable_progress_bar()  # type: ignore[no-untyped-call]
    logging.set_verbosity_error()  # type: ignore[no-untyped-call]
    try:
        yield
    finally:
        logging.set_verbosity(verbosity)
        if was_enabled:
            logging.enable_progress_bar()  # type: ignore[no-untyped-call]


def model_type_of(directory: Path) -> str | None:
    """Return the architecture that a folder in transformers' layout names, None for any other folder."""
    path = directory / MODEL_CONFIG
    named: str | None = json.loads(path.read_text()).get("model_type") if path.is_file() else None
    return named


@functools.cache
def transformers() -> Any:
    """Import the transformers package, which imports torchvision."""
    declare_torchvision_operators()
    import transformers

    return transformers


@functools.cache
def declare_torchvision_operators() -> None:
    """Make torchvision importable, and with it open_clip and transformers; without torchvision, do nothing.

    Its CUDA build cannot be imported with a CPU build of torch, because its two operators are never registered. None of
    our models calls them, so declaring them is enough.
    """
    try:
        import torchvision
    except ModuleNotFoundError:
        return
    except RuntimeError:
        # a copy, as other threads import meanwhile
        for name in [name for name in list(sys.modules) if name.split(".")[0] == "torchvision"]:
            del sys.modules[name]
        operators: Any = torch.library.Library("torchvision", "DEF")  # type: ignore[no-untyped-call]
        for operator in ("nms", "qnms"):
            operators.define(f"{operator}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
        import torchvision

        torchvision.declared_operators = operators  # they are unregistered when this object dies
