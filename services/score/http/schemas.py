"""Request and response bodies of the score service in Fovea's own format and vLLM's."""

from typing import Annotated, Literal

from pydantic import BaseModel, Field, JsonValue

from services.core.images.references import JsonImage
from services.core.serving.model_object import ModelObject
from services.core.strict_requests import JsonList, StrictRequest
from services.score.call import CallLimits
from services.score.negatives.hard_negatives import PAPER_KINDS, Kind
from services.score.negatives.negative_maker import Lack
from services.score.negatives.prompting.checks import WrittenKind

# Seeds fit into eight bytes.
MAX_SEED = 2**63 - 1


class ScoreOptions(StrictRequest):
    """Options of a request in any format, besides the image and its captions."""

    explain: bool = Field(default=False, description="Return a heatmap of each token of each caption.")
    truncate: bool = Field(
        default=False, description="Truncate captions at the model's context length instead of rejecting them."
    )
    model: str | None = Field(None, description="Model that answers; the first served one by default.")
    vqa_top_k: int | None = Field(
        None,
        ge=1,
        description="Number of captions, those of the highest scores, about which the configured vision-language model"
        " is asked as well; `best` is then its choice among them.",
    )


class ScoreRequest(ScoreOptions):
    """An image and the captions to score."""

    image: JsonImage = Field(description="Data URI, base64 or `http(s)` URL.")
    captions: JsonList[str] = Field(description="Captions in any order; identical ones are computed once.")


class ScoreUsage(BaseModel):
    """Usage of a request. `prompt_tokens` counts the tokens of all captions."""

    images: int
    prompt_tokens: int
    total_tokens: int


class CaptionScore(BaseModel):
    """Scores of one caption; `index` counts from 0."""

    index: int
    caption: str
    # "global" is a Python keyword
    global_: float = Field(alias="global", description="Cosine of the pooled embeddings.")
    local: float | None = Field(
        description="Mean cosine of a token and the patches that it attends to; null for a model without tokens."
    )
    score: float = Field(description="Ranking score: (1 - local_weight) x global + local_weight x local.")
    probability: float = Field(ge=0, le=1, description="Softmax of the scaled scores over all captions.")
    match: float | None = Field(
        None,
        ge=0,
        le=1,
        description="Probability that this caption describes the image, whatever the others: the sigmoid of logit_scale"
        " x global + logit_bias. Only for models trained with a sigmoid (SigLIP), otherwise left out.",
    )
    vqa: float | None = Field(
        None,
        ge=0,
        le=1,
        description="VQAScore: probability that the vision-language model says yes when asked whether the image shows"
        " the caption; null if it was not asked about this caption or answered neither yes nor no. Only with"
        " `vqa_top_k`, otherwise left out.",
    )


class Explanation(BaseModel):
    """Attention of the tokens of one caption."""

    index: int
    tokens: list[str] = Field(
        description="Tokens of the caption. A token that continues a word begins with `##`; the last marks the end of "
        "the text."
    )
    heatmaps: list[list[list[float]]] = Field(
        description="For each token, its attention to rows x columns of patches, from 0 (least) to 1 (most) (Eq. 6)."
    )


class ScoreAnswer(BaseModel):
    """Scores in the order of the captions."""

    object: Literal["list"] = "list"
    model: str = Field(description="`name@version` of the checkpoint that produced the result.")
    best: int = Field(
        description="Index of the highest score, or the first in a tie; with `vqa_top_k`, of the highest `vqa`."
    )
    scores: list[CaptionScore]
    explain: list[Explanation] | None
    vqa_model: str | None = Field(None, description="The vision-language model. Only with `vqa_top_k`.")
    usage: ScoreUsage


# One side of vLLM's pairs: a text, an image, vLLM's `{"content": [part]}`, or `{"image": …}` and `{"text": …}`.
VllmInput = str | dict[str, JsonValue]


