"""torchvision's operators, declared where its own library of them does not load."""

import functools
import sys
from typing import Any

import torch


@functools.cache
def declare_torchvision_operators() -> None:
    """Make torchvision importable, and with it open_clip and transformers; without torchvision, do nothing.

    Its CUDA build does not import beside a CPU build of torch, because its two operators are never registered. None
    of our models calls them, so declaring them is enough.
    """
    try:
        import torchvision
    except ModuleNotFoundError:
        return
    except RuntimeError:
        for name in [name for name in sys.modules if name.split(".")[0] == "torchvision"]:
            del sys.modules[name]
        operators: Any = torch.library.Library("torchvision", "DEF")  # type: ignore[no-untyped-call]
        for operator in ("nms", "qnms"):
            operators.define(f"{operator}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
        import torchvision

        torchvision.declared_operators = operators  # they are withdrawn when this object dies
