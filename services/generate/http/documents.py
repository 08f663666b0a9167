"""The documents of a request, their calibration, and the reports on them: what `/generate` and chat have in common."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, Field, ValidationError

from services.core.documents import AnyDocument
from services.core.errors import InvalidField, check_count
from services.core.refusals import message_of
from services.core.strict_requests import JsonList, StrictRequest
from services.generate.generation.generation import Progress, PromptFacts
from services.generate.model.profile import BadProfile, BiasKind, CalibrationProfile, DummyForm, Layer, last_half
from services.generate.prompts.templates import Document

REORDER_DESCRIPTION = (
    "How documents are ranked before the prompt is written: the most relevant comes first, except that"
    " with `attention` (attention sorting), the most attended comes last."
)
SEED_DESCRIPTION = (
    "Equal seeds draw equal answers, except where other requests in the batch change how logits are rounded and two"
    " tokens are almost equally likely."
)
APPLIED_DESCRIPTION = "The calibration of the answer; null where nothing was calibrated."
FinishReason = Literal["stop", "length"]


class CalibrationOptions(StrictRequest):
    """Changes to the checkpoint's calibration profile; fields that are left out keep the profile's values."""

    enabled: bool | None = None
    bias: BiasKind | None = Field(None, description="How positional bias is estimated.")
    temperature: Annotated[float, Field(gt=0, allow_inf_nan=False)] | None = Field(
        None, description="t of softmax(rel / t), in the units of a document's mean attention."
    )
    layers: Literal["last_half", "all"] | JsonList[Layer] | None = Field(
        None, description="Layers to calibrate, counted from 0."
    )
    dummy: DummyForm | None = Field(
        None, description="What filler replaces in a dummy: title and text (`framed`), or the whole document."
    )


class DocumentReport(BaseModel):
    """Attention and relevance of one document, in the order of the request."""

    id: str | None
    index: int = Field(description="Its place in the request, from 0.")
    position: int = Field(description="Its place in the prompt, from 0.")
    attention: float = Field(description="Attn(k): mean weight of its tokens in the last prompt row, uncalibrated.")
    relevance: float | None = Field(description="rel(k) of Eq. 3.4; null where nothing was calibrated.")


class AppliedCalibration(BaseModel):
    """Calibration of an answer. `bias` is the estimate that was made: another than asked for where that cannot be, such
    as `tree` for a `cached` one without a table for this number of documents."""

    bias: BiasKind
    temperature: float
    layers: list[int] = Field(description="Layers that are calibrated, counted from 0.")
    rel_layers: list[int] = Field(description="Layers whose attention counts as relevance.")
    dummy: DummyForm

    @classmethod
    def of(cls, profile: CalibrationProfile) -> Self:
        """Report a profile."""
        return cls(**profile.model_dump(include=set(cls.model_fields)))


def documents_of(given: Sequence[AnyDocument], max_documents: int) -> tuple[Document, ...]:
    """The documents of a request. Raises TooLarge for more than the limit."""
    check_count("documents", len(given), max_documents)
    return tuple(Document(one) if isinstance(one, str) else Document(one.text, one.title, one.id) for one in given)


def calibration_of(
    options: CalibrationOptions | None, profile: CalibrationProfile, num_layers: int
) -> CalibrationProfile:
    """A checkpoint's profile with a request's changes.

    The profile's tables are used only for the dummies that they were measured with. Raises InvalidField for options
    that the model or the profile does not allow.
    """
    if options is None:
        return profile
    changes: dict[str, Any] = options.model_dump(exclude_none=True)
    if (named := changes.get("layers")) in ("last_half", "all"):
        changes["layers"] = last_half(num_layers) if named == "last_half" else tuple(range(num_layers))
    try:
        return profile.changed(changes).check_layers(num_layers)
    except BadProfile as error:
        raise InvalidField(f"calibration.layers: {error}.", param="calibration.layers") from None
    except ValidationError as error:
        reason = "; ".join(map(message_of, error.errors()))
        raise InvalidField(f"calibration: {reason}.", param="calibration") from None


def without_leading_space(progress: Progress, text_so_far: str) -> Progress:
    """Strip an answer's leading white space from a step; its tokens do not change.

    The first token of an answer often contains the space that separates the answer from the prompt.
    """
    text = progress.text if text_so_far else progress.text.lstrip()
    return progress if text == progress.text else replace(progress, text=text)


def applied_of(facts: PromptFacts) -> AppliedCalibration | None:
    """Report how an answer was calibrated; None if it was not."""
    return None if facts.applied is None else AppliedCalibration.of(facts.applied)


def reports_of(documents: Sequence[Document], facts: PromptFacts) -> list[DocumentReport]:
    """Report the attention and relevance of each document, in the order of the request."""
    positions = {index: position for position, index in enumerate(facts.order)}
    return [
        DocumentReport(
            id=document.id,
            index=index,
            position=positions[index],
            attention=facts.attention[positions[index]],
            relevance=facts.relevance[positions[index]] if facts.relevance is not None else None,
        )
        for index, document in enumerate(documents)
    ]
