"""Configurations of models, bounded by the weights that are stored with them before anything is built.

A few lines of a configuration may ask for any number of layers. Its fields are compared with what the files of the
weights hold, and what is built from it is counted meanwhile, which stops it before it takes memory and time.
"""

import json
import math
import re
import threading
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.module import (
    register_module_buffer_registration_hook,
    register_module_module_registration_hook,
    register_module_parameter_registration_hook,
)
from torch.overrides import TorchFunctionMode

from services.core.refusals import Refused, shown_names
from services.nn.loading import MODEL_CONFIG, light_imports, quiet_loading, transformers
from services.nn.weight_files import MAX_SHARED, readable_weights, shapes_in, sizes_told

# What towers are made with, and torch computes in Python on the meta device.
RANDOM, SAME_SHAPE = {torch.rand, torch.randn}, {Tensor.mul, Tensor.triu_}
# Numbers of what has a tensor each, at least.
COUNTS = re.compile(r"(num|n)_(\w+_)?(layers?|blocks|experts)|n_layers?|layers|depths?|conv_stem_blocks")
# Dimensions of weights.
SIZES = re.compile(
    r"(\w+_)?(vocab|hidden|intermediate)_size|d_(model|ff|kv)|n_embd|(embed|projection|head)_dim"
    r"|(\w+_)?width|hidden|conv_stem"
)
OTHERS = re.compile(r"(num|n)_(\w+_)?heads?|heads|context_length|max_position_embeddings|(image|patch)_size")
NEVER_ZERO = re.compile(
    r"num_hidden_layers|num_layers|n_layers?|layers|((num|n)_(\w+_)?)?heads?|(vocab|hidden|image|patch)_size|d_model|n_embd|width"
)
# Those that some models have one of a layer or a side.
LISTS = re.compile(r"layers|depths?|conv_stem(_blocks)?|(image|patch|intermediate)_size|(num|n)_(\w+_)?heads?")
OBJECTS = re.compile(r"rope_(scaling|parameters)|(text|vision|qformer)_(config|cfg)|model_cfg")
MAX_COUNT, MAX_OTHER = 10_000, 2**31 - 1
# The fewest bytes of a tensor in a file: its entry in the header.
ENTRY_BYTES = 50
# What a model may have beside its weights: masks and positions that are computed, and modules without weights.
FREE_NUMBERS, FREE_MODULES, MODULES_OF_A_TENSOR = 2**26, 10_000, 64
# The engines choose these: those of a source may name code that transformers would download.
CHOSEN = re.compile(r"_?(attn|experts)_implementation\w*|auto_map|kernel_config|use_kernels")
MAX_SHOWN = 200


class _TooLarge(Exception):
    """More is built than the weights have."""


@dataclass
class _Budget:
    """The numbers and modules that a thread may still build."""

    num_numbers: int
    num_modules: int

    def take(self, *, num_numbers: int = 0, num_modules: int = 0) -> None:
        self.num_numbers -= num_numbers
        self.num_modules -= num_modules
        if self.num_numbers < 0 or self.num_modules < 0:
            raise _TooLarge


class _Building(threading.local):
    budget: _Budget | None = None


_building = _Building()


