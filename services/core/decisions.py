"""OpenAI's `/v1/decisions` as it is sent: a request's typed questions about an input, and their answers."""

from collections.abc import Iterator, Sequence
from typing import Annotated, Any, Literal, NamedTuple, Self

import orjson
from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Discriminator,
    Field,
    JsonValue,
    StrictBool,
    StrictStr,
    Tag,
    ValidationError,
)
from pydantic import model_validator as validator
from pydantic_core import InitErrorDetails, PydanticCustomError

from services.core.documents import DocumentList
from services.core.errors import InvalidField
from services.core.strict_requests import JsonList, StrictRequest

# OpenAI's limits.
MAX_QUESTIONS, MAX_OPTIONS, MAX_IDENTIFIER_CHARACTERS = 400, 255, 64
MAX_JSON_LEVELS, MAX_JSON_VALUES, MAX_JSON_BYTES = 32, 10_000, 256 * 1024
MAX_ITEMS = 1024
NO_EFFECT = "Accepted and without effect: the answer does not depend on it."


def check_json(given: Any) -> Any:
    """Check the size of a JSON part before it is read, and return it unchanged."""
    num_values, level, depth = 0, [given], 0
    while level:
        num_values += len(level)
        depth += any(isinstance(one, dict | list) for one in level)
        nested = (one.values() if isinstance(one, dict) else one for one in level if isinstance(one, dict | list))
        level = [value for values in nested for value in values]
        if depth > MAX_JSON_LEVELS or num_values > MAX_JSON_VALUES:
            break
    if depth > MAX_JSON_LEVELS or num_values > MAX_JSON_VALUES or len(orjson.dumps(given)) > MAX_JSON_BYTES:
        limits = f"{MAX_JSON_LEVELS} levels, {MAX_JSON_VALUES} values and {MAX_JSON_BYTES} bytes"
        raise PydanticCustomError("json_too_large", f"JSON has at most {limits}")
    return given


class CacheBreakpoint(StrictRequest):
    mode: Literal["explicit"]


class CacheOptions(StrictRequest):
    mode: Literal["implicit", "explicit"] | None = None
    ttl: Literal["30m"] = "30m"


class DecisionText(StrictRequest):
    type: Literal["input_text"]
    text: str
    prompt_cache_breakpoint: CacheBreakpoint | None = Field(None, description=NO_EFFECT)


class DecisionImage(StrictRequest):
    type: Literal["input_image"]
    image_url: str = Field(description="Data URL or, where the service allows it, `http(s)` URL.")
    detail: Literal["auto"] | None = Field(None, description="A model sees every image in its own size.")
    prompt_cache_breakpoint: CacheBreakpoint | None = Field(None, description=NO_EFFECT)


class DecisionJson(StrictRequest):
    type: Literal["input_json"]
    data: Annotated[dict[str, JsonValue] | list[dict[str, JsonValue]], BeforeValidator(check_json)]


Part = Annotated[DecisionText | DecisionImage | DecisionJson, Field(discriminator="type")]


class UserMessage(StrictRequest):
    type: Literal["message"] = "message"
    role: Literal["user"]
    content: str | Annotated[JsonList[Part], Field(max_length=MAX_ITEMS)]


class InstructionMessage(StrictRequest):
    type: Literal["message"] = "message"
    role: Literal["developer", "system"]
    content: str | Annotated[JsonList[DecisionText], Field(max_length=MAX_ITEMS)]


class DecisionOutputText(StrictRequest):
    type: Literal["output_text"]
    text: str


class DecisionOutputRefusal(StrictRequest):
    type: Literal["refusal"]
    refusal: str


OutputPart = Annotated[DecisionOutputText | DecisionOutputRefusal, Field(discriminator="type")]


class AssistantMessage(StrictRequest):
    type: Literal["message"] = "message"
    role: Literal["assistant"]
    content: str | Annotated[JsonList[OutputPart], Field(max_length=MAX_ITEMS)]
    phase: Literal["commentary", "final_answer"] | None = None


class ToolItem(StrictRequest):
    call_id: str
    id: str | None = None
    status: Literal["in_progress", "completed", "incomplete"] | None = None


class ToolCallItem(ToolItem):
    name: str
    namespace: str | None = None


class FunctionCallItem(ToolCallItem):
    type: Literal["function_call"]
    arguments: str


class CustomCallItem(ToolCallItem):
    type: Literal["custom_tool_call"]
    input: str


class ToolOutputItem(ToolItem):
    type: Literal["function_call_output", "custom_tool_call_output"]
    output: (
        str
        | Annotated[
            JsonList[Annotated[DecisionText | DecisionImage, Field(discriminator="type")]], Field(max_length=MAX_ITEMS)
        ]
    )


def _kind(item: Any) -> str:
    """Return the tag of an item: a message's role, or the type of another item."""
    given = item if isinstance(item, dict) else getattr(item, "__dict__", {})
    kind = given.get("type", "message")
    return str(given.get("role") if kind == "message" else kind)


