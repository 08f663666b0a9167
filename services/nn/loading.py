"""Loading of torchvision even if its operator library cannot be loaded, and of transformers without progress bars.

The terminal output of transformers would be mixed with a service's log lines. What both import without using it for a
checkpoint's answers takes longer than everything else that a service does when it starts, and is left out.
"""

import functools
import importlib
import importlib.util
import json
import sys
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any

import torch

MODEL_CONFIG = "config.json"
COMPILER = "torch._dynamo"


@contextmanager
def quiet_loading() -> Iterator[None]:
    """Suppress transformers' progress bars and warnings in this block; errors still raise."""
    logging = transformers().utils.logging
    was_enabled, verbosity = logging.is_progress_bar_enabled(), logging.get_verbosity()
    logging.disable_progress_bar()
    logging.set_verbosity_error()
    try:
        yield
    finally:
        logging.set_verbosity(verbosity)
        if was_enabled:
            logging.enable_progress_bar()


def model_type_of(directory: Path) -> str | None:
    """Return the architecture that a folder in transformers' layout names, None for any other folder."""
    path = directory / MODEL_CONFIG
    named: str | None = json.loads(path.read_text()).get("model_type") if path.is_file() else None
    return named


def _unmarked(function: Any = None, *_: Any, **__: Any) -> Any:
    """Return a function as it is: a decorator, with or without arguments, that would tell a compiler about it."""
    return (lambda function: function) if function is None else function


class _StandIn(ModuleType):
    """A module of torch's compiler while libraries are imported that mark functions for it and would call others.

    Asked for anything else, it gives way to the module that it stands for.
    """

    def __init__(self, name: str, marks: Collection[str] = (), calls: Collection[str] = ()) -> None:
        super().__init__(name)
        vars(self).update(dict.fromkeys(marks, _unmarked))
        vars(self).update({call: partial(self._call, call) for call in calls})

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") and (name, self.__name__) != ("__path__", COMPILER):
            raise AttributeError(name)
        return getattr(self._real(), name)

    def _call(self, name: str, *args: Any, **options: Any) -> Any:
        return getattr(self._real(), name)(*args, **options)

    def _real(self) -> ModuleType:
        for name, module in list(sys.modules.items()):
            if isinstance(module, _StandIn):
                del sys.modules[name]
        return importlib.import_module(self.__name__)


def _stand_ins() -> list[_StandIn]:
    """Make those for what torchvision and transformers import of the compiler: importing it takes longer than torch."""
    return [
        _StandIn(COMPILER, marks=("disable", "allow_in_graph", "assume_constant_result")),
        _StandIn(f"{COMPILER}.utils", calls=("is_compile_supported",)),
        _StandIn(f"{COMPILER}._trace_wrapped_higher_order_op", calls=("TransformGetItemToIndex",)),
    ]


class _Unread(ModuleType):
    """The package of transformers' architectures, whose files are only read for a name that is no imported module.

    transformers has read them all before, to know which names they define.
    """

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") or self.__spec__ is None or self.__spec__.loader is None:
            raise AttributeError(name)
        if sys.modules[self.__name__] is self:
            self.__spec__.loader.exec_module(self)  # which replaces the module
        return getattr(sys.modules[self.__name__], name)


@contextmanager
def light_imports(*absent: str) -> Iterator[None]:
    """Import libraries in this block without torch's compiler, and as if the `absent` packages were not installed, and
    torch were built for one process.

    What has been imported before stays. In a process that trains, which has imported accelerate, nothing is absent.
    """
    trains = "accelerate" in sys.modules
    replaced: dict[str, Any] = {}
    if COMPILER not in sys.modules:
        replaced |= {module.__name__: module for module in _stand_ins()}
    if not trains:
        replaced |= {name: None for name in absent if name not in sys.modules}  # as Python says that there is none
    is_available = torch.distributed.is_available
    sys.modules.update(replaced)
    try:
        if not trains:
            torch.distributed.is_available = lambda: False
        yield
    finally:
        torch.distributed.is_available = is_available
        for name, module in replaced.items():
            if name in sys.modules and sys.modules[name] is module:
                del sys.modules[name]


@functools.cache
def transformers() -> Any:
    """Import the transformers package, which imports torchvision, and what all its models share."""
    declare_torchvision_operators()
    with light_imports("accelerate", "scipy"):
        import transformers

        if "transformers.models" not in sys.modules:
            spec = importlib.util.find_spec("transformers.models")
            assert spec is not None, "transformers has it"
            models = importlib.util.module_from_spec(spec)
            models.__class__ = _Unread
            sys.modules["transformers.models"] = models
        for name in ("modeling_utils", "masking_utils"):
            importlib.import_module(f"transformers.{name}")

    return transformers


@functools.cache
def declare_torchvision_operators() -> None:
    """Make torchvision importable, and with it open_clip and transformers; without torchvision, do nothing.

    Its CUDA build cannot be imported with a CPU build of torch, because its two operators are never registered. None of
    our models calls them, so declaring them is enough.
    """
    with light_imports():
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