@dataclass(frozen=True)
class StoredWeights:
    """The numbers and tensors in files of weights."""

    num_numbers: int
    num_tensors: int

    @classmethod
    def in_bytes(cls, num_bytes: int) -> "StoredWeights":
        """Return the most that files of this size can hold."""
        return cls(num_bytes, num_bytes // ENTRY_BYTES)

    @classmethod
    def in_folder(cls, directory: Path) -> "StoredWeights":
        """Read the headers of safetensors files, and the sizes of others.

        Raises Refused for damaged files, and FileNotFoundError if there are none.
        """
        files = [*directory.rglob("*.safetensors")]
        pickles = [*directory.glob("*.bin")]
        if not files and not pickles:
            raise FileNotFoundError(f"{directory} has no model.safetensors, nor other weights")
        with readable_weights(directory):
            shapes = [shape for file in files for _, shape in shapes_in(file)]
        pickled = cls.in_bytes(sum(file.stat().st_size for file in pickles))
        return cls(sum(map(math.prod, shapes)) + pickled.num_numbers, len(shapes) + pickled.num_tensors)

    def check(self, raw: Mapping[str, Any], file: str) -> None:
        """Raises Refused, naming the field and its limit, for one that the weights can't have, or that is no size."""
        for name, value in _fields(raw):
            last = name.rpartition(".")[2]
            if isinstance(value, float) and math.isnan(value):
                raise Refused(f"{file}: {name} is not a number")
            if OBJECTS.fullmatch(last) and value is not None:
                raise Refused(f"{file}: {name} is {_shown(value)}: it must be an object")
            if (most := self._most(last)) is None:
                continue
            least = 1 if NEVER_ZERO.fullmatch(last) else 0
            for size in value if isinstance(value, list) and LISTS.fullmatch(last) else [value]:
                if size is None:
                    continue
                if not isinstance(size, int) or isinstance(size, bool) or size < least:
                    raise Refused(f"{file}: {name} is {_shown(size)}: it must be a whole number from {least}")
                if size > most:
                    told = f"; its weights are {self.num_numbers} numbers in at most {self.num_tensors} tensors"
                    raise Refused(f"{file}: {name} is {size}: it must be at most {most}{told}")

    @contextmanager
    def bound(self, file: str = MODEL_CONFIG) -> Iterator[None]:
        """Raises Refused as soon as a model that this thread builds in this block is too large for the weights."""
        _watch_modules()
        _building.budget = _Budget(
            MAX_SHARED * self.num_numbers + FREE_NUMBERS, MODULES_OF_A_TENSOR * self.num_tensors + FREE_MODULES
        )
        try:
            with light_imports(), _NothingInitialised():
                yield
        except _TooLarge:
            told = f"{self.num_numbers} numbers in at most {self.num_tensors} tensors"
            raise Refused(f"{file}: a model of these sizes is far larger than its weights, {told}") from None
        finally:
            _building.budget = None

    def _most(self, name: str) -> int | None:
        if COUNTS.fullmatch(name):
            return min(self.num_tensors, MAX_COUNT)
        if SIZES.fullmatch(name):
            return self.num_numbers
        return MAX_OTHER if OTHERS.fullmatch(name) else None


class _NothingInitialised(TorchFunctionMode):
    """Leaves weights without memory uninitialised. torch would do nothing to them, and import its compiler for it."""

    def __torch_function__(
        self, function: Any, types: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        options = dict(kwargs or {})
        if function in RANDOM and str(options.get("device")) == "meta":
            return torch.empty(*args, **options)
        if getattr(function, "__module__", "") == nn.init.__name__:
            tensor: Tensor = options["tensor"] if "tensor" in options else args[0]
            if tensor.is_meta:
                return tensor
        if function in SAME_SHAPE and args[0].is_meta and not isinstance(args[1], Tensor):
            return args[0]
        return function(*args, **options)


# Of a folder whose weights another program reads.
UNKNOWN_WEIGHTS = StoredWeights.in_bytes(2**50)


def read_config(directory: Path, stored: StoredWeights, *, may_choose: bool = True) -> Any:
    """Read the configuration of a folder in transformers' layout, as `model_config`. Raises OSError without one.

    Without `may_choose`, also raises Refused for what a source must not choose.
    """
    try:
        raw = json.loads((directory / MODEL_CONFIG).read_bytes())
    except (ValueError, RecursionError) as error:
        raise Refused(f"{MODEL_CONFIG} is not JSON: {error}") from None
    config = model_config(raw, stored)
    if not may_choose and _without_choices(raw) != raw:
        raise Refused(f"{MODEL_CONFIG} names code that computes it (attn_implementation, auto_map)")
    return config


def model_config(raw: Any, stored: StoredWeights) -> Any:
    """Return transformers' configuration of the content of a `config.json`, without what a source must not choose.

    Raises Refused, naming the field, for sizes that the weights can't have, and for values that transformers refuses.
    """
    if not isinstance(raw, Mapping):
        raise Refused(f"{MODEL_CONFIG} is not a JSON object")
    stored.check(raw, MODEL_CONFIG)
    kinds, kind = transformers().CONFIG_MAPPING, raw.get("model_type")
    if kind == "mistral" and "layer_types" in raw:
        kind = "ministral"  # as AutoConfig does
    if not isinstance(kind, str) or kind not in kinds:
        raise Refused(f"{MODEL_CONFIG}: model_type is {_shown(kind)}, an architecture that transformers does not know")
    with faults_of(MODEL_CONFIG, raw), quiet_loading():
        return kinds[kind].from_dict(_without_choices(raw))


def check_loaded(model: Any, report: Mapping[str, Any], prefix: str = "", unneeded: Collection[str] = ()) -> None:
    """Raises Refused, naming weights, if transformers' report lists some that the files lack, that they have in another
    shape than the configuration gives them, or that belong to a layer of the model as others than it has.
    """
    unexpected = sorted(prefix + name for name in report["unexpected_keys"])
    if missing := sorted(set(report["missing_keys"]) - set(unneeded)):
        named = shown_names([repr(prefix + name) for name in missing])
        instead = f"; it has {shown_names(unexpected)} in their place" if unexpected else "; save it again, whole"
        raise Refused(f"the checkpoint lacks weights of its model, {named}{instead}")
    for name, stored, wanted in sorted(report["mismatched_keys"]):
        raise Refused(sizes_told(prefix + name, stored, wanted, f"the {MODEL_CONFIG}"))
    layers = {_unnumbered(prefix + name) for name, _ in model.named_modules()}
    if odd := [name for name in unexpected if _unnumbered(name.rpartition(".")[0]) in layers]:
        told = f"{MODEL_CONFIG} describes a model without {shown_names(odd)}, which the weights have"
        raise Refused(f"{told}, so its answers would be wrong: take both from the same model")


def check_tokens(tokenizer: Any, num_rows: int) -> None:
    """Raises Refused for a tokenizer of transformers with tokens of texts that embeddings of `num_rows` lack.

    Of control tokens, which no text spells, those that the prompt has are found when the model is tried.
    """
    controls = {number for number, token in tokenizer.added_tokens_decoder.items() if token.special}
    beyond = {number: token for token, number in tokenizer.get_vocab().items() if number >= num_rows}
    if odd := sorted(beyond.keys() - controls):
        told = f"the token {beyond[odd[0]]!r} has the number {odd[0]}, and the embeddings have {num_rows} rows"
        raise Refused(f"tokenizer.json: {told}: take both from the same model, or save it with all its tokens")


def _unnumbered(name: str) -> str:
    return re.sub(r"\d+", "0", name)


def load_model(
    kind: str,
    directory: Path,
    config: Any,
    stored: StoredWeights,
    *,
    dtype: torch.dtype,
    unneeded: Collection[str] = (),
) -> Any:
    """Read a model of transformers' class `kind` from the safetensors of a folder.

    Raises what `StoredWeights.bound`, `readable_weights` and `check_loaded` raise.
    """
    maker = getattr(transformers(), kind)
    with quiet_loading(), readable_weights(directory), stored.bound():
        try:
            model, report = maker.from_pretrained(
                directory,
                config=config,
                dtype=dtype,
                use_safetensors=True,
                local_files_only=True,
                trust_remote_code=False,
                output_loading_info=True,
                ignore_mismatched_sizes=True,
            )
        except NotImplementedError:  # transformers compares tied weights, though one was left without memory
            _check_shapes(getattr(maker, "from_config", maker), config, directory)
            raise
    check_loaded(model, report, unneeded=unneeded)
    return model


def _check_shapes(make: Any, config: Any, directory: Path) -> None:
    """Raises Refused for the first weight of a folder that has another shape than the configuration gives it."""
    with torch.device("meta"):
        wanted = {name: weight.shape for name, weight in make(config).state_dict().items()}
    for name, shape in sorted(entry for file in directory.rglob("*.safetensors") for entry in shapes_in(file)):
        if name in wanted and wanted[name] != shape:
            raise Refused(sizes_told(name, shape, wanted[name], f"the {MODEL_CONFIG}"))


@contextmanager
def faults_of(file: str, config: Mapping[str, Any] | None = None) -> Iterator[None]:
    """Raises Refused, naming the file and what is wrong in a line, where a library does not take what the file says.

    Names the fields of `config` whose text the library complains of.
    """
    try:
        yield
    except Refused:
        raise
    except unexpected() as error:
        told = " ".join(str(error).split())
        told = told if " " in told else f"{type(error).__name__} {told}"
        told += f" (line {error.lineno})" if hasattr(error, "lineno") else ""
        texts = {name: value for name, value in _fields(config or {}) if isinstance(value, str)}
        if named := [name for name, value in texts.items() if value and value in told and name not in told]:
            told = f"{shown_names(named)}: {told}"
        raise Refused(f"{file}: {_cut(told)}") from error


def unexpected() -> tuple[type[Exception], ...]:
    """Return what libraries raise for values of a configuration, or for a template, that they do not expect."""
    from huggingface_hub.errors import StrictDataclassError  # known only where transformers was imported
    from jinja2 import TemplateError

    of_values = (ValueError, TypeError, LookupError, AttributeError, ArithmeticError, AssertionError, RuntimeError)
    return (*of_values, StrictDataclassError, TemplateError)


def _fields(raw: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """Yield all values that are no objects, by their path."""
    waiting: list[tuple[str, Any]] = list(raw.items())
    while waiting:
        name, value = waiting.pop()
        if isinstance(value, Mapping):
            waiting += [(f"{name}.{inner}", one) for inner, one in value.items()]
        else:
            yield name, value


def _without_choices(raw: Mapping[str, Any]) -> dict[str, Any]:
    return {
        name: _without_choices(value) if isinstance(value, Mapping) else value
        for name, value in raw.items()
        if not CHOSEN.fullmatch(name)
    }


def _shown(value: Any) -> str:
    return _cut(repr(value))


def _cut(text: str) -> str:
    return text if len(text) <= MAX_SHOWN else f"{text[:MAX_SHOWN]}…"


@cache
def _watch_modules() -> None:
    """Count what each thread builds, from now on. torch has these hooks for all modules alone."""
    register_module_parameter_registration_hook(_count_tensor)
    register_module_buffer_registration_hook(_count_tensor)
    register_module_module_registration_hook(_count_module)


def _count_tensor(module: nn.Module, name: str, tensor: Tensor | None) -> None:
    budget = _building.budget
    if budget is None or tensor is None:
        return
    before = module._parameters.get(name, module._buffers.get(name))
    if before is None or before.shape != tensor.shape:  # tied and loaded weights take the place of others
        budget.take(num_numbers=tensor.numel())


def _count_module(module: nn.Module, name: str, part: nn.Module | None) -> None:
    if _building.budget is not None:
        _building.budget.take(num_modules=1)
