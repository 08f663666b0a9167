"""Request and response bodies of `/generate` and `/v1/models`; those of OpenAI and rerank are in other modules."""

from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, Field, ValidationInfo

from services.core.errors import check_count
from services.core.http.bodies import JsonList, StrictRequest
from services.core.serving.model_object import ModelObject
from services.generate.generation.generation import Reorder
from services.generate.model.profile import BiasKind, DummyForm, Layer

MAX_STOPS = 16
# Far above any reasonable setting of a service: it bounds the time to parse a request body.
MAX_LISTED = 65_536

REORDER_DESCRIPTION = (
    "How documents are ranked before the prompt is written: the most relevant comes first, except that"
    " with `attention` (attention sorting), the most attended comes last."
)
SEED_DESCRIPTION = (
    "Equal seeds draw equal answers, except where other requests in the batch change how logits are rounded and two"
    " tokens are almost equally likely."
)
RELEVANCE_DESCRIPTION = (
    "Probability that the documents answer the question; null if the checkpoint has no trained refusal."
)
APPLIED_DESCRIPTION = "The calibration of the answer; null where nothing was calibrated."
FinishReason = Literal["stop", "length"]


class DocumentInput(StrictRequest):
    """A retrieved passage; `id` is the caller's own and is returned in the document's report."""

    id: str | None = None
    title: str = ""
    text: str


def check_length(given: Any, info: ValidationInfo) -> Any:
    """Check the length of a list before its items are read. Raises TooLarge for more than MAX_LISTED of them."""
    if isinstance(given, list):
        check_count(str(info.field_name), len(given), MAX_LISTED, "entries")
    return given


# A plain text is a document without a title and id.
AnyDocument = str | DocumentInput
DocumentList = Annotated[JsonList[AnyDocument], BeforeValidator(check_length)]


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


class GenerateRequest(StrictRequest):
    """A question over documents, which the prompt lists in the given order unless they are reordered."""

    query: Annotated[str, Field(min_length=1)]
    documents: DocumentList = Field([])
    model: str | None = Field(None, description="Model that answers; the first served one by default.")
    calibration: CalibrationOptions | None = None
    reorder: Reorder = Field("none", description=REORDER_DESCRIPTION)
    max_tokens: Annotated[int, Field(ge=1)] = 128
    temperature: Annotated[float, Field(ge=0, le=2, allow_inf_nan=False)] = Field(0.0, description="0: greedy.")
    top_p: Annotated[float, Field(gt=0, le=1)] = 1.0
    stop: Annotated[JsonList[Annotated[str, Field(min_length=1)]], Field(max_length=MAX_STOPS)] = Field(
        [], description="Stop texts: the answer ends before the first of them."
    )
    seed: Annotated[int, Field(ge=-(2**63), lt=2**63)] | None = Field(None, description=SEED_DESCRIPTION)
    explain: bool = Field(False, description="Return each document's attention and relevance by layer, too.")
    stream: bool = False


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


class LayerReport(BaseModel):
    """Attention and relevance of one document in each layer, from the first, as means over all heads of the layer."""

    attention: list[float] = Field(description="Attn(k) of every layer, uncalibrated.")
    relevance: list[float] | None = Field(
        description="rel(k) of the layers up to the last whose attention counts as relevance; null where nothing was"
        " calibrated, or where a table holds the bias of the document's place."
    )


class ExplainedDocument(DocumentReport):
    """The report on a document with, on request, its attention by layer."""

    by_layer: LayerReport | None = Field(description="Null without `explain`.")


class GenerateUsage(BaseModel):
    """`calibration_passes` counts the forward passes that estimated positional bias, besides the prompt's own."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    calibration_passes: int


class AnswerText(BaseModel):
    answer: str


class GenerateHead(BaseModel):
    """The part of an answer that is known before its text."""

    id: str
    object: Literal["fovea.generation"] = "fovea.generation"
    model: str = Field(description="`name@version` of the checkpoint that answered.")


class GenerateEnd(GenerateHead):
    """The last event of a stream: everything about an answer except its text."""

    finish_reason: FinishReason
    relevance: float | None = Field(ge=0, le=1, description=RELEVANCE_DESCRIPTION)
    documents: list[ExplainedDocument]
    calibration: AppliedCalibration | None = Field(description=APPLIED_DESCRIPTION)
    usage: GenerateUsage


class GenerateAnswer(GenerateEnd, AnswerText):
    """A whole answer; its text comes first."""


class GenerateDelta(BaseModel):
    delta: str


class ModelLimits(BaseModel):
    """Limits of one request."""

    max_documents: int
    max_tokens: int
    max_choices: int


class ModelCalibration(AppliedCalibration):
    """The calibration of requests that do not choose their own."""

    enabled: bool


class Model(ModelObject):
    """The served model."""

    max_model_len: int = Field(description="Most tokens of a prompt and its answer together.")
    calibration: ModelCalibration
    limits: ModelLimits


class ModelList(BaseModel):
    object: Literal["list"] = "list"
    data: list[Model]