Item = Annotated[
    Annotated[UserMessage, Tag("user")]
    | Annotated[InstructionMessage, Tag("developer")]
    | Annotated[InstructionMessage, Tag("system")]
    | Annotated[AssistantMessage, Tag("assistant")]
    | Annotated[FunctionCallItem, Tag("function_call")]
    | Annotated[CustomCallItem, Tag("custom_tool_call")]
    | Annotated[ToolOutputItem, Tag("function_call_output")]
    | Annotated[ToolOutputItem, Tag("custom_tool_call_output")],
    Discriminator(
        _kind,
        custom_error_type="unknown_item",
        custom_error_message="Must be a message of the role user, developer, system or assistant, a function_call, a "
        "custom_tool_call, or the output of one",
    ),
]
Text = Annotated[str, Field(min_length=1)]
QuestionPart = Annotated[DecisionText | DecisionJson, Field(discriminator="type")]


class AnyQuestion(StrictRequest):
    name: str | None = Field(None, description="Repeated in the answer.")
    instructions: Text | Annotated[JsonList[QuestionPart], Field(min_length=1, max_length=MAX_ITEMS)]


class PredicateQuestion(AnyQuestion):
    """A statement about the input, which may be true."""

    type: Literal["predicate"]


class QuestionOption(BaseModel):
    """A choice or a level. A request may have a hundred thousand, each of which StrictRequest would check in Python."""

    model_config = ConfigDict(extra="forbid")


class Choice(QuestionOption):
    value: Annotated[StrictStr, Field(min_length=1)] | StrictBool = Field(
        description='A text or a boolean; `"true"` and `true` are two values.'
    )
    description: str | None = None


class ChoiceQuestion(AnyQuestion):
    """Options, one of which is right."""

    type: Literal["choice"]
    choices: Annotated[JsonList[Choice], Field(min_length=2, max_length=MAX_OPTIONS)]

    @validator(mode="after")
    def has_distinct_choices(self) -> Self:
        _check_distinct([(type(one.value), one.value) for one in self.choices], "choices")
        return self


class Level(QuestionOption):
    label: Text
    description: str | None = None


class ScoreQuestion(AnyQuestion):
    """Levels, from the lowest to the highest, one of which the input has."""

    type: Literal["score"]
    levels: Annotated[JsonList[Level], Field(min_length=2, max_length=MAX_OPTIONS)]

    @validator(mode="after")
    def has_distinct_levels(self) -> Self:
        _check_distinct([one.label for one in self.levels], "levels")
        return self


def _check_distinct(values: Sequence[Any], field: str) -> None:
    if len(set(values)) < len(values):
        index = next(place for place, value in enumerate(values) if value in values[:place])
        raise _complaint((field, index), "It is equal to an earlier one; each must be unique")


def _complaint(place: tuple[str | int, ...], reason: str) -> ValidationError:
    error = PydanticCustomError("inconsistent", "{reason}", {"reason": reason})
    return ValidationError.from_exception_data("decisions", [InitErrorDetails(type=error, loc=place, input=None)])


Question = Annotated[PredicateQuestion | ChoiceQuestion | ScoreQuestion, Field(discriminator="type")]
Identifier = Annotated[str, Field(max_length=MAX_IDENTIFIER_CHARACTERS)]


class DecisionRequest(StrictRequest):
    """Questions about one input."""

    model: Text
    input: str | Annotated[JsonList[Item], Field(min_length=1, max_length=MAX_ITEMS)]
    questions: Annotated[JsonList[Question], Field(min_length=1, max_length=MAX_QUESTIONS)]
    teacher: Text | None = Field(
        None,
        description="Fovea's own: the model that decides what a student is not certain of, below the threshold in its "
        "manifest. The gateway asks it.",
    )
    documents: DocumentList | None = Field(
        None,
        description="Fovea's own: what the questions are about beside the input, read by a language model of generate, "
        "with calibrated attention where the model has a profile.",
    )
    prompt_cache_key: Identifier | None = Field(None, description=NO_EFFECT)
    prompt_cache_options: CacheOptions | None = Field(None, description=NO_EFFECT)
    safety_identifier: Identifier | None = Field(None, description=NO_EFFECT)

    @validator(mode="after")
    def is_consistent(self) -> Self:
        if self.teacher is not None and self.teacher.partition("@")[0] == self.model.partition("@")[0]:
            raise _complaint(("teacher",), "A model can't be its own teacher; name another model")
        calls = set()
        for index, item in enumerate(self.input if isinstance(self.input, list) else ()):
            if isinstance(item, FunctionCallItem | CustomCallItem):
                calls.add((item.type, item.call_id))
            elif isinstance(item, ToolOutputItem) and (item.type.removesuffix("_output"), item.call_id) not in calls:
                reason = f"There is no earlier {item.type.removesuffix('_output')} with this id"
                raise _complaint(("input", index, "call_id"), reason)
        return self