class VllmScoreRequest(BaseModel):
    """vLLM's request, recognized by the absence of `image` and `captions`.

    It pairs one input with one or many, or two lists of equal length. Each pair is an image and a text, in either
    order.
    A string is an image if it is a data URI, an `http(s)` URL, or base64 of an image. The two sides may also be
    called `queries` and `documents`, `queries` and `items`, or `text_1` and `text_2`.
    """

    data_1: VllmInput | JsonList[VllmInput]
    data_2: VllmInput | JsonList[VllmInput]
    model: str | None = None
    truncate_prompt_tokens: Literal[-1] | None = Field(
        None, description="-1 truncates texts at the model's context length instead of rejecting them."
    )


class VllmScore(BaseModel):
    index: int
    object: Literal["score"] = "score"
    score: float


class VllmUsage(BaseModel):
    prompt_tokens: int
    total_tokens: int
    completion_tokens: int = 0


class VllmScoreAnswer(BaseModel):
    """Response in vLLM's format: the scores in the order of the pairs."""

    id: str
    object: Literal["list"] = "list"
    created: int = Field(description="Unix time in seconds.")
    model: str = Field(description="`name@version` of the checkpoint that produced the result.")
    data: list[VllmScore]
    usage: VllmUsage


Method = Literal["rules", "llm"]
AnyKind = Literal[Kind, WrittenKind]


class NegativesRequest(StrictRequest):
    """A caption, or several, to turn into hard negatives."""

    caption: str | None = Field(None, description="One caption; either this or `captions` is required.")
    captions: Annotated[JsonList[str], Field(min_length=1)] | None = Field(
        None, description="Several captions; the response is then a list."
    )
    method: Method = Field(
        "rules", description="`rules` changes the caption's own words; `llm` has the configured language model write."
    )
    kinds: Annotated[JsonList[AnyKind], Field(min_length=1)] | None = Field(
        None,
        description="Kinds of negatives, in the order of the response; duplicates are ignored. Default: "
        + ", ".join(PAPER_KINDS)
        + " by rules, and SugarCrepe's seven types by a language model.",
    )
    seed: int = Field(
        0,
        ge=0,
        le=MAX_SEED,
        description="By rules, identical requests with the same seed get the same response. For a language model, it "
        "chooses the word to change.",
    )


class Negative(BaseModel):
    kind: AnyKind
    text: str


class RejectedNegative(BaseModel):
    """A negative that the language model did not write as its type demands."""

    kind: WrittenKind
    reason: Lack
    text: str = Field(description="The rejected text, or the model's last answer.")


class NegativesAnswer(BaseModel):
    """Hard negatives of a caption. Kinds that do not apply to the caption are omitted."""

    caption: str
    negatives: list[Negative]
    rejected: list[RejectedNegative] | None = Field(
        None, description="Negatives that failed a check, with the reason. Only with the method `llm`."
    )


class NegativesList(BaseModel):
    """Hard negatives of several captions, in their order."""

    object: Literal["list"] = "list"
    data: list[NegativesAnswer]


class HardNegativeSources(BaseModel):
    """Kinds and sources of hard negatives on this machine."""

    kinds: list[str]
    sources: dict[str, str | None] | None = Field(description="Null until loaded.")
    teacher: str | None = Field(description="The language model of the method `llm`; null if none is configured.")


class Model(ModelObject):
    """The served model and the weights of its scores."""

    max_model_len: int = Field(description="Maximum number of tokens of a caption.")
    image_size: tuple[int, int] = Field(description="Height and width to which every image is resized.")
    resize_mode: str = Field(
        description="How other shapes become this one: `shortest` cuts the middle, `longest` adds black bars, `squash`"
        " distorts. A heatmap is of what is then seen."
    )
    patches: tuple[int, int] | None = Field(description="Rows and columns of a heatmap; null if it has none.")
    local_weight: float = Field(description="Weight of `local` in `score`; the weight of `global` is the rest.")
    logit_scale: float = Field(description="Factor applied to the scores before the softmax.")
    logit_bias: float | None = Field(
        description="Number added to the scaled cosines before the sigmoid of `match`; null for a model without it."
    )
    limits: CallLimits
    hard_negatives: HardNegativeSources
    vqa_model: str | None = Field(
        description="The vision-language model of requests with `vqa_top_k`; null if none is configured."
    )


class ModelList(BaseModel):
    object: Literal["list"] = "list"
    data: list[Model]
