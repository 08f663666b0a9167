"""A checkpoint's calibration profile: the settings of calibration that help it, and their measured gain.

The profile is in `calibration.json` beside the weights. This module does not import torch, so that the HTTP layer can
read and change it. Every attention is Attn, the mean weight of a document's tokens in the last prompt row
(dissertation, section 3.2.1); t is that of softmax(rel / t), in the units of Attn. K documents.
"""

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator

from services.core.refusals import message_of

PROFILE_FILE = "calibration.json"
PAPER_TEMPERATURE = 5e-5
# of `tree`, which `fovea calibrate` prefers to whole dummies that see everything, if accuracy is as good
TREE_SAVINGS: Mapping[str, int] = {"dummy_tokens": 4, "window": 64}

BiasKind = Literal["exact", "tree", "single", "query", "cached"]
RelScope = Literal["mean", "per_head"]
SpanRule = Literal["newline", "text"]
RowScope = Literal["last", "tail"]
DummyForm = Literal["framed", "whole"]
ProfileSource = Literal["measured", "published"]

Layer = Annotated[int, Field(ge=0)]
HeadNumber = Annotated[int, Field(ge=0)]


class BadProfile(ValueError):
    """A calibration profile that cannot be read, contradicts itself, or does not fit its model."""


class BiasTable(BaseModel):
    """Mean Attn(dummy, k) of many prompts, for one number of documents and about one number of tokens per document.

    `attention` has a mean over what enters the profile's rel, layers and heads, for each place k, first document first;
    `bucket` is the least power of two that is not below the mean length of the prompts' documents in tokens.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    bucket: Annotated[int, Field(ge=1)]
    attention: tuple[Annotated[float, Field(ge=0, le=1)], ...] = Field(min_length=1)
    num_prompts: Annotated[int, Field(ge=1)]

    @property
    def num_documents(self) -> int:
        return len(self.attention)


class LogisticFit(BaseModel):
    """The temperature t and offset o of a probability σ((o + x) / t)."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    temperature: Annotated[float, Field(gt=0, allow_inf_nan=False)]
    offset: Annotated[float, Field(allow_inf_nan=False)]


class Answerability(BaseModel):
    """A trained refusal, and how its probability becomes one that the documents answer.

    With p the probability of `token_id`, the first token of the refusal, as the first token of an answer, documents
    answer with probability σ((offset − logit p) / temperature). Calibration changes p: `calibrated` is the fit for
    answers under the profile's calibration; None for the same fit.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    refusal: Annotated[str, Field(min_length=1)]
    token_id: Annotated[int, Field(ge=0)]
    temperature: Annotated[float, Field(gt=0, allow_inf_nan=False)] = 1.0
    offset: Annotated[float, Field(allow_inf_nan=False)] = 0.0
    calibrated: LogisticFit | None = None

    def fit(self, *, is_calibrated: bool) -> LogisticFit:
        """The fit for answers with or without calibration."""
        if is_calibrated and self.calibrated is not None:
            return self.calibrated
        return LogisticFit(temperature=self.temperature, offset=self.offset)


class CalibrationProfile(BaseModel):
    """The calibration of one checkpoint; layers are counted from 0.

    `layers` are intervened, `rel_layers` enter rel (Eq. 3.4): their mean over layers and heads, or over `rel_heads`,
    pairs of layer and head, if there are any, or with `per_head` a rel for each head of each intervened layer. `dummy`
    is what filler replaces in a dummy: its document's title and text (`framed`), or all of it (`whole`).
    `dummy_tokens`, `window` and `num_sinks` make `tree` cheaper: the most tokens of filler, and the numbers of tokens
    that a dummy sees before itself and at the prompt's start; None leaves it as long as its document, and seeing
    everything. `row_scope` is the prompt rows that are calibrated beside those
    of the answer. `answerability` belongs to a model that was trained to refuse, whether or not calibration is enabled.
    `relevance` is the fit of the probability that a document answers, of its rel alone; None where it was not measured.
    `gain` holds what was measured on separate prompts, `tables` the estimates of `cached`; both are of this `dummy`.
    `source` is where the settings come from: measurements on this checkpoint, or the paper alone, without any gain.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    enabled: bool
    bias: BiasKind = "tree"
    temperature: Annotated[float, Field(gt=0, allow_inf_nan=False)] = PAPER_TEMPERATURE
    layers: tuple[Layer, ...] = ()
    rel_layers: tuple[Layer, ...] = ()
    rel_heads: tuple[tuple[Layer, HeadNumber], ...] = ()
    rel_scope: RelScope = "mean"
    span_rule: SpanRule = "newline"
    row_scope: RowScope = "last"
    dummy: DummyForm = "framed"
    dummy_tokens: Annotated[int, Field(ge=1)] | None = None
    window: Annotated[int, Field(ge=1)] | None = None
    num_sinks: Annotated[int, Field(ge=0)] = 4
    answerability: Answerability | None = None
    relevance: LogisticFit | None = None
    source: ProfileSource = "measured"
    gain: dict[str, Annotated[float, Field(allow_inf_nan=False)]] = {}
    tables: tuple[BiasTable, ...] = ()

    @field_validator("layers", "rel_layers")
    @classmethod
    def _sorted(cls, layers: tuple[int, ...]) -> tuple[int, ...]:
        return tuple(sorted(set(layers)))

    @field_validator("rel_heads")
    @classmethod
    def _sorted_heads(cls, heads: tuple[tuple[int, int], ...]) -> tuple[tuple[int, int], ...]:
        return tuple(sorted(set(heads)))

    @field_validator("tables")
    @classmethod
    def _one_table_for_each(cls, tables: tuple[BiasTable, ...]) -> tuple[BiasTable, ...]:
        if len({(table.num_documents, table.bucket) for table in tables}) < len(tables):
            raise ValueError("two tables are for the same number of documents and the same bucket")
        return tables

    @model_validator(mode="after")
    def _complete(self) -> Self:
        if self.enabled and not (self.layers and self.rel_layers):
            raise ValueError("a calibration needs at least one layer in each of layers and rel_layers")
        if self.enabled and self.bias == "cached" and not self.tables:
            raise ValueError("there are no tables for a cached bias")
        if self.bias == "cached" and self.rel_scope == "per_head":
            raise ValueError("tables of the bias hold means over heads, so rel_scope cannot be per_head")
        if self.rel_scope == "per_head" and not set(self.layers) <= set(self.rel_layers):
            raise ValueError("with rel_scope per_head, layers must be among rel_layers")
        if self.rel_scope == "per_head" and self.rel_heads:
            raise ValueError("rel_heads are for a mean over heads, so rel_scope cannot be per_head")
        if self.rel_heads and {layer for layer, _ in self.rel_heads} != set(self.rel_layers):
            raise ValueError("rel_layers must be the layers of rel_heads")
        return self

    def check_layers(self, num_layers: int, num_heads: int | None = None) -> Self:
        """Return the profile itself. Raises BadProfile for a layer, or a head of `rel_heads`, that the model lacks.

        `num_heads` None does not check heads.
        """
        wrong = max((head for _, head in self.rel_heads), default=0)
        if num_heads is not None and wrong >= num_heads:
            raise BadProfile(f"rel_heads name head {wrong}; the model's are 0 to {num_heads - 1}")
        for field, layers in (("layers", self.layers), ("rel_layers", self.rel_layers)):
            if layers and layers[-1] >= num_layers:
                raise BadProfile(f"{field} name layer {layers[-1]}; the model's are 0 to {num_layers - 1}")
        return self

    def completed(self, num_layers: int) -> Self:
        """The profile with the paper's layers where it has none; its estimate and t too, if it has none at all."""
        names = {name for name in ("layers", "rel_layers") if not getattr(self, name)}
        if len(names) == 2:
            names |= {"bias", "temperature"} if self.gain else {"bias", "temperature", "source"}
        return self.model_copy(update=paper_profile(num_layers).model_dump(include=names))

    def changed(self, changes: Mapping[str, Any]) -> Self:
        """The profile with changes, without tables that were measured with other dummies. Raises ValidationError."""
        other_dummies = changes.get("dummy", self.dummy) != self.dummy
        return self.model_validate({**self.model_dump(), **({"tables": ()} if other_dummies else {}), **changes})

    def cached_attention(self, num_tokens: Sequence[int]) -> tuple[float, ...] | None:
        """Return the table's Attn(dummy, k), K values, for documents of `num_tokens`.

        Of several tables for K documents, the one with the nearest bucket counts, the smaller of two equally near; None
        if there is no table for K documents (and for K = 0).
        """
        wanted = length_bucket(num_tokens)
        fitting = [table for table in self.tables if table.num_documents == len(num_tokens)]
        if not fitting:
            return None
        return min(fitting, key=lambda table: (abs(math.log2(table.bucket / wanted)), table.bucket)).attention


