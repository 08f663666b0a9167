"""Request and response bodies of the predict service: Fovea's own form, and TEI's."""

from collections.abc import Sequence
from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, Field, JsonValue
from pydantic_core import PydanticCustomError

from services.core.http.bodies import JsonList
from services.core.http.request_fields import StrictRequest
from services.core.serving.model_object import ModelObject

# Far above what a task has or a client calls anything: they bound how long one body can be read.
MAX_FIELDS = 64
MAX_CHOICES = 1024
MAX_NAME_LENGTH = 256


def check_num_fields(given: Any) -> Any:
    """Return an input as it was given, before its fields are read."""
    if isinstance(given, dict) and len(given) > MAX_FIELDS:
        raise PydanticCustomError("too_many_fields", f"An input has at most {MAX_FIELDS} fields")
    return given


Name = Annotated[str, Field(max_length=MAX_NAME_LENGTH)]
# A task's field holds a text, or, where the answers are the input's own, a list of them.
Choices = Annotated[JsonList[str], Field(max_length=MAX_CHOICES)]
Input = Annotated[dict[str, str | Choices], Field(max_length=MAX_FIELDS), BeforeValidator(check_num_fields)]
Inputs = Annotated[JsonList[Input], Field(min_length=1)]


class PredictRequest(StrictRequest):
    """Inputs of one task, each with all fields of the task."""

    task: Name | None = Field(None, description="As `/tasks` names it; may be left out where there is one.")
    model: Name | None = Field(None, description="`name`, `name@alias` or `name@version`, where it matters which.")
    inputs: Inputs
    rationale: bool = Field(default=False, description="Say why, where the student was taught to.")
    probabilities: bool = Field(default=False, description="Of every label, not only of the likeliest.")


class Prediction(BaseModel):
    """The answer to one input, `index` from 0."""

    index: int
    label: str = Field(description="The likeliest label, or free text.")
    probability: float = Field(ge=0, le=1, description="Among the labels; of free text, of exactly this text.")
    probabilities: dict[str, float] | None = Field(None, description="Of all labels, if they were asked for.")
    rationale: str | None = None
    value: int | float | None = Field(None, description="Of a label that is an equation; null where it has none.")


class Usage(BaseModel):
    """`completion_tokens` are those of labels and rationales."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int


class PredictAnswer(BaseModel):
    """Predictions in the order of the inputs."""

    object: Literal["list"] = "list"
    model: str = Field(description="`name@version` of the checkpoint that answered.")
    task: str
    predictions: list[Prediction]
    usage: Usage


class TaskObject(BaseModel):
    """A served task."""

    id: str
    model: str = Field(description="`name@version` of the checkpoint that answers it.")
    fields: list[str] = Field(description="Of an input, all of them texts but for `choices`, a list of texts.")
    labels: list[str] | None = Field(description="Null where the answers are the input's own choices or free text.")
    rationales: bool
    metrics: dict[str, JsonValue] = Field(description="What was measured when the checkpoint was trained.")


class TaskList(BaseModel):
    object: Literal["list"] = "list"
    data: list[TaskObject]


# One text, or two that are read together.
TeiSequence = Annotated[list[str], Field(min_length=1, max_length=2)]


class TeiPredictRequest(BaseModel):
    """The predict request of text-embeddings-inference; told apart by `inputs` that are texts and by having no `task`.

    A text, a pair of texts, or a list of lists of one or two texts.
    """

    inputs: str | TeiSequence | Annotated[JsonList[TeiSequence], Field(min_length=1)]
    truncate: bool | None = False
    truncation_direction: Literal["right", "Right", "left", "Left"] | None = "right"
    raw_scores: bool | None = Field(False, description="Logarithms of the probabilities.")
    model: Name | None = Field(None, description="Which model, where several have such inputs.")


class TeiPrediction(BaseModel):
    score: float
    label: str


class ModelLimits(BaseModel):
    """Limits of one request."""

    max_inputs: int


class Model(ModelObject):
    """A served model."""

    max_model_len: int = Field(description="Most tokens of an input.")
    task: str
    loaded: bool = Field(description="Whether it is in memory; if not, it is loaded when it is asked.")
    limits: ModelLimits


class ModelList(BaseModel):
    object: Literal["list"] = "list"
    data: list[Model]


def is_tei(body: Any) -> bool:
    """Whether a body speaks TEI's dialect."""
    if isinstance(body, TeiPredictRequest):
        return True
    if not isinstance(body, dict) or "task" in body:
        return False
    inputs = body.get("inputs")
    first = inputs[0] if isinstance(inputs, list) and inputs else inputs
    return isinstance(first, str | list) and bool(inputs)


def num_inputs(body: Any) -> int:
    """Count the inputs of a body that is not validated yet."""
    inputs = body.get("inputs") if isinstance(body, dict) else None
    if not isinstance(inputs, list):
        return 1
    is_one = is_tei(body) and isinstance(inputs[0], str)
    return 1 if is_one else len(inputs)


def texts_of(request: TeiPredictRequest) -> list[Sequence[str]]:
    """The texts of each input of TEI's."""
    inputs = request.inputs
    if isinstance(inputs, str):
        return [[inputs]]
    if isinstance(inputs[0], str):
        return [[text for text in inputs if isinstance(text, str)]]
    return [one for one in inputs if isinstance(one, list)]
