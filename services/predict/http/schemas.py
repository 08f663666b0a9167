"""Request and response bodies of the predict service: Fovea's own form, and TEI's."""

from collections.abc import Sequence
from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, Field, JsonValue
from pydantic_core import PydanticCustomError

from services.core.serving.model_object import ModelObject
from services.core.strict_requests import JsonList, StrictRequest

# Far above any real task or name: they bound the time to parse a request body.
MAX_FIELDS = 64
MAX_CHOICES = 1024
MAX_NAME_LENGTH = 256


def check_num_fields(given: Any) -> Any:
    """Check the number of fields of an input before they are read, and return it unchanged."""
    if isinstance(given, dict) and len(given) > MAX_FIELDS:
        raise PydanticCustomError("too_many_fields", f"An input has at most {MAX_FIELDS} fields")
    return given


Name = Annotated[str, Field(max_length=MAX_NAME_LENGTH)]
# A field holds a text or, if each input has its own choices, their list.
Choices = Annotated[JsonList[str], Field(max_length=MAX_CHOICES)]
Input = Annotated[dict[str, str | Choices], Field(max_length=MAX_FIELDS), BeforeValidator(check_num_fields)]
Inputs = Annotated[JsonList[Input], Field(min_length=1)]


class PredictRequest(StrictRequest):
    """Inputs of one task, each with all fields of the task."""

    task: Name | None = Field(None, description="The task's `id` in `/tasks`; optional if there is only one task.")
    model: Name | None = Field(
        None, description="`name`, `name@alias` or `name@version`, to choose among several models of a task."
    )
    inputs: Inputs
    rationale: bool = Field(default=False, description="Return a rationale, if the student was trained to give one.")
    probabilities: bool = Field(default=False, description="Return the probabilities of all labels.")


class Prediction(BaseModel):
    """The prediction for one input; `index` counts from 0."""

    index: int
    label: str = Field(description="The most probable label, or free text.")
    probability: float = Field(
        ge=0, le=1, description="Probability among the labels; for free text, the probability of exactly this text."
    )
    probabilities: dict[str, float] | None = Field(None, description="Probabilities of all labels, if requested.")
    rationale: str | None = None
    value: int | float | None = Field(None, description="Value of a label that is an equation; null if it has none.")
    confidence: float | None = Field(
        None, ge=0, le=1, description="Probability that the label is right; null if the checkpoint is not calibrated."
    )
    unused_numbers: list[int | float] | None = Field(
        None, description="Numbers of the input that an equation does not contain; null for other tasks."
    )
    unread_numbers: list[str] | None = Field(
        None, description="What looks like a number in the input of an equation but was not read, as it is written."
    )


class PredictUsage(BaseModel):
    """Usage of a request. `completion_tokens` counts the tokens of labels and rationales."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int


class PredictAnswer(BaseModel):
    """Predictions in the order of the inputs."""

    object: Literal["list"] = "list"
    model: str = Field(description="`name@version` of the checkpoint that produced the result.")
    task: str
    predictions: list[Prediction]
    usage: PredictUsage


class TaskObject(BaseModel):
    """A served task."""

    id: str
    model: str = Field(description="`name@version` of the checkpoint that serves the task.")
    fields: list[str] = Field(description="Fields of an input: strings, except the one that `choices` names.")
    labels: list[str] | None = Field(description="Null if the answers are the input's own choices or free text.")
    choices: str | None = Field(description="Field that lists an input's own choices; null if it has none.")
    rationales: bool
    metrics: dict[str, JsonValue] = Field(description="Metrics measured when the checkpoint was trained.")
    statement: str | None = Field(description="What the model was trained on and what it knows, in a sentence.")


class TaskList(BaseModel):
    object: Literal["list"] = "list"
    data: list[TaskObject]


# One text, or a pair of texts.
TeiSequence = Annotated[list[str], Field(min_length=1, max_length=2)]


class TeiPredictRequest(BaseModel):
    """The predict request of text-embeddings-inference, recognized by its string `inputs` without `task`.

    `inputs` is a string, a pair of strings, or a list of lists of one or two strings.
    """

    inputs: str | TeiSequence | Annotated[JsonList[TeiSequence], Field(min_length=1)]
    truncate: bool | None = False
    truncation_direction: Literal["right", "Right", "left", "Left"] | None = "right"
    raw_scores: bool | None = Field(False, description="Return logarithms of the probabilities.")
    model: Name | None = Field(None, description="Model to use if several accept such inputs.")


class TeiPrediction(BaseModel):
    score: float
    label: str


class ModelLimits(BaseModel):
    """Limits of one request."""

    max_inputs: int


class Model(ModelObject):
    """A served model."""

    max_model_len: int = Field(description="Maximum number of tokens of an input.")
    task: str
    limits: ModelLimits


class ModelList(BaseModel):
    object: Literal["list"] = "list"
    data: list[Model]


def is_tei(body: Any) -> bool:
    """Whether a body is in TEI's format."""
    if isinstance(body, TeiPredictRequest):
        return True
    if not isinstance(body, dict) or "task" in body:
        return False
    inputs = body.get("inputs")
    first = inputs[0] if isinstance(inputs, list) and inputs else inputs
    return isinstance(first, str | list) and inputs != []


def num_inputs(body: Any) -> int:
    """Count the inputs of a body that has not been validated."""
    inputs = body.get("inputs") if isinstance(body, dict) else None
    if not isinstance(inputs, list):
        return 1
    is_one = is_tei(body) and isinstance(inputs[0], str)
    return 1 if is_one else len(inputs)


def texts_of(request: TeiPredictRequest) -> list[Sequence[str]]:
    """The texts of each input of a TEI request."""
    inputs = request.inputs
    if isinstance(inputs, str):
        return [[inputs]]
    if isinstance(inputs[0], str):
        return [[text for text in inputs if isinstance(text, str)]]
    return [one for one in inputs if isinstance(one, list)]