OFF = CalibrationProfile(enabled=False)


def length_bucket(num_tokens: Sequence[int]) -> int:
    """The smallest power of two not below the mean of `num_tokens` (K,); 1 for no documents and for empty ones."""
    total, count = sum(num_tokens), len(num_tokens)
    return 1 if total <= count else 1 << (-(-total // count) - 1).bit_length()


def last_half(num_layers: int) -> tuple[int, ...]:
    """The layers that the paper intervenes on: 16 to 31 of 32; for an odd number, the larger half."""
    return tuple(range(num_layers // 2, num_layers))


def paper_profile(num_layers: int) -> CalibrationProfile:
    """The paper's settings for 7B models (dissertation, B.2): last half, rel of all layers, t = 5e-5, exact."""
    return CalibrationProfile(
        enabled=True,
        bias="exact",
        temperature=PAPER_TEMPERATURE,
        layers=last_half(num_layers),
        rel_layers=tuple(range(num_layers)),
        source="published",
    )


def read_profile(directory: Path) -> CalibrationProfile | None:
    """Read the profile of a checkpoint; None if it has none. Raises BadProfile for an invalid file."""
    path = directory / PROFILE_FILE
    return read_profile_file(path) if path.exists() else None


def read_profile_file(path: Path) -> CalibrationProfile:
    """Read a profile from a file. Raises OSError for a file that cannot be read, BadProfile for an invalid one.

    An enabled profile that does not name its dummies precedes framed dummies: its dummies were `whole`.
    """
    text = path.read_bytes()
    try:
        profile = CalibrationProfile.model_validate_json(text)
    except ValidationError as error:
        raise BadProfile(f"{path}: {complaints(error)}") from error
    is_old = profile.enabled and "dummy" not in profile.model_fields_set
    return profile.model_copy(update={"dummy": "whole"}) if is_old else profile


def write_profile(profile: CalibrationProfile, directory: Path) -> Path:
    """Write `calibration.json` into an existing directory, replacing an earlier one; returns its path."""
    path = directory / PROFILE_FILE
    path.write_text(json.dumps(profile.model_dump(mode="json"), indent=2) + "\n")
    return path


def complaints(error: ValidationError) -> str:
    """Describe the errors of a profile in one line."""
    return "; ".join(_complaints(error))


def _complaints(error: ValidationError) -> Iterable[str]:
    for one in error.errors(include_url=False, include_input=False):
        place = ".".join(map(str, one["loc"]))
        yield f"{place}: {message_of(one)}" if place else message_of(one)
