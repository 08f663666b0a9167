"""Bodies of the routes: `python -m tests.documentation` writes this file from the OpenAPI document."""

from typing import Any, Literal, NotRequired, TypedDict, final

EncodingFormat = Literal["float", "base64", "int8", "uint8", "binary", "ubinary"]
Access = Literal["open", "read_only", "copy"]
Reorder = Literal["none", "attention", "calibrated", "query_likelihood", "prompt"]
RerankMethod = Literal["calibrated", "attention", "query_likelihood", "query_generation", "relevance_prompt"]
NegativesMethod = Literal["rules", "llm"]
NegativeKind = Literal[
    "negclip",
    "replace",
    "bigram_shuffle",
    "relation",
    "negate",
    "replace_obj",
    "replace_att",
    "replace_rel",
    "swap_obj",
    "swap_att",
    "add_obj",
    "add_att",
]


@final
class DocumentInput(TypedDict):
    """A retrieved passage; `id` is the caller's own and is returned in the document's report."""

    id: NotRequired[str | None]
    title: NotRequired[str]
    text: str


@final
class RerankDocument(TypedDict):
    """A passage; the model also sees its `title`, and other fields are returned as they were sent."""

    text: NotRequired[str | None]
    image: NotRequired[str | dict[str, Any] | None]
    title: NotRequired[str]


@final
class CalibrationOptions(TypedDict):
    """Changes to the checkpoint's calibration profile; fields that are left out keep the profile's values."""

    enabled: NotRequired[bool | None]
    bias: NotRequired[Literal["exact", "tree", "single", "query", "cached"] | None]
    temperature: NotRequired[float | None]
    layers: NotRequired[Literal["last_half", "all"] | list[int] | None]
    dummy: NotRequired[Literal["framed", "whole"] | None]


@final
class CacheBreakpoint(TypedDict):
    mode: Literal["explicit"]


@final
class DecisionText(TypedDict):
    type: Literal["input_text"]
    text: str
    prompt_cache_breakpoint: NotRequired[CacheBreakpoint | None]


@final
class DecisionJson(TypedDict):
    type: Literal["input_json"]
    data: dict[str, Any] | list[dict[str, Any]]


@final
class PredicateQuestion(TypedDict):
    """A statement about the input, which may be true."""

    name: NotRequired[str | None]
    instructions: str | list[DecisionText | DecisionJson]
    type: Literal["predicate"]


@final
class Choice(TypedDict):
    value: str | bool
    description: NotRequired[str | None]


@final
class ChoiceQuestion(TypedDict):
    """Options, one of which is right."""

    name: NotRequired[str | None]
    instructions: str | list[DecisionText | DecisionJson]
    type: Literal["choice"]
    choices: list[Choice]


@final
class Level(TypedDict):
    label: str
    description: NotRequired[str | None]


@final
class ScoreQuestion(TypedDict):
    """Levels, from the lowest to the highest, one of which the input has."""

    name: NotRequired[str | None]
    instructions: str | list[DecisionText | DecisionJson]
    type: Literal["score"]
    levels: list[Level]


@final
class Embedding(TypedDict):
    object: Literal["embedding"]
    index: int
    condition: NotRequired[str | None]
    embedding: list[float] | str


@final
class EmbedUsage(TypedDict):
    """Usage of a request. `prompt_tokens` counts the tokens of all texts, and of each condition once."""

    images: int
    prompt_tokens: int
    total_tokens: int


@final
class EmbeddingList(TypedDict):
    """Embeddings in the order of the inputs; an image has one for each condition, in the order of the conditions."""

    object: Literal["list"]
    model: str
    data: list[Embedding]
    usage: EmbedUsage


@final
class SearchResult(TypedDict):
    id: str
    score: float
    metadata: dict[str, Any]


@final
class SearchIndex(TypedDict):
    """The index used for the search."""

    condition: str | None
    kind: Literal["flat", "ivf", "hnsw"]
    size: int
    exact: bool
    state: Literal["ready", "building"]
    recall_at_10: float | None


@final
class SearchResults(TypedDict):
    """Results of a search, best first."""

    object: Literal["search"]
    model: str
    condition: str | None
    results: list[SearchResult]
    index: SearchIndex


@final
class ConditionIndex(TypedDict):
    """Indexing progress of a condition; null is the unconditional embedding."""

    condition: str | None
    state: Literal["ready", "building"]
    kind: Literal["flat", "ivf", "hnsw"]
    indexed: int
    waiting: int
    bytes: int
    exact: bool
    recall_at_10: float | None
    pinned: bool