class AnyAnswer(BaseModel):
    """An answer to a question of this name; what has a default may be missing in a log."""

    model_config = ConfigDict(
        json_schema_serialization_defaults_required=True,
        json_schema_extra=lambda schema: schema["required"].remove("model"),
    )
    name: str | None = None
    model: str | None = Field(
        None,
        description="In answers to requests with a `teacher` alone: the `name@version` that decided. A service by "
        "itself leaves null what its student hands over.",
    )


class PredicateAnswer(AnyAnswer):
    type: Literal["predicate"]
    probability: float = Field(ge=0, le=1)


Value = str | bool


class ChoiceProbability(BaseModel):
    value: Value
    probability: float


CONFIDENCE = (
    "Of a student with a fitted confidence, the probability that the most probable option is right; of other models, "
    "how concentrated the probabilities are: 1 minus their entropy divided by that of equal ones."
)


class ChoiceAnswer(AnyAnswer):
    type: Literal["choice"]
    choice: Value = Field(description="The most probable value.")
    confidence: float = Field(default_factory=float, ge=0, le=1, description=CONFIDENCE)
    probabilities: list[ChoiceProbability] = Field(
        default_factory=list, description="In the order of the choices; their sum is 1."
    )


class LevelProbability(BaseModel):
    model_config = ConfigDict(json_schema_serialization_defaults_required=True)
    value: int = Field(default_factory=int, description="Place of the level, from 0.")
    label: str
    probability: float


class LevelAnswer(AnyAnswer):
    type: Literal["score"]
    score: float = Field(
        default_factory=float, description="Mean of the levels' places, weighted by their probabilities."
    )
    confidence: float = Field(default_factory=float, ge=0, le=1, description=CONFIDENCE)
    probabilities: list[LevelProbability] = Field(min_length=1)


class RefusalAnswer(AnyAnswer):
    """The model declined; those of Fovea never do."""

    type: Literal["refusal"]


class DecisionInputDetails(BaseModel):
    cached_tokens: int
    cache_write_tokens: int


class DecisionOutputDetails(BaseModel):
    reasoning_tokens: int


class DecisionUsage(BaseModel):
    """Tokens that were read; none are generated."""

    input_tokens: int
    input_tokens_details: DecisionInputDetails
    output_tokens: int
    output_tokens_details: DecisionOutputDetails
    total_tokens: int


class Decision(BaseModel):
    """Answers in the order of the questions."""

    model: str = Field(description="`name@version` of the checkpoint that answered.")
    answers: list[PredicateAnswer | ChoiceAnswer | LevelAnswer]
    usage: DecisionUsage


class Option(NamedTuple):
    """An option of a choice or a level of a score; `text` is its description or, without one, its name."""

    name: str
    text: str
    param: str


def options_of(question: ChoiceQuestion | ScoreQuestion, param: str) -> list[Option]:
    """Return the options of the question that is the field `param`."""
    if isinstance(question, ScoreQuestion):
        levels = enumerate(question.levels)
        return [Option(one.label, one.description or one.label, f"{param}.levels.{index}") for index, one in levels]
    names = [name_of(one.value) for one in question.choices]
    return [
        Option(name, one.description or name, f"{param}.choices.{index}")
        for index, (name, one) in enumerate(zip(names, question.choices, strict=True))
    ]


def name_of(value: Value) -> str:
    """Return the value of a choice as a text: of a boolean `true` or `false`."""
    return value if isinstance(value, str) else str(value).lower()


def instructions_of(question: AnyQuestion) -> str:
    """Return the text of a question's instructions, with JSON as text."""
    if isinstance(question.instructions, str):
        return question.instructions
    return "\n".join(text_of(part) for part in question.instructions)


def text_of(part: DecisionText | DecisionJson) -> str:
    """Return a part as a text."""
    return part.text if isinstance(part, DecisionText) else orjson.dumps(part.data).decode()


def user_parts(body: DecisionRequest) -> Iterator[tuple[str, DecisionText | DecisionImage | DecisionJson]]:
    """Yield the parts of the input with their fields. Raises InvalidField for items other than messages of the user."""
    if isinstance(body.input, str):
        yield "input", DecisionText(type="input_text", text=body.input)
        return
    for index, item in enumerate(body.input):
        param = f"input.{index}"
        if not isinstance(item, UserMessage):
            what = "calls of tools" if isinstance(item, ToolItem) else f"messages of the role {item.role}"
            raise InvalidField(f"{param}: This model reads no {what}, only messages of the role user.", param=param)
        if isinstance(item.content, str):
            yield f"{param}.content", DecisionText(type="input_text", text=item.content)
        else:
            yield from ((f"{param}.content.{place}", part) for place, part in enumerate(item.content))


def user_texts(body: DecisionRequest) -> list[tuple[str, DecisionText | DecisionJson]]:
    """Return the parts of the input with their fields. Raises InvalidField as `user_parts` does, and for images."""
    texts: list[tuple[str, DecisionText | DecisionJson]] = []
    for param, part in user_parts(body):
        if isinstance(part, DecisionImage):
            raise InvalidField(f"{param}: This model reads no images.", param=param)
        texts.append((param, part))
    return texts