@final
class ImageStates(TypedDict):
    """Stored states of images, which make new conditions cheaper to index."""

    images: int
    bytes: int
    bytes_per_image: int
    max_bytes: int


@final
class Collection(TypedDict):
    object: Literal["collection"]
    name: str
    model: str
    created: int
    access: Literal["open", "read_only", "copy"]
    size: int
    bytes: int
    state: Literal["ready", "building"]
    conditions: list[ConditionIndex]
    image_states: ImageStates | None


@final
class CollectionList(TypedDict):
    object: Literal["list"]
    data: list[Collection]
    unavailable: list[str]


@final
class AddedImages(TypedDict):
    """Response to adding images, sent once they are stored durably."""

    added: int
    unchanged: int
    ids: list[str]


@final
class ImageEntry(TypedDict):
    id: str
    bytes: int
    sha256: str
    metadata: dict[str, Any]
    created: int


@final
class ImageList(TypedDict):
    """Images in ascending order of id. To get the next page, pass the last id as `after`."""

    object: Literal["list"]
    data: list[ImageEntry]
    has_more: bool


@final
class GenerateDelta(TypedDict):
    delta: str


@final
class LayerReport(TypedDict):
    """Attention and relevance of one document in each layer, from the first, as means over all heads of the
    layer.
    """

    attention: list[float]
    relevance: list[float] | None


@final
class ExplainedDocument(TypedDict):
    """The report on a document with, on request, its attention by layer."""

    id: str | None
    index: int
    position: int
    attention: float
    relevance: float | None
    by_layer: LayerReport | None


@final
class CitedDocument(TypedDict):
    index: int
    attention: float


@final
class Citation(TypedDict):
    """A sentence of the answer and its documents, the most attended first; none has enough attention where the
    list is empty.
    """

    start: int
    end: int
    text: str
    documents: list[CitedDocument]


@final
class AppliedCalibration(TypedDict):
    """Calibration of an answer. `bias` is the estimate that was made: another than asked for where that cannot
    be, such as `tree` for a `cached` one without a table for this number of documents.
    """

    bias: Literal["exact", "tree", "single", "query", "cached"]
    temperature: float
    layers: list[int]
    rel_layers: list[int]
    dummy: Literal["framed", "whole"]


@final
class GenerateUsage(TypedDict):
    """`calibration_passes` counts the forward passes that estimated positional bias, besides the prompt's own."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    calibration_passes: int


@final
class GenerateEnd(TypedDict):
    """The last event of a stream: everything about an answer except its text."""

    id: str
    object: Literal["fovea.generation"]
    model: str
    finish_reason: Literal["stop", "length"]
    relevance: float | None
    documents: list[ExplainedDocument]
    citations: list[Citation] | None
    calibration: AppliedCalibration | None
    usage: GenerateUsage


@final
class GenerateAnswer(TypedDict):
    """A whole answer; its text comes first."""

    answer: str
    id: str
    object: Literal["fovea.generation"]
    model: str
    finish_reason: Literal["stop", "length"]
    relevance: float | None
    documents: list[ExplainedDocument]
    citations: list[Citation] | None
    calibration: AppliedCalibration | None
    usage: GenerateUsage


@final
class RerankResult(TypedDict):
    """`index` counts the request's documents from 0."""

    index: int
    relevance_score: float
    document: NotRequired[dict[str, Any] | None]


@final
class RerankUsage(TypedDict):
    prompt_tokens: int
    total_tokens: int


@final
class ApiVersion(TypedDict):
    version: Literal["1", "2"]


@final
class BilledUnits(TypedDict):
    search_units: int


@final
class RerankMeta(TypedDict):
    """`warnings` lists the documents that were cut because the request asked for it, or to a reranker's limit."""

    api_version: ApiVersion
    billed_units: BilledUnits
    warnings: NotRequired[list[str] | None]


@final
class RerankAnswer(TypedDict):
    """The answer of Jina and of Cohere's version 1: best first, equal scores in the order of the request."""

    id: str
    model: str
    results: list[RerankResult]
    usage: RerankUsage
    meta: RerankMeta


@final
class TaskObject(TypedDict):
    """A served task."""

    id: str
    model: str
    fields: list[str]
    labels: list[str] | None
    choices: str | None
    rationales: bool
    metrics: dict[str, Any]
    statement: str | None


@final
class TaskList(TypedDict):
    object: Literal["list"]
    data: list[TaskObject]


@final
class Prediction(TypedDict):
    """The prediction for one input; `index` counts from 0."""

    index: int
    label: str
    probability: float
    probabilities: NotRequired[dict[str, float] | None]
    rationale: NotRequired[str | None]
    value: NotRequired[int | float | None]
    confidence: NotRequired[float | None]
    unused_numbers: NotRequired[list[int | float] | None]
    unread_numbers: NotRequired[list[str] | None]


@final
class PredictUsage(TypedDict):
    """Usage of a request. `completion_tokens` counts the tokens of labels and rationales."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int


@final
class PredictAnswer(TypedDict):
    """Predictions in the order of the inputs."""

    object: Literal["list"]
    model: str
    task: str
    predictions: list[Prediction]
    usage: PredictUsage


CaptionScore = TypedDict(
    "CaptionScore",
    {
        "index": int,
        "caption": str,
        "global": float,
        "local": float | None,
        "score": float,
        "probability": float,
        "match": NotRequired[float | None],
        "vqa": NotRequired[float | None],
    },
)


@final
class Explanation(TypedDict):
    """Attention of the tokens of one caption."""

    index: int
    tokens: list[str]
    heatmaps: list[list[list[float]]]


@final
class ScoreUsage(TypedDict):
    """Usage of a request. `prompt_tokens` counts the tokens of all captions."""

    images: int
    prompt_tokens: int
    total_tokens: int


@final
class ScoreAnswer(TypedDict):
    """Scores in the order of the captions."""

    object: Literal["list"]
    model: str
    best: int
    scores: list[CaptionScore]
    explain: list[Explanation] | None
    vqa_model: NotRequired[str | None]
    usage: ScoreUsage


@final
class Negative(TypedDict):
    kind: Literal[
        "negclip",
        "replace",
        "bigram_shuffle",
        "relation",
        "negate",
        "replace_obj",
        "replace_att",
        "replace_rel",
        "swap_obj",
        "swap_att",
        "add_obj",
        "add_att",
    ]
    text: str


@final
class RejectedNegative(TypedDict):
    """A negative that the language model did not write as its type demands."""

    kind: Literal["replace_obj", "replace_att", "replace_rel", "swap_obj", "swap_att", "add_obj", "add_att"]
    reason: (
        Literal[
            "truncated",
            "unreadable",
            "nothing_to_change",
            "not_in_caption",
            "same_concept",
            "unchanged",
            "too_long",
            "wrong_article",
            "not_a_replacement",
            "not_a_swap",
            "not_an_addition",
            "another_place",
        ]
        | Literal["refused", "unanswered"]
    )
    text: str


@final
class NegativesAnswer(TypedDict):
    """Hard negatives of a caption. Kinds that do not apply to the caption are omitted."""

    caption: str
    negatives: list[Negative]
    rejected: NotRequired[list[RejectedNegative] | None]


@final
class NegativesList(TypedDict):
    """Hard negatives of several captions, in their order."""

    object: Literal["list"]
    data: list[NegativesAnswer]


@final
class PredicateAnswer(TypedDict):
    name: str | None
    model: NotRequired[str | None]
    type: Literal["predicate"]
    probability: float


@final
class ChoiceProbability(TypedDict):
    value: str | bool
    probability: float


@final
class ChoiceAnswer(TypedDict):
    name: str | None
    model: NotRequired[str | None]
    type: Literal["choice"]
    choice: str | bool
    confidence: float
    probabilities: list[ChoiceProbability]


@final
class LevelProbability(TypedDict):
    value: int
    label: str
    probability: float


@final
class LevelAnswer(TypedDict):
    name: str | None
    model: NotRequired[str | None]
    type: Literal["score"]
    score: float
    confidence: float
    probabilities: list[LevelProbability]


@final
class DecisionInputDetails(TypedDict):
    cached_tokens: int
    cache_write_tokens: int


@final
class DecisionOutputDetails(TypedDict):
    reasoning_tokens: int


@final
class DecisionUsage(TypedDict):
    """Tokens that were read; none are generated."""

    input_tokens: int
    input_tokens_details: DecisionInputDetails
    output_tokens: int
    output_tokens_details: DecisionOutputDetails
    total_tokens: int


@final
class Decision(TypedDict):
    """Answers in the order of the questions."""

    model: str
    answers: list[PredicateAnswer | ChoiceAnswer | LevelAnswer]
    usage: DecisionUsage


@final
class ModelList(TypedDict):
    data: list[dict[str, Any]]
    object: str
